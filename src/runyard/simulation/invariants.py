"""What holds after every commit, whatever happened. Each check answers with a sentence where it doesn't."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runyard.dispatch.choose import choose
from runyard.dispatch.explain import explain
from runyard.dispatch.records import LIVE, OPEN
from runyard.run import RunState, same_group
from runyard.server.control.claims import view_of
from runyard.server.control.codec import decode, decode_member

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runyard.dispatch.records import Job
    from runyard.server.control.rules import Rules
    from runyard.server.store.memory import MemoryStore
    from runyard.server.store.port import Transaction


class Watch:
    """Remembers what was, so that what is final stays so. `problems` after each commit; an empty list is good."""

    def __init__(self, store: MemoryStore, rules: Rules) -> None:
        self.store = store
        self.rules = rules
        self._jobs: dict[str, Job] = {}
        self._states: dict[str, tuple[bytes, RunState]] = {}

    def problems(self) -> list[str]:
        """Everything cheap: leases, results, finality, the run graph against the queue, bounds, groups."""
        jobs: dict[str, Job] = self.store.tables.jobs
        found = [
            *self._of_jobs(jobs),
            *self._of_attempts(jobs),
            *self._of_results(jobs),
            *self._of_runs(jobs),
            *self._of_bounds(jobs),
            *self._of_groups(jobs),
        ]
        self._jobs = dict(jobs)
        return found

    def _of_jobs(self, jobs: dict[str, Job]) -> Iterator[str]:
        for job_id, before in self._jobs.items():
            job = jobs.get(job_id)
            if job is None:
                yield f"job {job_id} is gone"
            elif job is before:
                continue
            elif before.phase == "done":
                yield f"job {before.key} was done and changed: {job}"
            elif job.attempt < before.attempt:
                yield f"attempts of {before.key} went back from {before.attempt} to {job.attempt}"
            elif job.lost > max(job.retry_lost, 0) + 1:
                yield f"{job.key} was lost {job.lost} times, {job.retry_lost} may be repeated"
        for job in jobs.values():
            if (job.phase in LIVE) != (job.lease is not None):
                yield f"{job.key} is {job.phase} with lease {job.lease}"

    def _of_attempts(self, jobs: dict[str, Job]) -> Iterator[str]:
        """A job has at most one attempt that isn't closed, and it is the one that holds the lease."""
        open_attempts: dict[str, list[int]] = {}
        for (job_id, number), attempt in self.store.tables.attempts.items():
            if attempt.ended_ns == 0:
                open_attempts.setdefault(job_id, []).append(number)
        for job_id, numbers in open_attempts.items():
            job = jobs[job_id]
            if numbers != [job.attempt] or job.phase not in LIVE:
                yield f"{job.key} ({job.phase}, attempt {job.attempt}) has open attempts {numbers}"
        for job in jobs.values():
            if job.phase in LIVE and job.id not in open_attempts:
                yield f"{job.key} is {job.phase} and attempt {job.attempt} is closed"

    def _of_results(self, jobs: dict[str, Job]) -> Iterator[str]:
        for job_id, result in self.store.tables.results.items():
            job = jobs[job_id]
            if job.phase != "done" or result.attempt != job.attempt or result.digest != job.result:
                yield f"{job.key} ({job.phase}, attempt {job.attempt}) has a result of attempt {result.attempt}"

    def _of_runs(self, jobs: dict[str, Job]) -> Iterator[str]:
        """No job is lost between the run graph and the queue, and none is in the queue twice."""
        rows: dict[str, dict[str, Job]] = {}
        for job in jobs.values():
            of_run = rows.setdefault(job.run_id, {})
            if job.key in of_run:
                yield f"{job.key} of run {job.run_id} is there twice"
            of_run[job.key] = job
        for run in self.store.tables.runs.values():
            known = self._states.get(run.id)
            if known is None or known[0] is not run.state:
                known = self._states[run.id] = (run.state, decode(run.state, RunState))
            state = known[1]
            of_run = rows.get(run.id, {})
            for key, leg in state.legs.items():
                at_work = leg.phase in ("created", "running")
                found = of_run.get(key)
                if at_work and (found is None or found.phase == "done"):
                    yield f"run {run.id} waits for {key}, which is {found.phase if found else 'not there'}"
                if not at_work and found is not None and found.phase != "done":
                    yield f"{key} of run {run.id} is {found.phase}, and the run has it as {leg.phase}"
            if (state.phase == "done") != (run.phase == "done"):
                yield f"run {run.id} is {run.phase} and its state {state.phase}"

    def _of_bounds(self, jobs: dict[str, Job]) -> Iterator[str]:
        """Counted anew here, not as the store counts."""
        live = [job for job in jobs.values() if job.phase in LIVE]
        bounds = self.rules.bounds
        if bounds.server is not None and len(live) > bounds.server:
            yield f"{len(live)} jobs are at work, the server's bound is {bounds.server}"
        for repository, bound in bounds.repositories.items():
            count = sum(job.repository == repository for job in live)
            if count > bound:
                yield f"{count} jobs of {repository} are at work, its bound is {bound}"
        for worker in self.store.tables.workers.values():
            count = sum(job.lease is not None and job.lease.worker == worker.id for job in live)
            if count > worker.slots:
                yield f"{worker.name} holds {count} jobs in {worker.slots} slots"

    def _of_groups(self, jobs: dict[str, Job]) -> Iterator[str]:
        """One holder at a time: of two jobs that may be at work, never both in one group."""
        holders: dict[tuple[str, str], str] = {}
        for job in jobs.values():
            if job.phase == "done" or "concurrency" in job.holds:
                continue
            for blob in self.store.tables.bodies[job.id].groups:
                member = decode_member(blob)
                at = (job.repository, same_group(member.request.group))
                if holders.setdefault(at, member.member) != member.member:
                    yield f"group {at} is held by {holders[at]} and {member.member}"
        for run in self.store.tables.runs.values():
            if run.phase == "running" and run.group is not None:
                at = (run.repository, same_group(run.group))
                if holders.setdefault(at, f"run:{run.id}") != f"run:{run.id}":
                    yield f"group {at} is held by {holders[at]} and run {run.id}"

    # --- dearer: now and then

    def reasons(self) -> list[str]:
        """What is said of each open job is what would happen."""
        return self.store.look(self._reasons)

    def _reasons(self, tx: Transaction) -> list[str]:
        found = []
        view = view_of(tx, self.rules)
        for job in tx.jobs_in(sorted(OPEN), limit=20):
            takers = [each.id for each in view.presence if choose(each, [job], view, {}) is not None]
            reason = explain(job, view)
            if (reason.code == "ready") != bool(takers) or (takers and reason.worker not in takers):
                found.append(f"{job.key}: said {reason.code} of {reason.worker}, and {takers} would take it")
        return found
