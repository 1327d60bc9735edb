"""Sandboxes of a container engine, Docker or Podman: a container a job, and what one can promise.

`docker_session` is what opens a container. Here is only what whoever asks for an engine's abilities has to load.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.job import Refused
from runyard.sandbox import docker_config, records
from runyard.sandbox.contract import Capabilities, SandboxRefused
from runyard.sandbox.docker_ask import ask_now
from runyard.sandbox.docker_now import default_socket
from runyard.sandbox.docker_wire import EngineInfo

if TYPE_CHECKING:
    from typing import Literal

    from runyard.sandbox.contract import Shape
    from runyard.sandbox.docker_api import EngineApi
    from runyard.sandbox.docker_session import DockerSession

ASK_S: Final = 15.0
KNOWN_S: Final = 5.0
"""How long an engine is taken to be what it said: from a command line to the job process that it starts."""


class Known(msgspec.Struct, frozen=True, array_like=True):
    """What an engine told, and when, by the clock that all processes of a machine share."""

    socket_path: str
    asked_s: float
    info: EngineInfo


def _still_known(known: bytes, socket_path: str) -> Known | None:
    """What another process has just been told, so that two in a row need not ask: an engine thinks for 10 ms."""
    if not known:
        return None
    told = msgspec.msgpack.decode(known, type=Known)
    is_young = 0 <= time.monotonic() - told.asked_s < KNOWN_S
    return told if is_young and told.socket_path == socket_path else None


class DockerSandbox:
    """An engine on this machine. Raises MachineError when none answers."""

    def __init__(
        self,
        kind: Literal["docker", "podman"] = "docker",
        socket_path: str | None = None,
        *,
        state: str | None = None,
        known: bytes = b"",
    ) -> None:
        self.kind = kind
        self.state = state or records.state_folder()
        self.socket_path = socket_path or default_socket(kind)
        told = _still_known(known, self.socket_path)
        if told is None:
            told = Known(self.socket_path, time.monotonic(), ask_now(self.socket_path, "/info", EngineInfo, ASK_S))
        self.info = told.info
        self.known = msgspec.msgpack.encode(told)
        self.capabilities = _able(kind, self.info)

    def api(self) -> EngineApi:
        """A door of its own; whoever opens one closes it."""
        from runyard.sandbox.docker_api import EngineApi

        return EngineApi(self.socket_path)

    async def prepare(self, shape: Shape) -> DockerSession:
        """Open a sandbox. Raises SandboxRefused for a promise it can't keep, MachineError when it fails."""
        from runyard.sandbox.docker_session import DockerSession

        self._check(shape)
        records.note_engines(self.state)
        session = DockerSession(self, shape)
        try:
            await session.open()
        except BaseException:
            await session.close()
            raise
        return session

    def _check(self, shape: Shape) -> None:
        refused = (
            self.capabilities.refused.get("seccomp")
            or docker_config.judge_limits(shape.limits, self.info)
            or docker_config.judge_mounts(shape.mounts)
            or self.capabilities.refused.get(f"egress_{shape.network}")
        )
        if refused is not None:
            raise SandboxRefused(refused)


def _able(kind: str, info: EngineInfo) -> Capabilities:
    """What this engine can promise."""
    from runyard.job import Limits
    from runyard.sandbox.network import levels

    refused: dict[str, Refused] = {}
    if not info.has_seccomp:
        because = "the engine runs without seccomp"
        refused["seccomp"] = Refused("seccomp", because, "use an engine built with it, or --sandbox bubblewrap")
    for wanted in (Limits(memory_mb=1), Limits(cpus=1), Limits(pids=1), Limits(disk_mb=1)):
        limit = docker_config.judge_limits(wanted, info)
        if limit is not None:
            refused[limit.promise] = limit
    is_root = os.geteuid() == 0 and not info.is_rootless
    bridge = levels.judge_bridge(levels.observe_facts())
    if bridge is not None:
        refused["egress_public"] = bridge
    if info.is_podman:
        refused["egress_public"] = Refused(
            "egress_public",
            "Podman can't give a network to a container that began without one",
            "use --network proxy, --sandbox docker or --sandbox bubblewrap",
        )
    if not is_root:
        refused["egress_proxy"] = Refused(
            "egress_proxy",
            "the proxy listens inside the container's network, which only root can enter",
            "run as root, or use --sandbox bubblewrap",
        )
    if not (info.is_rootless or info.maps_users):
        refused["not_host_root"] = Refused(
            "not_host_root",
            "the root of a container is the host's, without its capabilities",
            "set userns-remap for the engine, name another user in the image, or use --sandbox bubblewrap",
        )
    return Capabilities(
        backend=kind,
        supervisor="sh",
        platform=f"{info.system or 'linux'}/{docker_config.platform_of(info.architecture)}",
        refused=refused,
        containers=True,
        tty=True,
    )
