# ruff: noqa: PTH102
# The helper process imports as little as it can.

"""A folder of the host laid over one of an open sandbox, with a writable layer of the job's own.

It can't be done by the supervisor, which has given up every right to mount. A fresh child of the helper process does
it from outside: it makes the mount where host paths are seen, detached, and puts it into the sandbox's mount namespace.
"""

from __future__ import annotations

import fcntl
import os

from runyard.sandbox.enter import system, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket

_STAGE = "/mnt"
_PATH_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Where:
    """A sandbox from outside: its first process, bubblewrap's own, the id its root is mapped to (None: one user)."""

    def __init__(self, first: int, bwrap: int, base: int | None, disk: str) -> None:
        self.first = first
        self.bwrap = bwrap
        self.base = base
        self.disk = disk


def serve(control: _socket.socket, where: Where, source: str, target: str, name: str) -> None:
    """Lay `source` over `target`, the layer in the folder `name` of the sandbox's disk; answer how it went."""
    try:
        _overlay(where, source, target, name)
    except OSError as err:
        wire.send(control, wire.pack(["failed", 0, "overlay", str(err)]))
        return
    wire.send(control, wire.pack(["done", 0, "ok"]))


def _overlay(where: Where, source: str, target: str, name: str) -> None:
    proc = f"/proc/{where.first}/ns"
    net = os.open(f"{proc}/net", os.O_RDONLY | os.O_CLOEXEC)
    owner = fcntl.ioctl(net, system.NS_GET_USERNS)
    inside = os.open(f"{proc}/mnt", os.O_RDONLY | os.O_CLOEXEC)
    around = os.open(f"/proc/{where.bwrap}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    if where.base is None:
        lower = source
        _enter_user(where, owner, around)
        disk = where.disk
    else:
        tree = _mapped(source, owner)
        system.setns(around, system.CLONE_NEWNS)
        os.mkdir(f"{_STAGE}/{name}.lower", 0o755)
        system.attach_tree(tree, f"{_STAGE}/{name}.lower")
        lower = f"{_STAGE}/{name}.lower"
        disk = f"{_STAGE}/disk"
        system.setns(owner, system.CLONE_NEWUSER)
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    system.unshare(system.CLONE_NEWNS)
    for made in (name, f"work/{name}"):
        os.mkdir(f"{disk}/{made}", 0o755)
    layers = f"upperdir={_escaped(disk)}/{name},workdir={_escaped(disk)}/work/{name}"
    options = f"lowerdir={_escaped(lower)},{layers},userxattr"
    system.mount("overlay", f"{disk}/{name}", "overlay", system.MS_NOSUID | system.MS_NODEV, options)
    made_tree = system.clone_tree(f"{disk}/{name}", None, recursive=False)
    system.setns(inside, system.CLONE_NEWNS)
    system.attach_tree_at(made_tree, _folder(target))


def _escaped(path: str) -> str:
    """A path as overlay's options want it."""
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def _enter_user(where: Where, owner: int, around: int) -> None:
    """As an ordinary user: through the user namespace that has the disk, if it has one of its own."""
    if os.fstat(around).st_ino != os.stat("/proc/self/ns/mnt").st_ino:  # noqa: PTH116
        outer = os.open(f"/proc/{where.bwrap}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        if os.fstat(outer).st_ino != os.stat("/proc/self/ns/user").st_ino:  # noqa: PTH116
            system.setns(outer, system.CLONE_NEWUSER)
        system.setns(around, system.CLONE_NEWNS)
    system.setns(owner, system.CLONE_NEWUSER)


def _mapped(source: str, owner: int) -> int:
    try:
        return system.clone_tree(source, owner, recursive=False)
    except OSError as err:
        if err.errno not in (22, 95):  # EINVAL, EOPNOTSUPP: this file system can't map ids
            raise
        return system.clone_tree(source, None, recursive=False)


def _folder(path: str) -> int:
    """The folder in the sandbox, each part opened without following a link: the job may have put one there."""
    here = os.open("/", _PATH_FOLDER)
    for part in path.split("/"):
        if part in ("", "."):
            continue
        if part == "..":
            raise OSError(22, f"{path}: not a plain path")
        below = os.open(part, _PATH_FOLDER, dir_fd=here)
        os.close(here)
        here = below
    return here
