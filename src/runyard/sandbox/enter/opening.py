# ruff: noqa: PTH102, PTH106, PTH108, PTH112
# The supervisor imports as little as it can, and every call here is on the way of a step.

"""Making the sandbox: identities, disk, mounts, then bubblewrap, and the way in.

As root the job gets a range of ids of its own: a user namespace maps 0 to the range's base, the trees of the image are
shown through mounts that map ids the same way, and bubblewrap runs inside that namespace. All mounts are made in a
mount namespace of our own, so that they are gone with us, whatever ends us. As an ordinary user bubblewrap makes the
user namespace, with one id. What we hold of the sandbox afterwards is descriptors.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import time

from runyard.sandbox.enter import system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

_STAGE = "/mnt"
"""Where mounts stand in our own mount namespace: a folder that every machine has and nothing we run needs."""

_NAMESPACES = (
    ("cgroup", system.CLONE_NEWCGROUP),
    ("ipc", system.CLONE_NEWIPC),
    ("uts", system.CLONE_NEWUTS),
    ("net", system.CLONE_NEWNET),
    ("pid", system.CLONE_NEWPID),
    ("mnt", system.CLONE_NEWNS),
)


class Opening(Exception):  # noqa: N818 - says where opening stopped
    """The sandbox could not be opened: which stage, and what was said."""

    def __init__(self, stage: str, said: str) -> None:
        super().__init__(f"{stage}: {said}")
        self.stage = stage
        self.said = said


class Opened:
    """A sandbox that is open: bubblewrap's pid outside, the pid of its first process, descriptors of its namespaces."""

    def __init__(self, bwrap: int, first: int) -> None:
        self.bwrap = bwrap
        self.first = first
        self.owner = -1
        self.inner = -1
        self.net = -1
        self.disk = -1


def open_sandbox(plan: dict[str, Any], bwrap: int, deadline: float) -> Opened:
    """Make the sandbox that `plan` describes and wait until it is complete. Raises Opening."""
    root = plan["base"] is not None
    stage = "mounts"
    try:
        if root:
            system.unshare(system.CLONE_NEWNS)
            system.mount("none", "/", None, system.MS_REC | system.MS_PRIVATE)
        if plan["disk_mb"] is not None and root:
            stage = "disk"
            _mount_disk(plan)
        if root or plan["disk_mb"] is None:
            stage = "files"
            lay(plan["disk"], plan["lay"], plan["base"])
        stage = "bubblewrap"
        return _run_bubblewrap(plan, bwrap, deadline)
    except OSError as err:
        raise Opening(stage, str(err)) from err


def _mount_disk(plan: dict[str, Any]) -> None:
    """A file system of the wanted size on a loop device; its file has no name any more, so nothing can be left."""
    image = os.open(plan["disk_image"], os.O_RDWR | os.O_CLOEXEC)
    os.unlink(plan["disk_image"])
    device = system.attach_loop(image)
    os.close(image)
    flags = system.MS_NOSUID | system.MS_NODEV | system.MS_NOATIME
    system.mount(device, plan["disk"], "ext4", flags)
    system.release_loops()
    os.rmdir(f"{plan['disk']}/lost+found")


def lay(root: str, items: list[tuple[str, str, int, Any]], owner: int | None) -> None:
    """Make folders, files and links below `root`, as `owner`; what is there already is left as it is.

    An `opaque` folder hides what the image has at its place.
    """
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    umask = os.umask(0)
    if owner is not None:
        os.fchown(here, owner, owner)
        os.setegid(owner)
        os.seteuid(owner)
    try:
        for item in items:
            _lay_one(here, *item)
    finally:
        if owner is not None:
            os.seteuid(0)
            os.setegid(0)
        os.umask(umask)
        os.close(here)


def _lay_one(root: int, kind: str, path: str, mode: int, value: Any) -> None:
    if kind == "dir":
        try:
            os.mkdir(path, mode, dir_fd=root)
        except FileExistsError:
            return
    elif kind == "opaque":
        os.mkdir(path, mode, dir_fd=root)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
        os.setxattr(fd, "user.overlay.opaque", b"y")
        os.close(fd)
    elif kind == "file":
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(path, flags, mode, dir_fd=root)
        os.write(fd, value)
        os.close(fd)
    else:
        os.symlink(value, path, dir_fd=root)


def _run_bubblewrap(plan: dict[str, Any], bwrap: int, deadline: float) -> Opened:
    root = plan["base"] is not None
    hold = _memory_file("hold", plan["hold"])
    seccomp = _memory_file("seccomp", plan["seccomp"])
    info_r, info_w = os.pipe()
    ready_r, ready_w = os.pipe()
    said_r, said_w = os.pipe()
    go_r, go_w = os.pipe()
    mapped_r, mapped_w = os.pipe()
    child = os.fork()
    if child == 0:

        def prepare() -> str:
            os.close(go_w)
            system.die_with_parent(signal.SIGKILL)
            if root:
                system.unshare(system.CLONE_NEWUSER)
                os.write(mapped_w, b"+")
                if os.read(go_r, 1) != b"+":
                    os._exit(1)
                os.setgroups([])
                os.setresgid(0, 0, 0)
                os.setresuid(0, 0, 0)
                _no_more_namespaces()
                return _STAGE
            if plan["disk_mb"] is not None:
                _own_disk(plan)
            return ""

        _become_bubblewrap(plan, bwrap, (info_w, ready_w, said_w, hold, seccomp), prepare)
    for fd in (info_w, ready_w, said_w, go_r, mapped_w):
        os.close(fd)
    try:
        if root:
            if _read(mapped_r, 1, deadline) != b"+":
                raise OSError(1, f"user namespace: {_said(said_r, deadline)}")
            _map_and_stage(plan, child)
            os.write(go_w, b"+")
        info = _read_to_end(info_r, deadline)
        if _read(ready_r, 1, deadline) != b"+":
            raise Opening("bubblewrap", _said(said_r, deadline))
        opened = Opened(child, _child_pid(info))
    except (OSError, Opening):
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        for fd in (info_r, ready_r, go_w, mapped_r, hold, seccomp):
            os.close(fd)
    os.close(said_r)
    return opened


def _become_bubblewrap(
    plan: dict[str, Any], bwrap: int, fds: tuple[int, int, int, int, int], prepare: Callable[[], str]
) -> NoReturn:
    info_w, ready_w, said_w, hold, seccomp = fds
    try:
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        os.dup2(null, 0)
        os.dup2(ready_w, 1)
        os.dup2(said_w, 2)
        staged = prepare()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        argv = ["bwrap", "--info-fd", str(info_w), "--seccomp", str(seccomp)]
        for word in plan["argv"]:
            if isinstance(word, str):
                argv.append(word)
            elif isinstance(word, int):
                argv.append(_tree(plan, staged, word))
            else:
                argv.append(f"{staged or plan['disk']}/{'disk/' if staged else ''}{word[0]}")
        argv += ["--", f"/proc/self/fd/{hold}"]
        for fd in (info_w, seccomp, hold):
            os.set_inheritable(fd, True)
        libraries = plan["libraries"]
        os.execve(bwrap, argv, {} if libraries is None else {"LD_LIBRARY_PATH": _tree(plan, staged, libraries)})
    except OSError as err:
        os.write(2, str(err).encode())
    finally:
        os._exit(127)


def _tree(plan: dict[str, Any], staged: str, index: int) -> str:
    return f"{staged}/{index}" if staged else str(plan["trees"][index][0])


def _no_more_namespaces() -> None:
    """No user namespace below the job's own, ever; the filter says so too, and this can't be got around."""
    fd = os.open("/proc/sys/user/max_user_namespaces", os.O_WRONLY | os.O_CLOEXEC)
    os.write(fd, b"0")
    os.close(fd)


def _own_disk(plan: dict[str, Any]) -> None:
    """An ordinary user's disk of a given size: memory, in a mount namespace of its own."""
    uid, gid = os.geteuid(), os.getegid()
    system.unshare(system.CLONE_NEWUSER | system.CLONE_NEWNS)
    for name, text in (("setgroups", "deny"), ("gid_map", f"0 {gid} 1"), ("uid_map", f"0 {uid} 1")):
        fd = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        os.write(fd, text.encode())
        os.close(fd)
    flags = system.MS_NOSUID | system.MS_NODEV
    system.mount("tmpfs", plan["disk"], "tmpfs", flags, f"size={plan['disk_mb']}m,mode=700")
    lay(plan["disk"], plan["lay"], None)


def _map_and_stage(plan: dict[str, Any], child: int) -> None:
    base, count = plan["base"], plan["ids"]
    for name in ("uid_map", "gid_map"):
        fd = os.open(f"/proc/{child}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        os.write(fd, f"0 {base} {count}".encode())
        os.close(fd)
    userns = os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    trees = [(f"{_STAGE}/disk", system.clone_tree(plan["disk"], None, recursive=False))]
    for index, (source, mapped) in enumerate(plan["trees"]):
        trees.append((f"{_STAGE}/{index}", _clone(source, userns if mapped else None)))
    os.close(userns)
    system.mount("tmpfs", _STAGE, "tmpfs", system.MS_NOSUID | system.MS_NODEV, "size=256k,mode=755")
    for target, tree in trees:
        if not os.path.isdir(f"/proc/self/fd/{tree}"):
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
        else:
            os.mkdir(target)
        system.attach_tree(tree, target)
        os.close(tree)


def _clone(source: str, userns: int | None) -> int:
    try:
        return system.clone_tree(source, userns, recursive=False)
    except OSError as err:
        if userns is None or err.errno not in (22, 95):  # EINVAL, EOPNOTSUPP: this file system can't map ids
            raise
        return system.clone_tree(source, None, recursive=False)


def _memory_file(name: str, data: bytes) -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    if name == "hold":
        # A file that is open for writing can't be executed, so reopen it for reading alone.
        again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        os.close(fd)
        return again
    return fd


def _read(fd: int, size: int, deadline: float) -> bytes:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if not poll.poll(max(0, (deadline - time.monotonic()) * 1000)):
        raise TimeoutError(110, "the sandbox did not open in time")
    return os.read(fd, size)


def _read_to_end(fd: int, deadline: float) -> bytes:
    parts = []
    while part := _read(fd, 4096, deadline):
        parts.append(part)
    return b"".join(parts)


def _said(fd: int, deadline: float) -> str:
    try:
        text = _read_to_end(fd, min(deadline, time.monotonic() + 1)).decode("utf-8", "replace").strip()
    except TimeoutError:
        text = ""
    return text[-2000:] or "it ended without a word"


def _child_pid(info: bytes) -> int:
    """The first process's pid from bubblewrap's JSON; a reader of JSON would cost more than the sandbox."""
    _, found, rest = info.partition(b'"child-pid":')
    digits = rest.lstrip()
    end = 0
    while end < len(digits) and digits[end : end + 1].isdigit():
        end += 1
    if not found or not end:
        raise Opening("bubblewrap", "it did not say the pid of its child")
    return int(digits[:end])


def enter(opened: Opened, *, mapped: bool, seccomp: bytes) -> None:
    """Go in for good: namespaces in the order that permissions allow, then give up everything. Raises OSError.

    `mapped` says that a range of ids is mapped, so that we must take the range's root. The process itself stays outside
    the sandbox's pid namespace: only its children are inside, so the job neither sees nor ends it.
    """
    proc = f"/proc/{opened.first}/ns"
    fds = [(os.open(f"{proc}/{name}", os.O_RDONLY | os.O_CLOEXEC), kind) for name, kind in _NAMESPACES]
    opened.net = os.open(f"{proc}/net", os.O_RDONLY | os.O_CLOEXEC)
    opened.owner = fcntl.ioctl(opened.net, system.NS_GET_USERNS)
    inner = os.open(f"{proc}/user", os.O_RDONLY | os.O_CLOEXEC)
    system.setns(opened.owner, system.CLONE_NEWUSER)
    if mapped:
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    for fd, kind in fds:
        system.setns(fd, kind)
        os.close(fd)
    os.chdir("/")
    if os.fstat(inner).st_ino != os.fstat(opened.owner).st_ino:
        system.setns(inner, system.CLONE_NEWUSER)
    os.close(inner)
    system.drop_everything(seccomp)
    system.be_undumpable()
