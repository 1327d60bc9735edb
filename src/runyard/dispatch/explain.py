"""Why a job waits, from the predicate that decides: computed when somebody asks, never for the whole queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from runyard.dispatch.choose import is_taken_by
from runyard.dispatch.fit import PASSING, Obstacle, job_obstacles, obstacles
from runyard.dispatch.records import OPEN, Hold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runyard.dispatch.fit import View
    from runyard.dispatch.records import Job, Worker

ReasonCode: TypeAlias = Literal[
    "ready",
    "slot",
    "bound",
    "reserved",
    "disk",
    "no_worker",
    "no_match",
    "drained",
    "elsewhere",
    "hold",
    "held",
    "done",
]


class Held(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of a waiting job's holds: who has its concurrency group, what approves, what unlocks."""

    group: str | None = None
    holder: str | None = None
    remedies: dict[str, str] = {}


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a job is where it is, in a word and a sentence.

    `worker` is who would take it (code `ready`) or who comes nearest; `obstacles` is what is between them, `next_slot`
    the live job whose end would give the slot, as far as that can be told.
    """

    code: ReasonCode
    message: str
    worker: str | None = None
    obstacles: tuple[Obstacle, ...] = ()
    next_slot: str | None = None
    holds: tuple[Hold, ...] = ()


def explain(job: Job, view: View, live: Sequence[Job] = (), held: Held | None = None) -> Reason:
    """The reason of one job. `view.presence` are the workers that are counted on, `live` the jobs that hold slots."""
    if job.phase == "done":
        return Reason("done", job.reason or f"it ended with {job.conclusion}")
    if job.phase == "waiting":
        return _waiting(job, held or Held())
    if job.phase not in OPEN:
        name = job.lease.worker_name if job.lease is not None else "a worker"
        return Reason("held", f"{name} has it ({job.phase})", job.lease.worker if job.lease is not None else None)
    if not view.presence:
        return Reason("no_worker", "no worker is connected; `runyard worker` starts one")
    for worker in view.presence:
        if is_taken_by(worker, job, view):
            return Reason("ready", f"{worker.name} takes it with its next claim", worker.id)
    misses = [(worker, _all(worker, job, view)) for worker in view.presence]
    worker, between = min(misses, key=_distance)
    return _missed(worker, between, live)


def _all(worker: Worker, job: Job, view: View) -> tuple[Obstacle, ...]:
    return (*obstacles(worker, job.of, view), *job_obstacles(worker, job, view))


def _distance(miss: tuple[Worker, tuple[Obstacle, ...]]) -> tuple[int, int, str]:
    """What the worker is counts before what it does now: the nearest miss would take the job soonest."""
    worker, between = miss
    lasting = [each for each in between if each.code not in PASSING]
    lacking = sum(max(1, len(each.missing)) for each in lasting)
    return lacking, len(between), worker.name


def _missed(worker: Worker, between: tuple[Obstacle, ...], live: Sequence[Job]) -> Reason:
    codes = {each.code for each in between}
    sentence = "; ".join(each.message for each in between)
    if codes - PASSING:
        lasting = "; ".join(each.message for each in between if each.code not in PASSING)
        return Reason("no_match", f"no connected worker fits; nearest is {worker.name}: {lasting}", worker.id, between)
    if codes & {"draining", "drained"}:
        return Reason("drained", sentence, worker.id, between)
    if codes & {"native_elsewhere", "avoided"}:
        return Reason("elsewhere", sentence, worker.id, between)
    if "disk" in codes:
        return Reason("disk", sentence, worker.id, between)
    if "reserved" in codes:
        return Reason("reserved", sentence, worker.id, between)
    code: ReasonCode = "slot" if codes == {"slots"} else "bound"
    there = [job for job in live if job.lease is not None and (code == "bound" or job.lease.worker == worker.id)]
    first = min(there, key=lambda job: (job.lease.since_ns if job.lease else 0, job.id), default=None)
    if first is None:
        return Reason(code, sentence, worker.id, between)
    return Reason(code, f"{sentence}; {first.key} has been at work longest", worker.id, between, first.id)


def _waiting(job: Job, held: Held) -> Reason:
    parts = []
    for hold in sorted(job.holds):
        match hold:
            case "concurrency":
                who = f", which {held.holder} holds" if held.holder else ""
                parts.append(f"it waits for concurrency group {held.group or ''}{who}".replace("  ", " "))
            case "approval":
                parts.append("somebody has to approve the run")
            case "vault":
                parts.append(f"the vault of {job.repository} is locked")
            case "limit":
                parts.append("a limit of its project is reached")
            case "needs":
                parts.append("jobs that it needs are not over")
        if hold in held.remedies:
            parts[-1] += f" ({held.remedies[hold]})"
    return Reason("hold", "; ".join(parts), holds=tuple(sorted(job.holds)))
