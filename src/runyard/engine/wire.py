"""What passes between a job process and its parent: msgpack frames over one socket, each with its length before it.

Down go the hand-out, orders and what a person types; up come events and signs of life. The claim travels here and
nowhere else: never in an argument, never in an environment.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from runyard.action.node import PlacedNode
from runyard.action.remotes import Remotes
from runyard.engine.declared_stores import StoreSettings
from runyard.job import Cancel, Claim, Drain, JobEvent, LeaseLost, NetworkLevel, Pause, Policy
from runyard.sandbox.contract import Mount

if TYPE_CHECKING:
    from collections.abc import Iterator

HEARTBEAT_S = 1.0
"""How often a job process says that its loop turns; one that says nothing for `Launcher.stuck_after_s` is stuck."""

LARGEST_FRAME = 64 << 20
_LENGTH = struct.Struct(">I")

PauseAction: TypeAlias = Literal["retry", "go_on", "give_up"]


class HookFiles(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Scripts of this machine around each job, as absolute paths of it; "" for none.

    `started` and `completed` run inside the sandbox, the others on the host (see `engine.hooks`).
    """

    started: str = ""
    completed: str = ""
    host_started: str = ""
    host_completed: str = ""

    def __bool__(self) -> bool:
        return bool(self.started or self.completed or self.host_started or self.host_completed)


class JobSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How this machine runs one job; the claim says what the job is.

    `sandbox` is a backend that was chosen already (never `auto`), and `known` what was learned of it on the way (see
    `open_sandbox`); `header` are lines for the top of the set-up log (the
    stand-in for a hosted label, the network in use). `clean_up_s` is what `always()` steps have after a cancellation,
    in seconds. `cache_dir` is a folder of the user's for trees and actions; empty: nothing is kept between jobs.
    `own_machine` is `runyard run` on one's own machine, False on a worker or runner (deviation D7). `node` maps
    `node20` and `node24` to a path inside; a name that is missing is looked for on the image's PATH. `services` is the
    factory of what the job may call, as `module:function` (see `engine.services`); empty: nothing. `artifacts_dir` is a
    folder in which finished artifacts appear as files. `nodes` are nodes of this machine that may fit, tried before the
    image's own; `libc` is the image's, "" where it has to be asked. `policy` is this machine's own: what the claim's
    allows too is allowed. `remotes` says where actions come from, `action_pins` what a lock file makes of references.
    `tools` is a tool cache of this machine, shown below the job's own layer; empty: there is none. `stores` are
    what is kept from one job to the next. `collect_dir` is
    where what a pipeline declares as artifacts becomes a tar each, `collect_limit` the bytes of all of them.
    """

    sandbox: str = "bubblewrap"
    known: bytes = b""
    image: str = "host"
    network: NetworkLevel = "none"
    cache_dir: str = ""
    runner_name: str = "runyard"
    runner_environment: str = "self-hosted"
    runner_env: dict[str, str] = {}
    header: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    keep: bool = False
    pause_on_failure: bool = False
    native: bool = True
    offline: bool = False
    clean_up_s: float = 300.0
    own_machine: bool = True
    node: dict[str, str] = {}
    owner: str = ""
    services: str = ""
    artifacts_dir: str = ""
    nodes: tuple[PlacedNode, ...] = ()
    libc: str = ""
    policy: Policy | None = None
    remotes: Remotes = Remotes()
    action_pins: dict[str, str] | None = None
    hooks: HookFiles = HookFiles()
    tools: str = ""
    stores: StoreSettings = StoreSettings()
    collect_dir: str = ""
    collect_limit: int = 2 << 30


class Hand(msgspec.Struct, frozen=True, tag="hand"):
    """The one hand-out, first of all frames down. It holds a Claim, so it is never stored or printed."""

    claim: Claim
    settings: JobSettings

    def __repr__(self) -> str:
        return f"Hand({self.claim!r})"


class Decide(msgspec.Struct, frozen=True, tag="decide"):
    """What a person chose at a paused step."""

    action: PauseAction


class OpenTerminal(msgspec.Struct, frozen=True, tag="open_terminal"):
    """Start a shell under the paused step's exact environment."""

    rows: int
    columns: int


class TerminalInput(msgspec.Struct, frozen=True, tag="terminal_input"):
    """Keys for the shell."""

    data: bytes


class Release(msgspec.Struct, frozen=True, tag="release"):
    """A kept sandbox may go."""


class Extend(msgspec.Struct, frozen=True, tag="extend"):
    """The lease is good until this second of the clock since boot, sleep included; then the job ends itself."""

    until_s: float


class Repository(msgspec.Struct, frozen=True, tag="repository"):
    """The answer to NeedRepository: a git folder of this machine, or why there is none."""

    git_dir: str = ""
    problem: str = ""


class Masks(msgspec.Struct, frozen=True, tag="masks"):
    """Values that the job asked to hide, before the events that follow. No repr: they are secret."""

    values: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<Masks, {len(self.values)}>"


class NeedRepository(msgspec.Struct, frozen=True, tag="need_repository"):
    """A checkout step wants the run's repository, so many commits deep; 0 is the whole history."""

    depth: int


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """The job process's loop turns."""


class Paused(msgspec.Struct, frozen=True, tag="paused"):
    """A step failed and waits for a Decide. `command` is its script or reference, masked."""

    step: int
    name: str
    reason: str
    command: str = ""


class TerminalOutput(msgspec.Struct, frozen=True, tag="terminal_output"):
    """Bytes of the shell for the person's terminal; unmasked, since nobody else sees them."""

    data: bytes


class TerminalEnded(msgspec.Struct, frozen=True, tag="terminal_ended"):
    """The shell ended; `problem` says why it could not start."""

    code: int = 0
    problem: str = ""


class Kept(msgspec.Struct, frozen=True, tag="kept"):
    """The sandbox of a failed job stays until a Release or the end of the parent. `enter` is a command line."""

    enter: str


class Gone(msgspec.Struct, frozen=True, tag="gone"):
    """The job process ends without a result, since its lease was lost: another attempt may run."""

    reason: str = ""


Down: TypeAlias = (
    Hand | Cancel | Drain | Pause | LeaseLost | Decide | OpenTerminal | TerminalInput | Release | Extend | Repository
)
Up: TypeAlias = JobEvent | Alive | Paused | TerminalOutput | TerminalEnded | Kept | Gone | Masks | NeedRepository

_encoder = msgspec.msgpack.Encoder()


def down_decoder() -> msgspec.msgpack.Decoder[Down]:
    """For the job process. Made on demand: each side needs one of the two, and they take milliseconds."""
    return msgspec.msgpack.Decoder(Down)


def up_decoder() -> msgspec.msgpack.Decoder[Up]:
    """For the parent."""
    return msgspec.msgpack.Decoder(Up)


def frame(message: object) -> bytes:
    """One message with its length before it."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Cuts received bytes into whole frames. A length beyond LARGEST_FRAME is a ValueError: the stream is lost then."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[Any]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Every message that is whole now."""
        self._buffer += data
        start = 0
        view = memoryview(self._buffer)
        messages = []
        try:
            while len(view) - start >= 4:
                (length,) = _LENGTH.unpack_from(view, start)
                if length > LARGEST_FRAME:
                    raise ValueError(f"a frame of {length} bytes")
                if len(view) - start - 4 < length:
                    break
                messages.append(self._decoder.decode(view[start + 4 : start + 4 + length]))
                start += 4 + length
        finally:
            view.release()
        del self._buffer[:start]
        return iter(messages)
