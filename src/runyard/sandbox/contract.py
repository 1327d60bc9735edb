"""The contract of a sandbox: the disposable place where one job's processes run.

Order of calls: `prepare` (no identity, secret or network yet; the session may be kept warm), `adopt` once, `start`
as often as wanted (several may run at a time), `close` once or more (a second close is quiet). A backend that can't
keep a promise that a job asks for refuses it with a `SandboxRefused` that names the promise and the remedy; it never
falls back to something weaker. The conformance suite in `tests/sandbox/` repeats these sentences as test names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import msgspec

from runyard.job import Limits, MachineError, NetworkLevel, Refused, Usage
from runyard.sandbox.container_wishes import ContainerWishes, RegistryLogin

if TYPE_CHECKING:
    import socket

Promise: TypeAlias = Literal[
    "fresh_file_system",
    "no_capabilities",
    "no_new_privileges",
    "seccomp",
    "memory_limit",
    "cpu_limit",
    "pids_limit",
    "disk_limit",
    "time_limit",
    "no_engine_socket",
    "no_devices",
    "no_host_mounts",
    "no_host_pids",
    "not_host_root",
    "egress_none",
    "egress_proxy",
    "egress_public",
]

SignalKind: TypeAlias = Literal["interrupt", "terminate", "kill"]

ExitReason: TypeAlias = Literal["out_of_memory", "disk_full", "too_many_processes", "sandbox_lost"]


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend can do on this machine, as data.

    `refused` holds the promises it can't keep here, each with the reason and the remedy; everything else in `Promise`
    is kept. `emulates` are foreign platforms proven to run. `supervisor` is `enter`, `sh` or `exec`.
    """

    backend: str
    supervisor: str
    platform: str = "linux/amd64"
    refused: Mapping[str, Refused] = {}
    containers: bool = False
    tty: bool = False
    emulates: tuple[str, ...] = ()


class SandboxRefused(MachineError):  # noqa: N818 - named for what the user sees: a refusal, with its remedy
    """A promise that a job asks for can't be kept here."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(f"{refused.promise}: {refused.because}", code="sandbox.promise", remedy=refused.remedy or None)
        self.refused = refused


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of the host that the job sees, read-only unless it lies below the job's own overlay.

    `overlay` gives the job a writable layer over `source`; what it writes is gone with the sandbox.
    """

    source: str
    target: str
    overlay: bool = False


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox looks like before anyone knows whose it will be.

    `image` is `host`, `dir:PATH`, `tar:PATH`, `oci:PATH` or an engine's reference.
    `home` and `directories` are made empty and writable; `tmpfs` too, but in memory, for small and hot files.
    `container` and `login` are for engines: what a workflow asks of its job container, and who pulls its image.
    """

    image: str = "host"
    limits: Limits = Limits()
    network: NetworkLevel = "none"
    mounts: tuple[Mount, ...] = ()
    home: str = "/home/runner"
    directories: tuple[str, ...] = ()
    tmpfs: tuple[str, ...] = ()
    container: ContainerWishes | None = None
    login: RegistryLogin | None = None


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Whose the sandbox is: shown in records, labels and names; holds no secret."""

    job_key: str
    run_id: str = ""
    attempt: int = 1
    owner: str = ""


class FileIn(msgspec.Struct, frozen=True):
    """A file written before a command starts. Links on the way to it are not followed."""

    path: str
    data: bytes
    mode: int = 0o644


class FileOut(msgspec.Struct, frozen=True):
    """A file returned when a command has ended: at most `limit` bytes, never through a link."""

    path: str
    limit: int


class FileBack(msgspec.Struct, frozen=True):
    """What came of a FileOut: the bytes, or why there are none.

    `problem`: None with data; `missing`, `link` (counts as nothing written), `not_a_file`, `too_large` (then `size`).
    """

    data: bytes = b""
    problem: Literal["missing", "link", "not_a_file", "too_large"] | None = None
    size: int = 0


class StepCommand(msgspec.Struct, frozen=True, kw_only=True):
    """One process tree to run. Standard output and error share one pipe, so their order is the job's own.

    `env` is the whole environment. `files_in` are written first, `files_out` read after the last process of the step's
    own tree that holds the output has ended or was left behind. `terminal` is (rows, columns) where a tty is wanted.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = {}
    cwd: str = "/"
    files_in: tuple[FileIn, ...] = ()
    files_out: tuple[FileOut, ...] = ()
    stdin: bytes | None = None
    terminal: tuple[int, int] | None = None


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended. `code` is 128 + n for a signal n, as a shell says it; `signal` is n then.

    `problem` says why a command could not start (no such file, not executable, no such folder); `code` is 127 or 126
    then. `reason` is set when a limit ended it; `detail` then has the peak and the limit in words.
    """

    code: int
    signal: int | None = None
    usage: Usage = Usage()
    files: Mapping[str, FileBack] = {}
    problem: str | None = None
    reason: ExitReason | None = None
    detail: str | None = None


class Leftovers(msgspec.Struct, frozen=True):
    """What `close` could not remove; anything here is a defect, said aloud and removed by the next reaper."""

    items: tuple[str, ...] = ()


class Running(Protocol):
    """A command that was started."""

    async def read(self, limit: int = 65536) -> bytes:
        """The next bytes of output, or b"" at its end. Not bounded in time; cancellation loses nothing."""

    async def write(self, data: bytes) -> None:
        """Bytes for the terminal's keyboard, where the command has one."""

    async def wait(self) -> Exit:
        """How it ended; may be awaited by several, and again. Output may still be open (a daemon holds it)."""

    async def signal(self, kind: SignalKind, *, everyone: bool = True) -> None:
        """Send to every process of this command, daemons of earlier commands excepted. Quiet when all have ended.

        It still reaches what the command's first process left behind after it ended. `everyone=False` sends to that
        first process alone (`--strict-github`, deviation D3).
        """

    async def left(self) -> bool:
        """Whether a process of this command is still there, its first one or another; daemons of earlier ones apart."""


TakeConnection: TypeAlias = Callable[["socket.socket"], Awaitable[None]]
"""Serves one accepted connection to its end and closes it."""


Told: TypeAlias = Callable[[str], None]
"""Takes a line for the job's log."""


class ServiceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A service container. `name` is its key in the workflow, and the host name by which the job reaches it.

    `env` belongs to the service from its start, so it stands in the engine's configuration, unlike a step's.
    """

    name: str
    image: str
    wishes: ContainerWishes = ContainerWishes()
    env: Mapping[str, str] = {}
    command: tuple[str, ...] | None = None
    login: RegistryLogin | None = None
    health_s: float = 300.0


class ContainerState(msgspec.Struct, frozen=True, kw_only=True):
    """A container as the contexts show it (job-semantics 17.5); `ports` maps its own to those of the job's loopback."""

    id: str
    network: str
    ports: Mapping[str, str] = {}


class ContainerRun(msgspec.Struct, frozen=True, kw_only=True):
    """A docker action: one process in a container of its own, on the job's network, beside the job's folders.

    `entrypoint` and `args` replace the image's where they are given. `env` is laid over the image's and travels in the
    supervisor's frame. `shares` maps folders of the Shape (`home` or one of `directories`) to where the container sees
    them; `directories` are new and its own, and files in and out may lie in them.
    """

    image: str
    entrypoint: str | None = None
    args: tuple[str, ...] | None = None
    env: Mapping[str, str] = {}
    cwd: str = "/"
    shares: Mapping[str, str] = {}
    directories: tuple[str, ...] = ()
    files_in: tuple[FileIn, ...] = ()
    files_out: tuple[FileOut, ...] = ()
    wishes: ContainerWishes = ContainerWishes()
    login: RegistryLogin | None = None


class ImageBuild(msgspec.Struct, frozen=True, kw_only=True):
    """An image to build from a folder outside, or a tar of one: on the job's network, in its limits, no secrets."""

    context: str
    dockerfile: str = "Dockerfile"
    timeout_s: float = 1800.0
    name: str = ""


class ContainerSupport(Protocol):
    """Services and docker actions on the job's own network. Everything is gone when the session is closed."""

    @property
    def job(self) -> ContainerState:
        """The job's own container; `network` is "" while it has none but its loopback."""

    async def pull(self, image: str, login: RegistryLogin | None, told: Told) -> str:
        """Make an image present; its id. Raises MachineError."""

    async def build(self, build: ImageBuild, told: Told) -> str:
        """Build an image; its id. Raises WorkError when a line of the Dockerfile fails, MachineError."""

    async def start_services(self, specs: tuple[ServiceSpec, ...], told: Told) -> Mapping[str, ContainerState]:
        """Start services in order and wait until all are healthy; by name.

        Raises WorkError when one fails to start, after its log was told; what was started stays until `stop_services`.
        """

    async def stop_services(self, told: Told) -> None:
        """End and remove all services. A second call is quiet."""

    async def run(self, run: ContainerRun, told: Told) -> Running:
        """Start a docker action; its container is gone when it has ended. Raises MachineError."""


class SessionNetwork(Protocol):
    """An open network that refuses destinations.

    `on_refused` may be set by whoever writes the job's log: it hears of each refused destination once, with
    (`host:port` as the job named it, why); at once from a proxy, from a packet filter when `refused` is asked.
    """

    on_refused: Callable[[str, str], None] | None

    async def refused(self) -> Sequence[object]:
        """Everything refused so far. Free for a proxy, about 10 ms for a packet filter."""

    def hang_up(self) -> None:
        """Nothing of the job needs it any more: its end may begin. Returns at once; `refused` goes on to answer."""


class Session(Protocol):
    """One sandbox, from `prepare` to `close`."""

    capabilities: Capabilities

    @property
    def network(self) -> SessionNetwork | None:
        """Its network after `adopt`, where the level has one."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment the image starts a process with: PATH, HOME, USER, LANG; of an engine the image's own."""

    def how_to_enter(self) -> str | None:
        """A command line that gives the invoking user a shell in here while it is open; None if there is none."""

    @property
    def containers(self) -> ContainerSupport | None:
        """Service containers and docker actions, where the backend has them."""

    async def adopt(self, identity: Identity) -> None:
        """Give the sandbox its owner and open its network. Once."""

    async def listen(self, port: int, take: TakeConnection) -> int:
        """Accept on 127.0.0.1:`port` inside (0: any) and serve each connection outside; returns the port."""

    async def start(self, command: StepCommand) -> Running:
        """Start a command; one round trip. Raises MachineError when the sandbox is gone."""

    async def put(self, tar: bytes | str, path: str) -> None:
        """Unpack a tar (bytes, or the path of a file outside) below `path`; refuses a name or link out of it."""

    async def overlay(self, source: str, target: str) -> bool:
        """Lay a writable view of the host's folder `source` over the empty folder `target`, owned by the job's user.

        `source` stays unchanged. False where this backend can't do it while it runs; then `put` is the way.
        """

    async def get(self, path: str, destination: str) -> None:
        """Write the tree at `path` inside to the tar file `destination` outside, owned by the invoking user."""

    async def usage(self) -> Usage:
        """What the sandbox used so far."""

    async def close(self) -> Leftovers:
        """End everything; bounded in time. A second close is quiet."""


class Sandbox(Protocol):
    """One backend on this machine."""

    capabilities: Capabilities

    async def prepare(self, shape: Shape) -> Session:
        """Open a sandbox. Raises SandboxRefused for a promise it can't keep, MachineError when it fails."""
