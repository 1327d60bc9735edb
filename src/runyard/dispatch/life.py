"""The life of a job: one table, and `advance`, which obeys it.

TABLE says for a phase, a happening and a case which phase follows; what isn't in it is refused and changes nothing. The
case is what the happening found (`case_of`): a lease nobody confirmed, a job that may be lost once more. The store
writes what `advance` returns over the row it was read from; the test machine walks the table; the docs draw it.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from runyard.dispatch.happenings import (
    AttemptEnded,
    Beat,
    Began,
    Begun,
    CancelWanted,
    Claimed,
    Cleared,
    Dropped,
    Effect,
    Ended,
    Extended,
    HandedBack,
    Happening,
    Held,
    Offered,
    Opened,
    Ordered,
    OrderGiven,
    Passed,
    Refusal,
    Result,
    Step,
    Withdrawn,
)
from runyard.dispatch.records import Job, Lease, LeaseKind, Phase, Settings
from runyard.job import Cancel

Row = TypeVar("Row", Job, Lease)
SECOND_NS: Final = 1_000_000_000
CANCEL_REASON: Final = "It did not answer the cancellation in time."

Transition: TypeAlias = tuple[Phase, type[Happening], str, Phase]

TABLE: Final[tuple[Transition, ...]] = (
    # from        happening      case            to
    ("waiting", Cleared, "others hold it", "waiting"),
    ("waiting", Cleared, "last hold", "queued"),
    ("waiting", Dropped, "", "done"),
    ("waiting", CancelWanted, "", "done"),
    ("queued", Held, "", "waiting"),
    ("queued", Dropped, "", "done"),
    ("queued", CancelWanted, "", "done"),
    ("queued", Offered, "", "reserved"),
    ("queued", Claimed, "", "leased"),
    ("reserved", Held, "", "waiting"),
    ("reserved", Dropped, "", "done"),
    ("reserved", CancelWanted, "", "done"),
    ("reserved", Withdrawn, "", "queued"),
    ("reserved", Passed, "", "queued"),
    ("reserved", Claimed, "", "leased"),
    ("leased", Beat, "", "leased"),
    ("leased", Began, "", "running"),
    ("leased", Extended, "", "leased"),
    ("leased", Ordered, "", "leased"),
    ("leased", CancelWanted, "", "cancelling"),
    ("leased", HandedBack, "returned", "queued"),
    ("leased", HandedBack, "lost, repeated", "queued"),
    ("leased", HandedBack, "lost", "done"),
    ("leased", Result, "", "done"),
    ("leased", Passed, "never confirmed", "queued"),
    ("leased", Passed, "poison", "done"),
    ("leased", Passed, "lost, repeated", "queued"),
    ("leased", Passed, "lost", "done"),
    ("running", Beat, "", "running"),
    ("running", Began, "", "running"),
    ("running", Extended, "", "running"),
    ("running", Ordered, "", "running"),
    ("running", CancelWanted, "", "cancelling"),
    ("running", HandedBack, "returned", "queued"),
    ("running", HandedBack, "lost, repeated", "queued"),
    ("running", HandedBack, "lost", "done"),
    ("running", Result, "", "done"),
    ("running", Passed, "lost, repeated", "queued"),
    ("running", Passed, "lost", "done"),
    ("cancelling", Beat, "", "cancelling"),
    ("cancelling", Began, "", "cancelling"),
    ("cancelling", Extended, "", "cancelling"),
    ("cancelling", CancelWanted, "by force", "cancelling"),
    ("cancelling", CancelWanted, "again", "cancelling"),
    ("cancelling", HandedBack, "", "done"),
    ("cancelling", Result, "", "done"),
    ("cancelling", Passed, "", "done"),
    ("done", Result, "same body", "done"),
)
"""Phase, happening and case to the next phase. A case is part of the key: each answers one question `case_of` asks."""

_NEXT: Final = {(phase, happening, case): to for phase, happening, case, to in TABLE}


def lease_s(kind: LeaseKind, settings: Settings) -> float:
    """How long a lease of that kind is good for without a sign of its holder, in seconds."""
    return settings.dialout_lease_s if kind == "dialout" else settings.runner_lease_s


class _Moment(NamedTuple):
    now_ns: int
    settings: Settings

    def after(self, seconds: float) -> int:
        return self.now_ns + round(seconds * SECOND_NS)


def created(job: Job, now_ns: int, settings: Settings) -> Job:
    """The beginning of a life: without holds a new job is queued at once, with some it waits."""
    return job if job.holds else _queue(job, _Moment(now_ns, settings))


def advance(job: Job, happening: Happening, now_ns: int, settings: Settings) -> Step:
    """The job after `happening`, and what follows from it; a refusal where it can't happen.

    Pure; equal arguments give an equal answer. Who calls writes the job over the one it read, and then carries the
    effects out in their order.
    """
    refusal = _fenced(job, happening)
    if refusal is not None:
        return Step(job, refused=refusal)
    if isinstance(happening, Passed) and (job.due_ns == 0 or now_ns < job.due_ns):
        return Step(job, refused=Refusal("job.not_due", "nothing is due"))
    case = case_of(job, happening, settings)
    to = _NEXT.get((job.phase, type(happening), case))
    if to is None:
        return Step(job, refused=_refusal(job, happening))
    if job.phase == "done":
        return Step(job, repeated=True)
    return _carried_out(job, happening, case, to, _Moment(now_ns, settings))


def case_of(job: Job, happening: Happening, settings: Settings) -> str:
    """Which of the table's cases a happening is, for this job."""
    match happening:
        case Cleared(hold) if job.phase == "waiting":
            return "others hold it" if job.holds - {hold} else "last hold"
        case HandedBack(counted=counted) if job.phase in ("leased", "running"):
            if not counted:
                return "returned"
            return "lost, repeated" if job.lost < job.retry_lost else "lost"
        case Passed() if job.phase in ("leased", "running"):
            if job.phase == "leased" and job.lease is not None and not job.lease.confirmed:
                return "poison" if _is_poison(job, settings) else "never confirmed"
            return "lost, repeated" if job.lost < job.retry_lost else "lost"
        case CancelWanted(force=force) if job.phase == "cancelling":
            return "by force" if force and not job.cancel_forced else "again"
        case Result(digest=digest) if job.phase == "done":
            return "same body" if digest == job.result else "other body"
        case _:
            return ""


def _is_poison(job: Job, settings: Settings) -> bool:
    assert job.lease is not None
    tries = job.unconfirmed + 1
    workers = len(job.avoid | {job.lease.worker})
    return min(tries, workers) >= settings.poison_after or tries >= settings.poison_total


# --- fences and refusals


def _fenced(job: Job, happening: Happening) -> Refusal | None:
    """Whoever names an attempt must hold it; after the end only the repetition of the result is heard."""
    if not isinstance(happening, (Beat, Began, HandedBack, Result)):
        return None
    if happening.attempt < job.attempt:
        return Refusal("lease.over", f"attempt {happening.attempt} is over: attempt {job.attempt} was handed out")
    if job.phase == "done" and isinstance(happening, Result):
        return None
    if job.lease is None or (job.attempt, job.lease.id) != (happening.attempt, happening.lease):
        return Refusal("lease.over", f"attempt {happening.attempt} holds no lease: the job is {job.phase}")
    return None


def _refusal(job: Job, happening: Happening) -> Refusal:
    if isinstance(happening, Result):
        said = "with another result" if job.result is not None else "without a result of this attempt"
        return Refusal("result.other", f"the job ended {said}")
    return Refusal("job.phase", f"a job that is {job.phase} can't be {_name(happening)}")


def _name(happening: Happening) -> str:
    return str(type(happening).__struct_config__.tag).replace("_", " ")


# --- what changes


def _carried_out(job: Job, happening: Happening, case: str, to: Phase, at: _Moment) -> Step:
    match happening:
        case Cleared(hold):
            job = _with(job, holds=job.holds - {hold})
            return _open(job, at) if to == "queued" else Step(job)
        case Held(hold):
            return Step(_with(job, phase=to, holds=job.holds | {hold}, reserved_for=None, due_ns=0))
        case Dropped(conclusion, reason, code, unserved):
            return _end(job, Ended(conclusion, reason, code, unserved), at)
        case Offered(pool, until_ns):
            return Step(_with(job, phase=to, reserved_for=pool, due_ns=until_ns), (Opened(),))
        case Withdrawn():
            return _open(job, at)
        case Claimed(lease):
            job = _with(job, phase=to, attempt=job.attempt + 1, lease=lease, reserved_for=None, order_number=0, seen=0)
            return Step(_due(job, at))
        case Beat(seen=seen):
            job = _with(job, seen=max(job.seen, min(seen, job.order_number)))
            return Step(_renewed(job, at))
        case Began():
            begun = (Begun(),) if job.phase == "leased" else ()
            return Step(_renewed(_with(job, phase=to), at), begun)
        case Extended(until_ns):
            assert job.lease is not None
            lease = _with(job.lease, until_ns=max(job.lease.until_ns, until_ns))
            cancel_until = max(job.cancel_until_ns, until_ns) if job.phase == "cancelling" else 0
            due = max(job.due_ns, until_ns)
            return Step(_with(job, lease=lease, cancel_until_ns=cancel_until, due_ns=due))
        case Ordered(order):
            number = job.order_number + 1
            return Step(_with(job, order_number=number), (OrderGiven(number, order),))
        case CancelWanted():
            return _cancel(job, happening, case, to, at)
        case HandedBack(reason=reason):
            return _given_back(job, case, reason, at)
        case Result(digest=digest, conclusion=conclusion, reason=reason, reason_code=code):
            job = _with(job, result=digest)
            ending = AttemptEnded(job.attempt, "finished", reason or conclusion)
            return _end(job, Ended(conclusion, reason, code), at, ending)
        case Passed():
            return _passed(job, case, at)


def _cancel(job: Job, wanted: CancelWanted, case: str, to: Phase, at: _Moment) -> Step:
    if to == "done":
        return _end(job, Ended("cancelled", wanted.reason, wanted.reason_code), at)
    if case == "again":
        return Step(job)
    number = job.order_number + 1
    wait = at.settings.force_s if wanted.force else at.settings.cancel_s
    until_ns = at.after(wait)
    if job.cancel_until_ns:
        until_ns = min(until_ns, job.cancel_until_ns)
    job = _with(job, phase=to, order_number=number, cancel_until_ns=until_ns, cancel_forced=wanted.force)
    job = _with(job, reason=wanted.reason, reason_code=wanted.reason_code)
    order = Cancel(force=wanted.force, reason=wanted.reason, reason_code=wanted.reason_code)
    return Step(_due(job, at), (OrderGiven(number, order),))


def _given_back(job: Job, case: str, reason: str, at: _Moment) -> Step:
    if job.phase == "cancelling":
        return _cancelled(job, at)
    if case == "returned":
        return _open(job, at, AttemptEnded(job.attempt, "handed_back", reason))
    return _lost(job, case, AttemptEnded(job.attempt, "handed_back", f"The worker gave it back: {reason}"), at)


def _passed(job: Job, case: str, at: _Moment) -> Step:
    if job.phase == "reserved":
        return _open(job, at)
    if job.phase == "cancelling":
        return _cancelled(job, at)
    assert job.lease is not None
    name = job.lease.worker_name
    if case in ("never confirmed", "poison"):
        tries = job.unconfirmed + 1
        job = _with(job, unconfirmed=tries, avoid=job.avoid | {job.lease.worker})
        ending = AttemptEnded(job.attempt, "unconfirmed", "never confirmed")
        if case == "never confirmed":
            return _open(job, at, ending)
        reason = f"{tries} hand-outs in a row were never confirmed by the workers that took it, the last by {name}."
        return _end(job, Ended("failure", reason, "unavailable", unserved=True), at, ending)
    reason = f"The worker {name} was not heard of before its lease ended."
    return _lost(job, case, AttemptEnded(job.attempt, "lost", reason), at)


def _lost(job: Job, case: str, ending: AttemptEnded, at: _Moment) -> Step:
    assert job.lease is not None
    job = _with(job, lost=job.lost + 1, avoid=job.avoid | {job.lease.worker})
    if case == "lost, repeated":
        return _open(job, at, ending)
    return _end(job, Ended("failure", ending.reason, "lost"), at, ending)


def _cancelled(job: Job, at: _Moment) -> Step:
    reason, code = job.reason or CANCEL_REASON, job.reason_code or "cancelled_by_user"
    return _end(job, Ended("cancelled", reason, code), at, AttemptEnded(job.attempt, "cancelled", reason))


def _open(job: Job, at: _Moment, *effects: Effect) -> Step:
    return Step(_queue(job, at), (*effects, Opened()))


def _queue(job: Job, at: _Moment) -> Job:
    """Its place is the one it had: what goes back to the queue has waited since it was first in it."""
    since = job.queued_ns or at.now_ns
    rank = since - round(job.priority * at.settings.ageing_s * SECOND_NS)
    return _with(
        job, phase="queued", queued_ns=since, rank=rank, lease=None, reserved_for=None, due_ns=0, order_number=0, seen=0
    )


def _end(job: Job, ended: Ended, at: _Moment, *effects: Effect) -> Step:
    job = _with(
        job,
        phase="done",
        holds=frozenset(),
        lease=None,
        reserved_for=None,
        due_ns=0,
        cancel_until_ns=0,
        conclusion=ended.conclusion,
        reason=ended.reason,
        reason_code=ended.reason_code,
        ended_ns=at.now_ns,
    )
    return Step(job, (*effects, ended))


def _renewed(job: Job, at: _Moment) -> Job:
    """A sign of the holder: its lease counts from now on, even where a clock that was wrong had given more."""
    assert job.lease is not None
    lease = _with(job.lease, until_ns=at.after(lease_s(job.lease.kind, at.settings)), confirmed=True)
    return _due(_with(job, lease=lease, unconfirmed=0), at)


def _due(job: Job, at: _Moment) -> Job:
    """When something happens by itself: the first sign is late, the lease ends, the cancellation's time is over."""
    assert job.lease is not None
    due = job.lease.until_ns
    if not job.lease.confirmed:
        due = min(due, job.lease.since_ns + round(at.settings.confirm_s * SECOND_NS))
    if job.cancel_until_ns:
        due = min(due, job.cancel_until_ns)
    return _with(job, due_ns=due)


def _with(row: Row, **changes: object) -> Row:
    return msgspec.structs.replace(row, **changes)


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> waiting: created, held", "    [*] --> queued: created"]
    for phase, happening, case, to in TABLE:
        name = str(happening.__struct_config__.tag).replace("_", " ")
        lines.append(f"    {phase} --> {to}: {name}{f' ({case})' if case else ''}")
    return "\n".join([*lines, "    done --> [*]"])
