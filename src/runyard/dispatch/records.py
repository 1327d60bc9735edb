"""What dispatch knows: the rows its decisions are made from. Data only: stores keep it, `life` and `choose` read it.

Times are int64 nanoseconds of the store's clock (the database's, so replicas agree); durations are seconds.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Literal, TypeAlias

import msgspec

from runyard.job import Conclusion

Phase: TypeAlias = Literal["waiting", "queued", "reserved", "leased", "running", "cancelling", "done"]

OPEN: frozenset[Phase] = frozenset({"queued", "reserved"})
"""A worker may take it."""

LIVE: frozenset[Phase] = frozenset({"leased", "running", "cancelling"})
"""It holds a lease, and counts against every bound."""

Hold: TypeAlias = Literal["needs", "concurrency", "approval", "vault", "limit"]
"""Why a waiting job is not in the queue yet."""

LeaseKind: TypeAlias = Literal["dialout", "runner"]

Trust: TypeAlias = Literal["trusted", "untrusted"]


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Durations in seconds and bounds; the defaults are the ones the architecture page states, all settable."""

    poll_s: float = 55.0
    heartbeat_s: float = 30.0
    confirm_s: float = 30.0
    dialout_lease_s: float = 120.0
    runner_lease_s: float = 600.0
    presence_s: float = 300.0
    late_s: float = 85.0
    cancel_s: float = 300.0
    force_s: float = 15.0
    """How long a forced cancel waits for the holder's word."""
    ageing_s: float = 600.0
    """How long a job waits to be worth one step of priority more."""
    window: int = 64
    poison_after: int = 3
    """Hand-outs that were never confirmed, by so many workers, before a job is ended as unservable."""
    poison_total: int = 9
    """The same on whatever workers."""
    max_concurrent: int | None = None


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The right to execute one attempt. `id` is unguessable; `confirmed` from the first sign of the holder on."""

    id: str
    kind: LeaseKind
    worker: str
    worker_name: str
    since_ns: int
    until_ns: int
    confirmed: bool = False


class JobClass(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that decides whether a worker may take a job, save the job's own place in the queue and its past.

    Jobs of one class are equal to a worker, so a claim looks at the first ones of each class, however many wait.
    """

    repository: str
    platform: str | None = None
    labels: frozenset[str] = frozenset()
    requires: frozenset[str] = frozenset()
    pool: str | None = None
    group: str | None = None
    trust: Trust = "trusted"
    kind: Literal["job", "publish"] = "job"
    disk_mb: int | None = None

    @property
    def id(self) -> str:
        """32 hex digits of the content: equal classes have equal ids, on every replica."""
        return _class_id(self)


@lru_cache(maxsize=4096)
def _class_id(of: JobClass) -> str:
    return hashlib.sha256(msgspec.json.encode(of, order="deterministic")).hexdigest()[:32]


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job of one run, as the queue sees it.

    `attempt` is the number of hand-outs so far: the fence. `lost` counts the attempts that were lost, `unconfirmed`
    the hand-outs in a row nobody confirmed, `avoid` the workers that did either. `of` is its class; `class_id` the
    class's id. `priority`: higher goes first; `rank` is the place that priority and ageing give, lower goes first, and
    `sequence` decides between equals. `order_number` is the number of the last order given in this lease, `seen` of
    the last one carried out. `due_ns` is when the next thing happens by itself (0: nothing). `result` is the digest of
    the accepted result's body.
    """

    id: str
    run_id: str
    key: str
    sequence: int
    created_ns: int
    of: JobClass
    class_id: str
    phase: Phase = "waiting"
    holds: frozenset[Hold] = frozenset()
    priority: int = 0
    rank: int = 0
    retry_lost: int = 1
    attempt: int = 0
    lost: int = 0
    unconfirmed: int = 0
    avoid: frozenset[str] = frozenset()
    queued_ns: int = 0
    lease: Lease | None = None
    reserved_for: str | None = None
    due_ns: int = 0
    cancel_until_ns: int = 0
    cancel_forced: bool = False
    order_number: int = 0
    seen: int = 0
    conclusion: Conclusion | None = None
    reason: str | None = None
    reason_code: str | None = None
    result: str | None = None
    ended_ns: int = 0

    @property
    def repository(self) -> str:
        """Whose job it is; what is fair is decided by it."""
        return self.of.repository


class Worker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker's last word about itself: what a claim or a heartbeat said. `id` is the token's, `name` only a label.

    `draining` is its own word, `drained` an administrator's: either way it takes no more.
    """

    id: str
    name: str
    platform: str
    version: str = ""
    emulates: frozenset[str] = frozenset()
    labels: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()
    pools: frozenset[str] = frozenset()
    slots: int = 1
    free: int = 1
    disk_free_mb: int | None = None
    disk_reclaimable_mb: int | None = None
    max_concurrent: int | None = None
    trust: Literal["trusted", "untrusted", "any"] = "any"
    publish: frozenset[str] = frozenset()
    draining: bool = False
    drained: bool = False
    connected_ns: int = 0
    seen_ns: int = 0


class Counts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Jobs that hold a lease now, by what limits count them."""

    total: int = 0
    by_repository: dict[str, int] = {}
    by_group: dict[str, int] = {}
    by_worker: dict[str, int] = {}
    by_pool: dict[str, int] = {}


class Bounds(msgspec.Struct, frozen=True, omit_defaults=True):
    """`max_concurrent` of each; a missing one is no bound."""

    server: int | None = None
    repositories: dict[str, int] = {}
    groups: dict[str, int] = {}
    pools: dict[str, int] = {}


class Stride(msgspec.Struct, frozen=True, omit_defaults=True):
    """How much a repository has had: `at` grows with each hand-out by 1 over its weight; the lowest goes first."""

    repository: str
    at: float = 0.0
    weight: float = 1.0
