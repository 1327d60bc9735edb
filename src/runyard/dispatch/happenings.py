"""What can happen to a job, and what follows: the two vocabularies of `life.advance`."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from runyard.dispatch.records import Hold, Job, Lease
from runyard.job import Conclusion, Order


class Cleared(msgspec.Struct, frozen=True, tag="cleared"):
    """A hold is gone; without any left the job is queued."""

    hold: Hold


class Held(msgspec.Struct, frozen=True, tag="held"):
    """Something it needs is gone again (a vault was locked before anybody took the job)."""

    hold: Hold


class Dropped(msgspec.Struct, frozen=True, tag="dropped", omit_defaults=True):
    """It ends without being executed: its condition is false, its secrets have no value, nobody can serve it."""

    conclusion: Conclusion
    reason: str
    reason_code: str
    unserved: bool = False


class Offered(msgspec.Struct, frozen=True, tag="offered"):
    """Set aside for a pool until then."""

    pool: str
    until_ns: int


class Withdrawn(msgspec.Struct, frozen=True, tag="withdrawn"):
    """The pool won't take it: ill, full, removed."""

    reason: str


class Claimed(msgspec.Struct, frozen=True, tag="claimed"):
    """A worker takes it."""

    lease: Lease


class Beat(msgspec.Struct, frozen=True, tag="beat", omit_defaults=True):
    """A sign of life of the holder; `seen` is the last order it carried out."""

    attempt: int
    lease: str
    seen: int = 0


class Began(msgspec.Struct, frozen=True, tag="began"):
    """The first event of the attempt."""

    attempt: int
    lease: str


class Extended(msgspec.Struct, frozen=True, tag="extended"):
    """The server will be away: the holder need not be heard before then."""

    until_ns: int


class Ordered(msgspec.Struct, frozen=True, tag="ordered"):
    """Something else to tell the holder: drain, pause."""

    order: Order


class CancelWanted(msgspec.Struct, frozen=True, tag="cancel", omit_defaults=True):
    """Somebody or something wants it to end: with grace, or (`force`) at once."""

    reason: str
    reason_code: str = "cancelled_by_user"
    force: bool = False


class HandedBack(msgspec.Struct, frozen=True, tag="handed_back", omit_defaults=True):
    """The holder gives it back; `counted`: steps have run, so it is lost and not merely returned."""

    attempt: int
    lease: str
    reason: str
    counted: bool = False


class Result(msgspec.Struct, frozen=True, tag="result", omit_defaults=True):
    """The holder's result; `digest` is its body's."""

    attempt: int
    lease: str
    digest: str
    conclusion: Conclusion
    reason: str | None = None
    reason_code: str | None = None


class Passed(msgspec.Struct, frozen=True, tag="passed"):
    """Time went by; it matters where something is due."""


Happening: TypeAlias = (
    Cleared
    | Held
    | Dropped
    | Offered
    | Withdrawn
    | Claimed
    | Beat
    | Began
    | Extended
    | Ordered
    | CancelWanted
    | HandedBack
    | Result
    | Passed
)


# --- what follows


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """A worker may take it now: wake who waits for its class."""


class AttemptEnded(msgspec.Struct, frozen=True, tag="attempt_ended"):
    """Attempt `number` is closed, and its token with it."""

    number: int
    ending: Literal["unconfirmed", "lost", "handed_back", "finished", "cancelled"]
    reason: str


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """It executes: tell the run."""


class OrderGiven(msgspec.Struct, frozen=True, tag="order_given"):
    """Order `number` of this lease is to be delivered, and repeated until it was seen."""

    number: int
    order: Order


class Ended(msgspec.Struct, frozen=True, tag="ended", omit_defaults=True):
    """It is over: tell the run. `unserved` says nothing about its siblings."""

    conclusion: Conclusion
    reason: str | None = None
    reason_code: str | None = None
    unserved: bool = False


Effect: TypeAlias = Opened | AttemptEnded | Begun | OrderGiven | Ended


class Refusal(msgspec.Struct, frozen=True):
    """Why a happening changes nothing: `lease.over`, `result.other`, `job.phase`, `job.not_due`."""

    code: Literal["lease.over", "result.other", "job.phase", "job.not_due"]
    message: str


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """The job after a happening, and what follows. With `refused` nothing changed; `repeated`: it had happened."""

    job: Job
    effects: tuple[Effect, ...] = ()
    refused: Refusal | None = None
    repeated: bool = False
