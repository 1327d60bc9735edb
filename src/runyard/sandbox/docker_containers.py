"""Services, docker actions and builds beside a job's container, on its network, gone with it (job-semantics 9.6, 17).

A service is a container of its own on the job's bridge, reached by its key; its ports are published on the job's own
loopback, never on the host. A docker action shares the network of the job's container, and has a supervisor of its own,
so that its variables are in no engine's configuration. A build runs on that network too.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runyard.job import InputError, MachineError, WorkError
from runyard.sandbox import docker_config, docker_images
from runyard.sandbox.contract import ContainerState, Exit, SandboxRefused, Shape, StepCommand
from runyard.sandbox.docker_ask import EngineError

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from runyard.sandbox.container_wishes import RegistryLogin
    from runyard.sandbox.contract import (
        ContainerRun,
        ImageBuild,
        Running,
        ServiceSpec,
        SignalKind,
        TakeConnection,
        Told,
    )
    from runyard.sandbox.docker_session import DockerSession
    from runyard.sandbox.docker_wire import ContainerInfo, ImageInfo

HEALTH_POLL_S: Final = (0.1, 2.0)
HEALTH_TOLD_S: Final = 5.0
LOG_LINES: Final = 200
CONNECT_S: Final = 10.0
IDLE_S: Final = 3600.0


class DockerContainers:
    """The containers beside one session's."""

    def __init__(self, session: DockerSession) -> None:
        self._session = session
        self._services: dict[str, str] = {}
        self._images: list[str] = []
        self._actions: list[DockerSession] = []

    @property
    def job(self) -> ContainerState:
        """The job's own container."""
        bridge = self._session.bridge
        ports = {str(inside): str(outside) for inside, outside in self._session.ports.items()}
        return ContainerState(id=self._session.container, network=bridge.network if bridge else "", ports=ports)

    async def pull(self, image: str, login: RegistryLogin | None, told: Told) -> str:
        """Make an image present; its id. Raises MachineError."""
        return (await self._image(image, login, told, "", "missing")).id

    async def _image(self, image: str, login: RegistryLogin | None, told: Told, platform: str, pull: str) -> ImageInfo:
        own = self._session.capabilities
        return await docker_images.ensure(
            self._session.api,
            image,
            self._session.state,
            login=login,
            platform=platform,
            pull=pull,
            told=told,
            runs=(own.platform, *own.emulates),
        )

    # services

    async def start_services(self, specs: tuple[ServiceSpec, ...], told: Told) -> Mapping[str, ContainerState]:
        """Start services in order and wait until all are healthy; by name."""
        await self._session.open_bridge()
        started: dict[str, ContainerState] = {}
        for spec in specs:
            started[spec.name] = await self._start_service(spec, told)
        waits = [self._until_healthy(spec, told) for spec in specs]
        failures = [failure for failure in await asyncio.gather(*waits) if failure]
        if failures:
            for failure in failures:
                told(failure)
            raise WorkError("One or more containers failed to start.", code="sandbox.service")
        return started

    async def _start_service(self, spec: ServiceSpec, told: Told) -> ContainerState:
        session = self._session
        bridge = await session.open_bridge()
        image = await self._image(spec.image, spec.login, told, spec.wishes.platform, spec.wishes.pull)
        wishes = await session.own_volumes(spec.wishes)
        body = docker_config.service_body(
            image,
            wishes,
            env=spec.env,
            command=spec.command,
            network=bridge.name,
            aliases=(spec.name, *spec.wishes.aliases),
            labels=session.labels,
            limits=session.shape.limits,
            seccomp=session.seccomp(docker_config.machine_of(image.architecture)),
        )
        name = docker_config.container_name(spec.name, f"{session.label}-{secrets.token_hex(4)}")
        container = await session.api.create_container(name, body, platform=spec.wishes.platform)
        self._services[spec.name] = container
        try:
            await session.api.start_container(container)
        except EngineError as refused:
            raise WorkError(
                f"the service {spec.name} could not be started: {refused.message}", code="sandbox.service"
            ) from refused
        facts = await session.api.container(container)
        ports = await self._publish(spec, facts)
        return ContainerState(id=container, network=bridge.network, ports=ports)

    async def _publish(self, spec: ServiceSpec, facts: ContainerInfo) -> Mapping[str, str]:
        """The service's ports on the job's loopback; by the service's own port."""
        if not spec.wishes.ports:
            return {}
        endpoints = (facts.network_settings.networks or {}).values()
        address = next((point.ip_address for point in endpoints if point.ip_address), "")
        if not address:
            raise WorkError(f"the service {spec.name} ended before it had an address", code="sandbox.service")
        ports: dict[str, str] = {}
        for outside, inside, _ in spec.wishes.ports:
            try:
                port = await self._session.listen(outside, _relay(address, inside))
            except SandboxRefused as refused:
                raise MachineError(
                    f"the ports of the service {spec.name} can't be published: {refused.refused.because}",
                    code="sandbox.ports",
                    remedy=f"reach it as {spec.name}:{inside} from a job container, or run as root",
                ) from refused
            ports[str(inside)] = str(port)
        return ports

    async def _until_healthy(self, spec: ServiceSpec, told: Told) -> str | None:
        """None when the service is ready, else why it isn't; its log was told then."""
        container = self._services[spec.name]
        loop = asyncio.get_running_loop()
        began, pause, last_told = loop.time(), HEALTH_POLL_S[0], loop.time()
        while True:
            facts = await self._session.api.container(container)
            status = facts.state.health.status if facts.state.health else "none"
            if not facts.state.running:
                why = f"the service {spec.name} ended with exit code {facts.state.exit_code}"
                break
            if status in ("none", "", "healthy"):
                if status == "healthy":
                    told(f"{spec.name} is healthy after {loop.time() - began:.1f} s")
                return None
            if status == "unhealthy":
                why = f"the service {spec.name} is unhealthy: {_last_probe(facts)}"
                break
            if loop.time() - began > spec.health_s:
                why = f"the service {spec.name} is not healthy after {spec.health_s:g} s: {_last_probe(facts)}"
                break
            if loop.time() - last_told >= HEALTH_TOLD_S:
                last_told = loop.time()
                told(f"waiting for {spec.name} ({status}, {loop.time() - began:.0f} s)")
            await asyncio.sleep(pause)
            pause = min(HEALTH_POLL_S[1], pause * 1.5)
        await self._tell_log(spec.name, container, told)
        return why

    async def _tell_log(self, name: str, container: str, told: Told) -> None:
        told(f"##[group]Log of {name}")
        with contextlib.suppress(EngineError):
            log = await self._session.api.logs(container, tail=LOG_LINES)
            for line in log.decode("utf-8", "replace").splitlines():
                told(line)
        told("##[endgroup]")

    async def stop_services(self, told: Told) -> None:
        """End and remove all services. A second call is quiet."""
        services, self._services = self._services, {}
        for name, container in services.items():
            try:
                await self._session.api.remove_container(container)
            except EngineError as refused:
                told(f"the service {name} could not be removed: {refused.message}")

    # docker actions

    async def run(self, run: ContainerRun, told: Told) -> Running:
        """Start a docker action; its container is gone when it has ended."""
        parent = self._session
        image = await self._image(run.image, run.login, told, run.wishes.platform, run.wishes.pull)
        argv = _argv(run, image)
        shape = Shape(
            image=image.id,
            limits=parent.shape.limits,
            home="",
            tmpfs=run.directories,
            container=run.wishes,
        )
        binds = []
        for folder, target in run.shares.items():
            if folder not in parent.folders:
                raise InputError(
                    f"{folder} is no folder of this job that a container could share", code="sandbox.shares"
                )
            binds.append(docker_config.Volume(name=parent.folders[folder], target=target))
        action = parent.beside(shape, binds)
        self._actions.append(action)
        try:
            await action.open()
            if action.capabilities.supervisor == "exec":
                told(
                    "this image has no shell: the engine starts its process, and knows its variables until it has ended"
                )
            running = await action.start(
                StepCommand(
                    argv=argv,
                    env={**docker_config.image_variables(image), **run.env},
                    cwd=run.cwd,
                    files_in=run.files_in,
                    files_out=run.files_out,
                )
            )
        except BaseException:
            await self._end_action(action)
            raise
        return _Action(running, action, self._end_action)

    async def _end_action(self, action: DockerSession) -> None:
        left = await action.close()
        if action in self._actions:
            self._actions.remove(action)
        self._session.left_over.extend(left.items)

    # builds

    async def build(self, build: ImageBuild, told: Told) -> str:
        """Build an image on the job's own network; its id."""
        session = self._session
        name = f"{session.label}:{secrets.token_hex(6)}"
        query = docker_config.build_query(
            name=name,
            dockerfile=build.dockerfile,
            network=f"container:{session.container}",
            labels=session.labels,
            limits=session.shape.limits,
        )
        layers = _Layers()
        try:
            context = docker_images.build_context(Path(build.context))
            async for line in session.api.build(context, query, deadline_s=build.timeout_s):
                for text in line.stream.splitlines():
                    layers.see(text)
                    if text.strip():
                        told(text)
        except EngineError as refused:
            # A build that fails leaves its layers without a name; the last one takes the others along.
            for layer in reversed(layers.own):
                with contextlib.suppress(EngineError):
                    await session.api.remove_unused_image(layer)
                    break
            if refused.retryable:
                raise
            raise WorkError(f"the image could not be built: {refused.message}", code="sandbox.build") from refused
        self._images.append(name)
        image = await session.api.image(name)
        if image is None:
            raise MachineError("the engine built an image and does not have it", code="sandbox.build")
        return image.id

    async def close(self) -> list[str]:
        """End and remove everything; what could not be removed."""
        left: list[str] = []
        for action in list(self._actions):
            await self._end_action(action)
        await self.stop_services(left.append)
        for image in self._images:
            try:
                await self._session.api.remove_image(image)
            except EngineError as refused:
                left.append(f"image {image}: {refused.message}")
        self._images.clear()
        return left


class _Layers:
    """The layers that a build itself made, from what the classic builder tells; not what it began from or found."""

    def __init__(self) -> None:
        self.own: list[str] = []
        self._is_other = True

    def see(self, text: str) -> None:
        """Take a line."""
        if text.startswith("Step "):
            self._is_other = " : FROM " in text
        elif text.strip() == "---> Using cache":
            self._is_other = True
        elif text.startswith(" ---> ") and len(text.split()) == 2 and not self._is_other:
            self.own.append(text.split()[1])


class _Action:
    """A docker action that runs; when it has ended, its container is removed before anyone is told."""

    def __init__(self, running: Running, action: DockerSession, end: object) -> None:
        self._running = running
        self._action = action
        self._end = end
        self._over = asyncio.create_task(self._watch(), name="docker action")

    async def _watch(self) -> Exit:
        how = await self._running.wait()
        # Whatever it left running in its container ends with it, and so does its output.
        assert callable(self._end)
        await self._end(self._action)
        return how

    async def read(self, limit: int = 65536) -> bytes:
        """The next bytes of output, or b"" at its end."""
        return await self._running.read(limit)

    async def write(self, data: bytes) -> None:
        """There is no keyboard."""
        await self._running.write(data)

    async def wait(self) -> Exit:
        """How it ended."""
        return await asyncio.shield(self._over)

    async def signal(self, kind: SignalKind, *, everyone: bool = True) -> None:
        """Send to every process of the action, or to its first alone."""
        if not self._over.done():
            await self._running.signal(kind, everyone=everyone)

    async def left(self) -> bool:
        """Whether a process of the action is still there; none is after its end."""
        return not self._over.done()


def _argv(run: ContainerRun, image: ImageInfo) -> tuple[str, ...]:
    """Entrypoint and arguments as an engine joins them: an entrypoint that is given takes the image's command away."""
    settings = image.settings
    entrypoint = (run.entrypoint,) if run.entrypoint else tuple(settings.entrypoint or ())
    args = () if run.entrypoint else tuple(settings.cmd or ())
    args = run.args if run.args is not None else args
    if not (*entrypoint, *args):
        raise WorkError(f"the image {run.image} says no command to run, and the action gives none", code="sandbox.run")
    return (*entrypoint, *args)


def _last_probe(facts: ContainerInfo) -> str:
    log = facts.state.health.log if facts.state.health else None
    if not log:
        return "its check has not ended once"
    return f"its check ended with {log[-1].exit_code}: {log[-1].output.strip()[-300:]}"


def _relay(address: str, port: int) -> TakeConnection:
    """Joins a connection of the job with one to a service."""
    from runyard.sandbox.network.peer import Peer, join

    async def take(connection: socket.socket) -> None:
        import socket as sockets

        loop = asyncio.get_running_loop()
        other = sockets.socket(sockets.AF_INET, sockets.SOCK_STREAM)
        other.setblocking(False)
        try:
            async with asyncio.timeout(CONNECT_S):
                await loop.sock_connect(other, (address, port))
            await join(Peer(connection, IDLE_S), Peer(other, IDLE_S), IDLE_S)
        except (OSError, TimeoutError):
            return
        finally:
            other.close()

    return take
