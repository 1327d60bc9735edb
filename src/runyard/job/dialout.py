"""The dial-out protocol's messages: what a worker and a server say to each other over HTTP, under `/-/worker/`.

Bodies are JSON unless said otherwise. Unknown fields are ignored by both sides, unknown tags are refused. Deadlines are
durations in seconds, so clocks needn't agree; `time_ns` is int64 nanoseconds UTC and only shown. Every call carries
`Authorization: Bearer TOKEN` of the worker; every call about a job also carries the two headers below, and gets 409
with a `Refusal` when that lease is over: the worker then ends the sandbox at once.

    call                                    body                     answer
    POST claim                              ClaimRequest             200 ClaimAnswer, or 204
    POST jobs/{id}/heartbeat?wait=S         Heartbeat                200 HeartbeatAnswer, early when there are orders
    GET  jobs/{id}/checkout?depth=N         –                        200/206 a tar (zstd by Accept-Encoding), ETag
    POST jobs/{id}/masks                    MaskValues               204; sent before the bytes that follow
    POST jobs/{id}/log?step&offset&kind&time_ns   bytes              200 LogAnswer; a gap: 416 with the expected offset
    POST jobs/{id}/steps                    Events                   200 EventsAnswer; a gap: 416 likewise
    PUT  jobs/{id}/artifacts/{name}         one tar                  200 StoredArtifact
    POST jobs/{id}/result                   JobFinished              200 ResultAnswer; the same body again: the same
    POST jobs/{id}/handback                 HandBack                 204; the job goes back to the queue

**The checkout** is a bare git repository as a tar: `HEAD`, `config`, `objects/pack/*`, `shallow`, `packed-refs`, with
relative names, regular files and folders only. It holds the commit of the claim's `checkout`, which no ref needs to
name, shallow at `depth` commits (1 by default; 0 is the whole history with all branches and tags). The worker makes the
tree and its `.git` of it, so git inside the job works as it does after the original action. The ETag is strong and
differs for each encoding; a Range counts bytes of the encoded tar and comes with If-Range, so the same ETag always
stands for the same bytes. 404 with a Problem: the job has no repository.

**The log** of a step goes up as application/octet-stream in order of offsets; offsets count all kinds of a step. The
step's StepStarted is sent before its first bytes. **401 and 403** on a call about a job end it as 409 does.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from runyard.job.claim import Claim
from runyard.job.event import (
    Annotation,
    Artifact,
    JobStarted,
    Output,
    Refusal,
    StepFinished,
    StepStarted,
    Summary,
)
from runyard.job.order import Order

PREFIX = "/-/worker"
LEASE_HEADER = "Runyard-Lease"
ATTEMPT_HEADER = "Runyard-Attempt"
PROTOCOL = 1
"""The protocol's number; a server takes the last two. Sent as `protocol` in a ClaimRequest."""

Feature: TypeAlias = Literal["containers", "services", "build", "tty", "warm", "emulate", "pause", "publish"]
"""What a worker may say of itself in `features`, and a JobSpec may ask for in `requires`."""


class Held(msgspec.Struct, frozen=True):
    """A job that the worker still holds; the server answers an unknown one with LeaseLost on its heartbeat."""

    job: str
    attempt: int
    lease_id: str


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One long poll for a job. `claim_id` makes a repeat harmless: the same id gets the same hand-out while it lives.

    `name` is a label, never a credential. `emulates` are proven platforms. Disk is in MiB: free now, and what the
    worker could free. `images` maps a label to the image behind it, for the log's header. `wait_s` is at most 55.
    """

    claim_id: str
    name: str
    platform: str
    version: str
    protocol: int = PROTOCOL
    emulates: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    slots: int = 1
    free: int = 1
    disk_free_mb: int | None = None
    disk_reclaimable_mb: int | None = None
    sandbox: str = ""
    publish: tuple[str, ...] = ()
    holds: tuple[Held, ...] = ()
    draining: bool = False
    wait_s: float = 55.0


class ClaimAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A hand-out. `heartbeat_s` is how often the lease wants a sign; `confirm_s` how soon the first one."""

    claim: Claim
    heartbeat_s: float = 30.0
    confirm_s: float = 30.0
    features: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<ClaimAnswer {self.claim!r}>"


class NumberedOrder(msgspec.Struct, frozen=True):
    """An order with its number in the lease, from 1; it is repeated until a heartbeat says it was seen."""

    number: int
    order: Order


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sign of life. `seen` is the number of the last order carried out; `phase` what the page may show."""

    seen: int = 0
    phase: str = ""
    disk_free_mb: int | None = None
    disk_peak_mb: int | None = None


class HeartbeatAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The lease is good for `expires_in_s` from the moment the server took the heartbeat."""

    expires_in_s: float
    orders: tuple[NumberedOrder, ...] = ()


class MaskValues(msgspec.Struct, frozen=True):
    """Values that the job asked to hide. No repr: they are secret."""

    values: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<MaskValues, {len(self.values)}>"


class LogAnswer(msgspec.Struct, frozen=True):
    """Where the next byte of this step goes: what the server has received, in bytes."""

    offset: int


LifeEvent: TypeAlias = JobStarted | StepStarted | Annotation | Output | Summary | StepFinished | Refusal | Artifact
"""The events that travel in Events; log bytes and the job's end have calls of their own."""


class Events(msgspec.Struct, frozen=True):
    """Events in order; `first` is the number of the first one in this attempt, from 0. A replay is harmless."""

    first: int
    events: tuple[LifeEvent, ...]


class EventsAnswer(msgspec.Struct, frozen=True):
    """The number of the next event the server wants."""

    next: int


class StoredArtifact(msgspec.Struct, frozen=True):
    """What was stored, in bytes: exactly this is charged to the budget."""

    name: str
    size: int
    digest: str


class ResultAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result is durable. `repeated`: it was there already."""

    accepted: bool = True
    repeated: bool = False


class HandBack(msgspec.Struct, frozen=True, omit_defaults=True):
    """The worker gives the job back; `counted`: the attempt counts as lost (it had run a step)."""

    reason: str
    counted: bool = False


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of every answer of 400 and above. `expected` is the offset or number that a 416 wants."""

    code: str
    message: str
    remedy: str = ""
    expected: int | None = None
