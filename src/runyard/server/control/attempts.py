"""What a worker says about a job it holds: heartbeat, events, masks, result, hand-back. Each call carries its fence."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.dispatch import happenings as happened
from runyard.dispatch.life import SECOND_NS, lease_s
from runyard.job.dialout import NumberedOrder
from runyard.server.control.codec import decode_order
from runyard.server.control.driver import Driver
from runyard.server.control.rules import Refused
from runyard.server.store.port import Topic
from runyard.server.store.rows import EventRow, MaskRow, ResultRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from runyard.dispatch.records import Job
    from runyard.job import JobFinished
    from runyard.server.control.rules import Rules
    from runyard.server.store.port import Transaction


PRESENCE_NS: Final = 2 * SECOND_NS
"""A worker that was seen so short a time ago need not be noted again."""


class Call(msgspec.Struct, frozen=True):
    """The fence of every call about a job, and whose token it came with."""

    job: str
    attempt: int
    lease: str
    worker: str


class Beaten(msgspec.Struct, frozen=True):
    """The lease is good for so many seconds from now; orders that were not seen yet."""

    expires_in_s: float
    orders: tuple[NumberedOrder, ...] = ()


class EventsTaken(msgspec.Struct, frozen=True):
    """The number of the next event that is wanted."""

    next: int


class ResultTaken(msgspec.Struct, frozen=True):
    """The result is durable; `repeated`: it was before."""

    repeated: bool


# --- the lease


def _at(tx: Transaction, call: Call) -> Job | Refused:
    """The job of a call whose fence holds; a job that is over is left to its life to judge."""
    job = tx.job(call.job)
    if job is None:
        return Refused("job.unknown", f"there is no job {call.job}")
    if job.lease is not None and job.attempt == call.attempt and job.lease.worker != call.worker:
        return Refused("lease.over", f"attempt {call.attempt} is another worker's")
    return job


def check_fence(tx: Transaction, call: Call) -> Job | Refused:
    """The job, where the caller holds its lease: before log bytes, checkout or artifacts. Writes nothing."""
    job = _at(tx, call)
    if isinstance(job, Refused):
        return job
    if job.lease is None or (job.attempt, job.lease.id) != (call.attempt, call.lease):
        return Refused("lease.over", f"attempt {call.attempt} holds no lease: the job is {job.phase}")
    return job


def heartbeat(
    tx: Transaction,
    rules: Rules,
    call: Call,
    seen: int = 0,
    *,
    phase: str = "",
    disk_free_mb: int | None = None,
) -> Beaten | Refused:
    """Extends the lease from now; the orders after `seen`, again and again until they were seen."""
    job = _at(tx, call)
    if isinstance(job, Refused):
        return job
    driver = Driver(tx, rules)
    step = driver.happen(job, happened.Beat(call.attempt, call.lease, seen))
    if step.refused is not None:
        return Refused(step.refused.code, step.refused.message)
    _seen_alive(tx, call.worker, disk_free_mb)
    _confirmed(tx, call, phase)
    driver.settle()
    if step.job.seen > job.seen:
        tx.delete_orders(call.job, call.attempt, step.job.seen)
    orders = tx.orders(call.job, call.attempt, step.job.seen)
    assert step.job.lease is not None
    return Beaten(
        lease_s(step.job.lease.kind, rules.settings),
        tuple(NumberedOrder(row.number, decode_order(row.order)) for row in orders),
    )


def _seen_alive(tx: Transaction, worker_id: str, disk_free_mb: int | None = None) -> None:
    worker = tx.worker(worker_id)
    if worker is None:
        return
    disk = worker.disk_free_mb if disk_free_mb is None else disk_free_mb
    if abs(tx.now_ns() - worker.seen_ns) > PRESENCE_NS or disk != worker.disk_free_mb:
        tx.save_worker(msgspec.structs.replace(worker, seen_ns=tx.now_ns(), disk_free_mb=disk))


def _confirmed(tx: Transaction, call: Call, phase: str = "") -> None:
    row = tx.attempt(call.job, call.attempt)
    if row is not None and (row.confirmed_ns == 0 or (phase and row.phase != phase)):
        row = msgspec.structs.replace(row, confirmed_ns=row.confirmed_ns or tx.now_ns(), phase=phase or row.phase)
        tx.save_attempt(row)


def accept_events(
    tx: Transaction, rules: Rules, call: Call, first: int, events: Sequence[bytes]
) -> EventsTaken | Refused:
    """Encoded events in order, `first` the number of the first. What is there already is skipped; a gap is refused."""
    job = check_fence(tx, call)
    if isinstance(job, Refused):
        return job
    row = tx.attempt(call.job, call.attempt)
    assert row is not None
    if first > row.events:
        return Refused("gap", f"events are missing before number {first}", expected=row.events)
    fresh = list(events)[row.events - first :]
    driver = Driver(tx, rules)
    if fresh or row.events:
        driver.happen(job, happened.Began(call.attempt, call.lease))
    else:
        driver.happen(job, happened.Beat(call.attempt, call.lease))
    if fresh:
        tx.insert_events(call.job, call.attempt, [EventRow(row.events + at, each) for at, each in enumerate(fresh)])
        tx.wake(Topic.of_job(call.job))
    row = msgspec.structs.replace(row, events=row.events + len(fresh), confirmed_ns=row.confirmed_ns or tx.now_ns())
    tx.save_attempt(row)
    driver.settle()
    return EventsTaken(row.events)


def add_masks(tx: Transaction, rules: Rules, call: Call, values: Iterable[str]) -> tuple[str, ...] | Refused:
    """More values to hide in this attempt's bytes; all of them now. One sealed row an attempt; safe to repeat."""
    job = check_fence(tx, call)
    if isinstance(job, Refused):
        return job
    before = read_masks(tx, rules, call.job, call.attempt)
    after = tuple(dict.fromkeys((*before, *values)))
    if after != before:
        sealed = rules.vault.seal(msgspec.msgpack.encode(after))
        tx.save_masks(MaskRow(call.job, call.attempt, sealed, len(after)))
    return after


def read_masks(tx: Transaction, rules: Rules, job_id: str, attempt: int) -> tuple[str, ...]:
    """The values to hide in an attempt's bytes."""
    row = tx.masks(job_id, attempt)
    return () if row is None else msgspec.msgpack.decode(rules.vault.unseal(row.values_sealed), type=tuple[str, ...])


# --- the end


def take_result(tx: Transaction, rules: Rules, call: Call, body: bytes, finished: JobFinished) -> ResultTaken | Refused:
    """The result of an attempt: once, and with it what the run does next. The same body again is accepted again."""
    job = _at(tx, call)
    if isinstance(job, Refused):
        return job
    digest = hashlib.sha256(body).hexdigest()
    driver = Driver(tx, rules)
    result = happened.Result(
        call.attempt, call.lease, digest, finished.conclusion, finished.reason, finished.reason_code
    )
    step = driver.happen(job, result, finished.outputs)
    if step.refused is not None:
        return Refused(step.refused.code, step.refused.message)
    if not step.repeated:
        tx.insert_result(ResultRow(call.job, call.attempt, digest, body, tx.now_ns()))
    _seen_alive(tx, call.worker)
    driver.settle()
    return ResultTaken(step.repeated)


def hand_back(tx: Transaction, rules: Rules, call: Call, reason: str, *, counted: bool = False) -> Refused | None:
    """The worker gives the job back: to the queue, or (`counted`, steps have run) as lost. None when it is done."""
    job = _at(tx, call)
    if isinstance(job, Refused):
        return job
    row = tx.attempt(call.job, call.attempt)
    if row is not None and row.ending == "handed_back" and row.lease == call.lease:
        return None
    driver = Driver(tx, rules)
    step = driver.happen(job, happened.HandedBack(call.attempt, call.lease, reason, counted))
    if step.refused is not None:
        return Refused(step.refused.code, step.refused.message)
    _seen_alive(tx, call.worker)
    driver.settle()
    return None
