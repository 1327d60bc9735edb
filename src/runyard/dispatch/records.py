"""What dispatch knows: the rows its decisions are made from. Data only: stores keep it, `life` and `choose` read it.

Times are int64 nanoseconds of the store's clock (the database's, so replicas agree); durations are seconds.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from runyard.job import Conclusion

Phase: TypeAlias = Literal["waiting", "queued", "reserved", "leased", "running", "cancelling", "done"]

Hold: TypeAlias = Literal["needs", "concurrency", "approval", "vault", "limit"]
"""Why a waiting job is not in the queue yet."""

LeaseKind: TypeAlias = Literal["dialout", "runner"]


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
    window: int = 64
    poison_after: int = 3
    """Hand-outs that were never confirmed, one after the other, before a job is ended as unservable."""
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


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job of one run, as the queue sees it.

    `attempt` is the number of hand-outs so far: the fence. `lost` counts the attempts that were lost, `unconfirmed`
    the hand-outs in a row nobody confirmed. `platform` None means any. `priority`: higher goes first. `order_number`
    is the number of the last order given in this lease. `result` is the digest of the accepted result's body.
    """

    id: str
    run_id: str
    key: str
    repository: str
    sequence: int
    created_ns: int
    phase: Phase = "waiting"
    holds: frozenset[Hold] = frozenset()
    platform: str | None = None
    labels: frozenset[str] = frozenset()
    requires: frozenset[str] = frozenset()
    pool: str | None = None
    group: str | None = None
    trust: Literal["trusted", "untrusted"] = "trusted"
    kind: Literal["job", "publish"] = "job"
    priority: int = 0
    disk_mb: int | None = None
    retry_lost: int = 1
    attempt: int = 0
    lost: int = 0
    unconfirmed: int = 0
    queued_ns: int = 0
    lease: Lease | None = None
    reserved_for: str | None = None
    reserved_until_ns: int = 0
    cancel_until_ns: int = 0
    cancel_forced: bool = False
    order_number: int = 0
    conclusion: Conclusion | None = None
    reason: str | None = None
    reason_code: str | None = None
    result: str | None = None
    ended_ns: int = 0


class Worker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker's last word about itself: what a claim or a heartbeat said. `id` is the token's, `name` only a label."""

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
