"""Why jobs wait, on read: the same for the command line, the API and the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runyard.dispatch.explain import Held, Reason, explain
from runyard.dispatch.records import LIVE
from runyard.run import same_group
from runyard.server.control import groups
from runyard.server.control.claims import view_of

if TYPE_CHECKING:
    from runyard.dispatch.fit import View
    from runyard.dispatch.records import Job
    from runyard.server.control.rules import Rules
    from runyard.server.store.port import Transaction

LIVE_LIMIT = 1000


class WaitingJob(msgspec.Struct, frozen=True):
    """A job that nobody executes yet, and why."""

    job: str
    run: str
    key: str
    since_ns: int
    reason: Reason


def explain_job(tx: Transaction, rules: Rules, job_id: str) -> Reason | None:
    """The reason of one job; None where there is none of that id."""
    job = tx.job(job_id)
    if job is None:
        return None
    return _explained(tx, job, view_of(tx, rules), tx.jobs_in(sorted(LIVE), limit=LIVE_LIMIT))


def explain_run(tx: Transaction, rules: Rules, run_id: str) -> list[WaitingJob]:
    """Every job of a run that waits, by sequence."""
    waiting = [job for job in tx.jobs_of_run(run_id) if job.phase in ("waiting", "queued", "reserved")]
    return _all(tx, rules, waiting)


def explain_queue(tx: Transaction, rules: Rules, after: int = 0, limit: int = 100) -> list[WaitingJob]:
    """A part of the queue, `sequence` above `after`: what somebody looks at, never all of it."""
    return _all(tx, rules, tx.jobs_in(("waiting", "queued", "reserved"), after, limit))


def _all(tx: Transaction, rules: Rules, jobs: list[Job]) -> list[WaitingJob]:
    if not jobs:
        return []
    view, live = view_of(tx, rules), tx.jobs_in(sorted(LIVE), limit=LIVE_LIMIT)
    return [
        WaitingJob(job.id, job.run_id, job.key, job.queued_ns or job.created_ns, _explained(tx, job, view, live))
        for job in jobs
    ]


def _explained(tx: Transaction, job: Job, view: View, live: list[Job]) -> Reason:
    return explain(job, view, live, _held(tx, job) if job.phase == "waiting" else None)


def _held(tx: Transaction, job: Job) -> Held:
    remedies = {
        "approval": f"runyard runs approve {job.run_id.partition('.')[0]}",
        "vault": f"runyard secret unlock {job.repository}",
    }
    wanted = groups.next_group(tx, job) if "concurrency" in job.holds else None
    if wanted is None:
        return Held(remedies=remedies)
    name = wanted.request.group
    holder = tx.group(job.repository, same_group(name)).holder
    return Held(name, _named(tx, holder) if holder is not None else None, remedies)


def _named(tx: Transaction, member: str) -> str:
    """A member of a group for people."""
    kind, _, name = member.partition(":")
    if kind == "run":
        return f"run {name.partition('.')[0]}"
    if kind == "call":
        run_id, _, key = name.partition("|")
        return f"{key} of run {run_id.partition('.')[0]}"
    job = tx.job(name)
    return f"{job.key} of run {job.run_id.partition('.')[0]}" if job is not None else name
