"""One container of a job on an engine, from its making to its removal, supervised by a shell inside it.

Read `docker_config` for what a container is promised, `sh` for how steps run in it, `docker_exec` for images without a
shell, `docker_api` for the engine. The container lives as long as this process holds its pipes: when we are gone, the
shell inside reads the end of them, ends, and the engine removes the container. What carries our label and has no owner
any more is removed by `docker_reap`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import time
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.job import MachineError
from runyard.sandbox import docker_config, docker_exec, docker_images, docker_network, docker_tar, sh, sh_frame
from runyard.sandbox.container_wishes import ContainerWishes
from runyard.sandbox.contract import Leftovers, SandboxRefused, StepCommand
from runyard.sandbox.docker_ask import EngineError, NoSuchObjectError
from runyard.sandbox.docker_config import Volume
from runyard.sandbox.docker_containers import DockerContainers
from runyard.sandbox.docker_counters import Counters
from runyard.sandbox.docker_reap import guard_of, owner_mark
from runyard.sandbox.network.session import JobNetwork, open_network

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from runyard.job import Usage
    from runyard.sandbox.contract import (
        ContainerSupport,
        FileBack,
        Identity,
        Running,
        Shape,
        SignalKind,
        TakeConnection,
    )
    from runyard.sandbox.docker import DockerSandbox
    from runyard.sandbox.docker_api import EngineApi
    from runyard.sandbox.docker_network import JobBridge
    from runyard.sandbox.docker_wire import ImageInfo

CLOSE_S: Final = 15.0
REMOVE_S: Final = 10.0
END_S: Final = 0.25
"""How long a container that nothing runs in has to end by itself, before the engine is asked to end it."""

_PIDS_SPARE: Final = 16


class DockerSession:
    """One container, from `prepare` to `close`."""

    def __init__(self, sandbox: DockerSandbox, shape: Shape, *, beside: DockerSession | None = None) -> None:
        self.capabilities = sandbox.capabilities
        self.shape = shape
        self.wishes = shape.container or ContainerWishes()
        self.state = sandbox.state
        self.name = f"runyard-{secrets.token_hex(6)}"
        self.container = ""
        self.pid = 0
        self.user = docker_images.User(0, 0)
        self.label: str = beside.label if beside is not None else self.name
        self.labels = {docker_config.LABEL_OWNER: owner_mark(), docker_config.LABEL_SANDBOX: self.label}
        self._guard = guard_of(sandbox.socket_path)
        self.folder: Path = sh.runtime_folder() / f"{owner_mark()}-{self.name[8:]}"
        self.image: ImageInfo | None = None
        self.api = sandbox.api()
        self._sandbox = sandbox
        self._supervisor: sh.ShSupervisor | None = None
        self._counters: Counters | None = None
        self.folders: dict[str, str] = {}
        self.ports: dict[int, int] = {}
        self.bridge: JobBridge | None = None
        self.network: JobNetwork | None = None
        self.left_over: list[str] = []
        self._beside = beside
        self._binds: list[Volume] = []
        self._volumes: list[Volume] = []
        self._layers: list[Volume] = []
        self._containers = DockerContainers(self) if beside is None else None
        self._bridging = asyncio.Lock()
        self._closing = asyncio.Lock()
        self._listeners: dict[socket.socket, asyncio.Task[None]] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._execs: list[docker_exec.ExecRunning] = []
        self._began = time.monotonic()
        self._renaming: asyncio.Task[None] | None = None
        self._hold: str | None = None
        self._adopted = False
        self._left: Leftovers | None = None

    # opening

    async def open(self) -> None:
        """Make the container and wait for its supervisor."""
        self.api.open()
        self._guard.watch(self.label)
        self.image = await docker_images.ensure(
            self.api,
            self.shape.image,
            self.state,
            login=self.shape.login,
            platform=self.wishes.platform,
            pull=self.wishes.pull,
            runs=(self.capabilities.platform, *self.capabilities.emulates),
        )
        machine = docker_config.machine_of(self.image.architecture)
        self.folder.mkdir(mode=0o755)
        self._supervisor = sh.ShSupervisor(
            self.folder / "frames",
            docker_config.SHELL,
            tuple(docker_config.image_variables(self.image)),
            docker_config.image_variables(self.image)["PATH"],
            self._open_lane,
        )
        argv = self._supervisor.lane_argv()
        try:
            await self._run_container(argv, machine)
            await self._supervisor.wait_ready()
            if self._sandbox.info.is_podman and self.shape.limits.pids is not None:
                # Podman can't raise a limit later, and a full process table has no place for who would signal it.
                await self._supervisor.open_spare()
        except EngineError as refused:
            if not _has_no_shell(refused):
                raise
            await self._without_shell(machine)
        facts = await self.api.container(self.container)
        self.pid = facts.state.pid
        self.folders |= {mount.destination: mount.name for mount in facts.mounts or () if mount.name}
        self._counters = Counters(self.pid, self.shape.limits)
        if self._supervisor is not None:
            self._supervisor.limits = self._counters

    def beside(self, shape: Shape, binds: list[Volume]) -> DockerSession:
        """Another container of the same job, in this one's network and with some of its folders; not yet open."""
        other = DockerSession(self._sandbox, shape, beside=self)
        other._binds = binds
        return other

    async def _run_container(self, argv: list[str], machine: str) -> None:
        assert self.image is not None
        plain, layers = await docker_images.lay_layers(self.api, self.shape, self.state, self.folder.name, self.labels)
        self._volumes += layers
        self._layers = layers
        wishes = await self.own_volumes(self.wishes)
        body = docker_config.container_body(
            msgspec.structs.replace(self.shape, mounts=tuple(plain)),
            self.image,
            argv=argv,
            rendezvous=str(self.folder / "frames"),
            hold=self._hold,
            labels=self.labels,
            volumes=[*layers, *await self._own_folders(), *self._binds],
            wishes=wishes,
            network="none" if self._beside is None else f"container:{self._beside.container}",
            seccomp=self.seccomp(machine),
        )
        self.container = await self.api.create_container(self.name, body, platform=self.wishes.platform)
        await self._make_folders()
        await self.api.start_container(self.container)

    @property
    def _engine_makes_folders(self) -> bool:
        """Whether the create call makes the job's folders as they have to be: Podman's has no words for it."""
        return not self._sandbox.info.is_podman

    async def _own_folders(self) -> list[Volume]:
        """The job's folders as volumes, so that other containers of the job can share them.

        Those that Docker makes with the container go with it.
        """
        if self._engine_makes_folders:
            return [Volume(name="", target=path) for path in self._wanted_folders()]
        found = []
        for path in self._wanted_folders():
            name = self.folders.setdefault(path, f"{self.folder.name}-f{len(self.folders)}")
            volume = Volume(name=name, target=path)
            if volume not in self._volumes:
                self._volumes.append(volume)  # before it is there: whatever becomes of its making, it is removed
            await self.api.create_volume(name, self.labels)
            found.append(volume)
        return found

    def _wanted_folders(self) -> list[str]:
        paths = self.shape.directories if self._beside is None else ()
        return [path for path in dict.fromkeys((self.shape.home, *paths)) if path]

    async def own_volumes(self, wishes: ContainerWishes) -> ContainerWishes:
        """A workflow's named volumes are the job's own: shared by its containers, gone with it."""
        volumes = []
        for name, target, read_only in wishes.volumes:
            own = f"{self.label}-v-{name}" if name else ""
            if own:
                await self.api.create_volume(own, self.labels)
                if all(volume.name != own for volume in self._volumes):
                    self._volumes.append(Volume(name=own, target=target))
            volumes.append((own, target, read_only))
        return msgspec.structs.replace(wishes, volumes=tuple(volumes))

    def seccomp(self, machine: str) -> str:
        """The profile: Docker takes its text, Podman the path of a file."""
        profile = msgspec.json.encode(docker_config.seccomp_profile(machine)).decode()
        if not self._sandbox.info.is_podman:
            return profile
        path = self.folder / "seccomp.json"
        path.write_text(profile)
        return str(path)

    async def _without_shell(self, machine: str) -> None:
        """Begin again with a program of ours that only waits, and let the engine start the steps."""
        await self.api.remove_container(self.container)
        if self._supervisor is not None:
            self._supervisor.close()
            self._supervisor = None
        (self.folder / "frames").mkdir(mode=0o755)
        self._hold = str(docker_images.hold_program(self.state, machine))
        self.capabilities = msgspec.structs.replace(self.capabilities, supervisor="exec")
        # The engine's archive can't see memory-backed folders, and files travel through it here.
        self.shape = msgspec.structs.replace(
            self.shape, tmpfs=(), directories=(*self.shape.directories, *self.shape.tmpfs)
        )
        await self._run_container([docker_config.HOLD_AT], machine)

    async def _make_folders(self) -> None:
        """The job's folders, for the image's user, before anything runs in the container.

        A new volume belongs to the container's root, so for root the engine has nothing more to do.
        """
        self.user = await docker_images.find_user(self.api, self.container, self._named_user())
        wanted = self._wanted_folders()
        if wanted and (self.user != docker_images.ROOT or not self._engine_makes_folders):
            folders = docker_images.empty_folders(wanted, self.user)
            await self.api.put_archive(self.container, "/", _one(folders))
        docker_images.own_layers(self.state, self._layers, self.user)

    def _named_user(self) -> str:
        assert self.image is not None
        return self.wishes.user if self.wishes.user is not None else self.image.settings.user

    async def _open_lane(self, argv: list[str]) -> None:
        """Another shell in the container. A full process table gets a little room for it, where the engine can."""
        body = {"Cmd": argv, "AttachStdout": False, "AttachStderr": False, "WorkingDir": "/"}
        for attempt in range(2):
            process = await self.api.create_exec(self.container, body)
            with contextlib.suppress(EngineError):
                await self.api.start_exec_alone(process)
                if (await self.api.exec_state(process)).running:
                    return
            if attempt == 0 and not self._sandbox.info.is_podman:
                limit = self.shape.limits.pids or docker_config.PIDS_DEFAULT
                await self.api.update_container(self.container, {"PidsLimit": limit + _PIDS_SPARE})
        raise MachineError("the engine could not start another shell in the sandbox", code="sandbox.supervisor")

    # the contract

    @property
    def environment(self) -> Mapping[str, str]:
        """What the image starts a process with, and after `adopt` what its network needs."""
        assert self.image is not None
        image = {"HOME": self.shape.home, **docker_config.image_variables(self.image), **self.wishes.env}
        return {**image, **self.network.environment} if self.network is not None else image

    @property
    def containers(self) -> ContainerSupport | None:
        """Service containers and docker actions."""
        return self._containers

    def how_to_enter(self) -> str | None:
        """The engine's own command for a shell inside."""
        if self._left is not None or self._supervisor is None:
            return None
        where = "" if self.capabilities.backend == "podman" else f"-H unix://{self._sandbox.socket_path} "
        return f"{self.capabilities.backend} {where}exec -it {self.name} {docker_config.SHELL}"

    async def adopt(self, identity: Identity) -> None:
        """Give the sandbox its owner and open its network. Once."""
        if self._adopted:
            raise MachineError("this sandbox has an owner already", code="sandbox.adopted")
        self._adopted = True
        # Labels can't be changed on a container that is there; its name can.
        self.labels[docker_config.LABEL_JOB] = identity.job_key
        self._renaming = asyncio.create_task(self._rename(docker_config.container_name(identity.job_key, self.name)))
        if self.shape.network == "public":
            bridge = await self.open_bridge()
            self.network = JobNetwork("public", filtered_by=bridge.policy)
        elif self.shape.network == "proxy":
            self.network = await open_network("proxy", net=-1, listen=self.listen)

    async def _rename(self, name: str) -> None:
        """For people who look at the engine; a job need not wait for it."""
        with contextlib.suppress(EngineError):  # a container that is gone is told by the next step
            await self.api.rename_container(self.container, name)
            self.name = name

    async def open_bridge(self) -> JobBridge:
        """The job's own bridge, with the job's container on it; made when first asked for."""
        async with self._bridging:
            if self.bridge is None:
                if self._sandbox.info.is_podman:
                    raise MachineError(
                        "services need a network that Podman can't give to a container that runs",
                        code="sandbox.services",
                        remedy="--sandbox docker",
                    )
                self.bridge = await docker_network.open_bridge(self.api, self.label, self.labels, self.shape.network)
                await self.api.disconnect("none", self.container)
                await self.api.connect(self.bridge.network, self.container, self.wishes.aliases)
            return self.bridge

    async def listen(self, port: int, take: TakeConnection) -> int:
        """Accept on 127.0.0.1:`port` inside and serve each connection outside; returns the port."""
        refused = self.capabilities.refused.get("egress_proxy")
        if refused is not None:
            raise SandboxRefused(refused)
        from runyard.sandbox.link import listen_inside

        sock = await asyncio.to_thread(listen_inside, self.pid, port)
        sock.setblocking(False)
        self._listeners[sock] = asyncio.create_task(self._accept(sock, take))
        return int(sock.getsockname()[1])

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

    async def start(self, command: StepCommand) -> Running:
        """Start a command; one round trip. Raises MachineError when the sandbox is gone."""
        if self._left is not None:
            raise MachineError("the sandbox is closed", code="sandbox.closed")
        if not command.argv:
            raise MachineError("a command needs a program", code="sandbox.command")
        if self._supervisor is None or command.terminal is not None or not sh_frame.is_exportable(command.env):
            return await self._start_by_engine(command)
        return await self._supervisor.start(command)

    async def _start_by_engine(self, command: StepCommand) -> Running:
        refused = await self._files_in(command)
        if refused is not None:
            return refused
        assert self.image is not None
        started_with = {"PATH", "HOME", "HOSTNAME", "TERM", "container", *docker_config.image_variables(self.image)}
        if self._sandbox.info.is_podman:
            started_with = set()  # Podman has no words for taking a variable away
        argv = command.argv
        if command.terminal is not None and self._supervisor is not None:
            # The engine sets a terminal's size only after the process began, so a shell sets it before.
            rows, columns = command.terminal
            sized = f'stty rows {rows} cols {columns} 2>/dev/null; exec "$@"'
            argv = (docker_config.SHELL, "-c", sized, docker_config.SHELL, *argv)
        body = docker_exec.exec_body(command, argv, sorted(started_with), self.wishes.user)
        process = await self.api.create_exec(self.container, body)
        before = self._counters.before() if self._counters else None
        stream = await self.api.start_exec(process, tty=command.terminal is not None)
        running = docker_exec.ExecRunning(
            self.api,
            process,
            stream,
            collect=lambda: self._files_out(command),
            signal_inside=self._signal_exec,
            why=lambda: self._counters.why(before) if self._counters else (None, None),
        )
        self._execs.append(running)
        if command.terminal is not None:
            with contextlib.suppress(EngineError):  # it may have ended already
                await self.api.resize_exec(process, *command.terminal)
        if command.stdin is not None:
            with contextlib.suppress(EngineError):
                await stream.write(command.stdin)
            stream.end_input()
        return running

    async def _files_in(self, command: StepCommand) -> Running | None:
        """Write a command's files; what could not be written is a command that ended at once."""
        if not command.files_in:
            return None
        if self._supervisor is not None:
            written = await self._supervisor.start(
                msgspec.structs.replace(command, files_out=(), stdin=None), run=False
            )
            how = await written.wait()
            return written if how.problem is not None else None
        data = b"".join(
            docker_tar.file(one.path, one.data, one.mode, self.user.uid, self.user.gid) for one in command.files_in
        )
        await self.api.put_archive(self.container, "/", _one(data + bytes(1024)))
        return None

    async def _files_out(self, command: StepCommand) -> Mapping[str, FileBack]:
        if not command.files_out:
            return {}
        if self._supervisor is not None:
            asked = msgspec.structs.replace(command, files_in=(), stdin=None)
            return (await (await self._supervisor.start(asked, run=False)).wait()).files
        return await docker_exec.read_files(self.api, self.container, command.files_out)

    async def _signal_exec(self, pid: int, kind: SignalKind | None, everyone: bool) -> bool:
        return await asyncio.to_thread(docker_exec.signal_from_outside, pid, self.pid, kind, everyone=everyone)

    async def put(self, tar: bytes | str, path: str) -> None:
        """Unpack a tar below `path`; refuses a name or link out of it."""
        if not path.startswith("/") or ".." in path.split("/"):
            raise MachineError(f"not an absolute path: {path}", code="sandbox.put")
        folders = await docker_tar.judge(_pieces(tar))
        await self._make_way(path, folders)
        pieces = docker_tar.re_owned(_pieces(tar), self.user.uid, self.user.gid)
        await self.api.put_archive(self.container, path, pieces)

    async def _make_way(self, path: str, folders: tuple[str, ...]) -> None:
        """Make the folder that a tar goes to, and refuse a link of the job's on any member's way."""
        if self._supervisor is None:
            await self.api.put_archive(self.container, "/", _one(docker_images.empty_folders((path,), self.user)))
            return
        script = 'while IFS= read -r way; do [ ! -L "$way" ] || { printf %s "$way"; exit 9; }; done; mkdir -p "$1"'
        parts = path.rstrip("/").split("/")
        ways = ["/".join(parts[:count]) for count in range(2, len(parts) + 1)]
        lines = [*ways, *(f"{path.rstrip('/')}/{folder}" for folder in folders)]
        running = await self._supervisor.start(
            StepCommand(
                argv=(docker_config.SHELL, "-c", script, docker_config.SHELL, path),
                env={"PATH": sh_frame.SEARCH_PATH},
                stdin="".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"),
            )
        )
        said = b""
        while piece := await running.read():
            said += piece
        how = await running.wait()
        words = said.decode("utf-8", "replace")
        if how.code == 9:
            raise MachineError(f"the tar would be unpacked through a link: {words}", code="sandbox.tar_escape")
        if how.code:
            raise MachineError(f"there is no folder {path}, and none can be made: {words}", code="sandbox.put")

    async def overlay(self, source: str, target: str) -> bool:
        """False: an engine's container takes no mounts while it runs."""
        return False

    async def get(self, path: str, destination: str) -> None:
        """Write the tree at `path` inside to the tar file `destination` outside, owned by the invoking user."""
        fd = -1
        try:
            async with contextlib.aclosing(self.api.get_archive(self.container, f"{path.rstrip('/')}/.")) as pieces:
                async for piece in pieces:
                    if fd < 0:
                        fd = os.open(destination, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
                    await asyncio.to_thread(_write_all, fd, piece)
        except BaseException as failed:
            if fd >= 0:
                os.unlink(destination)  # noqa: PTH108 - half a tar is worth nothing
            if isinstance(failed, NoSuchObjectError):
                raise MachineError(f"there is no {path} in the sandbox", code="sandbox.get") from failed
            raise
        finally:
            if fd >= 0:
                os.close(fd)

    async def usage(self) -> Usage:
        """What the sandbox used so far."""
        from runyard.job import Usage as Used

        wall_s = time.monotonic() - self._began
        return self._counters.usage(wall_s) if self._counters is not None else Used(wall_s=wall_s)

    async def close(self) -> Leftovers:
        """End everything; bounded in time. A second close is quiet."""
        async with self._closing:
            if self._left is None:
                self._left = await self._close()
            return self._left

    async def _close(self) -> Leftovers:
        left: list[str] = []
        for sock, task in self._listeners.items():
            task.cancel()
            sock.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                if self._renaming is not None:
                    await self._renaming
                left += await self._remove()
        except TimeoutError:
            left.append(f"container {self.name}: the engine did not remove it within {CLOSE_S:g} s")
        for task in self._serving:
            task.cancel()
        if self._supervisor is not None:
            self._supervisor.close()
        await self.api.close()
        if not left and self._beside is None:
            self._guard.forget(self.label)
        shutil.rmtree(self.folder, ignore_errors=True)
        return Leftovers(tuple(left))

    async def _remove(self) -> list[str]:
        left = self.left_over
        try:
            if self._containers is not None:
                left += await self._containers.close()
            if self.container:
                await self._until_ended()
                await _remove_for_good(self.api, self.container)
            for running in self._execs:
                await running.release()
            if self.bridge is not None:
                await self.bridge.close()
            left += await docker_images.remove_volumes(self.api, self.state, self._volumes)
        except EngineError as refused:
            left.append(f"container {self.name}: {refused.message}")
        except TimeoutError:
            left.append(f"container {self.name}: the engine did not remove it within {REMOVE_S:g} s")
        return left

    async def _until_ended(self) -> None:
        """Let a container in which nothing runs end by itself: the engine takes longer to end it than to see that."""
        if self._supervisor is None:
            return
        is_idle = self._supervisor.is_idle and not self._sandbox.info.is_podman
        self._supervisor.close()
        if is_idle:
            with contextlib.suppress(TimeoutError, EngineError):  # whatever is wrong, it is removed next
                async with asyncio.timeout(END_S):
                    await self.api.wait_container(self.container, "removed")


def _has_no_shell(refused: EngineError) -> bool:
    """Whether the engine could not find our shell in the image."""
    said = refused.message.lower()
    return docker_config.SHELL in said and ("no such file" in said or "not found" in said)


async def _remove_for_good(api: EngineApi, container: str) -> None:
    """Remove a container that may be ending by itself at this moment.

    An engine that removes it of its own accord may answer before it has, and Podman can't kill what has just ended.
    """
    async with asyncio.timeout(REMOVE_S):
        while True:
            pause = 0.02
            try:
                await api.remove_container(container)
                await api.container(container)
            except NoSuchObjectError:
                return
            except EngineError:
                pause = 0.2
            await asyncio.sleep(pause)


async def _serve(take: TakeConnection, connection: socket.socket) -> None:
    try:
        await take(connection)
    finally:
        connection.close()


async def _one(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _pieces(tar: bytes | str) -> AsyncIterator[bytes]:
    if isinstance(tar, bytes):
        yield tar
        return
    fd = os.open(tar, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while piece := await asyncio.to_thread(os.read, fd, 1 << 18):
            yield piece
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
