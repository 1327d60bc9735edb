"""What the two cores decide, carried out in one transaction.

A happening of a job goes through `dispatch.life`, one of a run through `run.advance`; each may lead to more of the
other kind, and all of them are worked off before the flow returns. Runs are read once and saved once.
"""

from __future__ import annotations

import uuid
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.dispatch.happenings import (
    AttemptEnded,
    Begun,
    CancelWanted,
    Cleared,
    Dropped,
    Ended,
    Opened,
    OrderGiven,
)
from runyard.dispatch.life import advance as live
from runyard.dispatch.life import created
from runyard.dispatch.records import Hold, Job, JobClass
from runyard.job import ContainerActionStep, NullToken
from runyard.run import (
    Admitted,
    CancelJob,
    CancelRequested,
    CreateJob,
    EndJob,
    Finished,
    FinishRun,
    GroupRequest,
    RunState,
    Started,
    StartRun,
    Tick,
    advance,
    same_group,
)
from runyard.server.control import groups
from runyard.server.control.codec import (
    GroupMember,
    decode_context,
    decode_member,
    decode_plan,
    decode_state,
    encode,
    encode_levels,
    encode_order,
    encode_state,
)
from runyard.server.store.port import Topic
from runyard.server.store.rows import JobBody, OrderRow, Run
from runyard.workflow.plan import RunPlan

if TYPE_CHECKING:
    from runyard.dispatch.happenings import Effect, Happening, Step
    from runyard.job import JobSpec
    from runyard.run import Decision
    from runyard.run import Happening as RunHappening
    from runyard.server.control.rules import Rules
    from runyard.server.store.port import Transaction

ANY: Final = "any"
"""The machine of a platform that a job does not name: `linux/any`."""

_IDS: Final = uuid.UUID("5f0d2c1e-6c1f-4b8e-9a39-1f7a1f5a2f11")


class Loaded(msgspec.Struct):
    """A run that this transaction works on."""

    before: Run
    row: Run
    plan: RunPlan
    state: RunState
    changed: bool = False


class Driver:
    """Works happenings off within one transaction. `settle` before the flow returns."""

    def __init__(self, tx: Transaction, rules: Rules) -> None:
        self.tx = tx
        self.rules = rules
        self.now_ns = tx.now_ns()
        self._runs: dict[str, Loaded] = {}
        self._todo: deque[tuple[str, RunHappening]] = deque()

    # --- jobs

    def happen(self, job: Job, happening: Happening, outputs: dict[str, str] | None = None) -> Step:
        """One happening of a job, written, with what follows. `outputs` are those of a result."""
        step = live(job, happening, self.now_ns, self.rules.settings)
        if self.rules.witness is not None:
            self.rules.witness(happening, job, step)
        if step.refused is not None or step.repeated:
            return step
        if step.job != job:
            self.tx.save_job(job, step.job)
        for effect in step.effects:
            self._follow(job, step.job, effect, outputs or {})
        return step

    def _follow(self, before: Job, job: Job, effect: Effect, outputs: dict[str, str]) -> None:
        match effect:
            case Opened():
                self.tx.wake(Topic.of_class(job.class_id))
            case Begun():
                self.tell(job.run_id, Started(job.key))
            case OrderGiven(number, order):
                self.tx.insert_order(job.id, job.attempt, OrderRow(number, encode_order(order), self.now_ns))
            case AttemptEnded(number, ending, reason):
                row = self.tx.attempt(job.id, number)
                if row is not None:
                    row = msgspec.structs.replace(row, ended_ns=self.now_ns, ending=ending, reason=reason)
                    self.tx.save_attempt(row)
                if before.order_number:
                    self.tx.delete_orders(job.id, number, before.order_number)
                self.tx.wake(Topic.SLOT)
            case Ended(conclusion, _, _, unserved):
                self.tell(job.run_id, Finished(job.key, conclusion, outputs, unserved))
                for member in groups.joined(self.tx, before):
                    self._leave(job.repository, member.member, member.request.group)
        self.tx.wake(Topic.of_job(job.id))
        self.tx.wake(Topic.of_run(job.run_id))

    # --- runs

    def tell(self, run_id: str, happening: RunHappening) -> None:
        """Something happened to a run; worked in by `settle`."""
        self._todo.append((run_id, happening))

    def load(self, run_id: str) -> Loaded | None:
        """A run with its plan and state, as this transaction sees it."""
        found = self._runs.get(run_id)
        if found is None:
            row = self.tx.run(run_id)
            if row is None:
                return None
            context = decode_context(self.tx.blob(row.context_digest))
            plan = decode_plan(self.tx.blob(row.plan_digest))
            found = self._runs[run_id] = Loaded(row, row, plan, decode_state(row.state, context))
        return found

    def settle(self) -> None:
        """Work off what was told, and save the runs that changed."""
        while self._todo:
            run_id, happening = self._todo.popleft()
            run = self.load(run_id)
            if run is not None:
                self._work_in(run, happening)
        for run in self._runs.values():
            if run.changed:
                row = msgspec.structs.replace(run.row, state=encode_state(run.state))
                run.before = run.row = self.tx.save_run(run.before, row)
                run.changed = False
                self.tx.wake(Topic.of_run(run.row.id))

    def _work_in(self, run: Loaded, happening: RunHappening) -> None:
        if isinstance(happening, Admitted) and run.state.phase == "running":
            happening = Tick()  # a run again whose jobs of before are kept goes on where it stands
        before = run.state
        run.state, decisions = advance(run.plan, before, happening, self.now_ns)
        run.changed = run.changed or run.state is not before
        if run.row.phase == "pending" and run.state.phase == "running":
            self._row(run, phase="running", started_ns=self.now_ns)
        for decision in decisions:
            if self.rules.hear is not None:
                self.rules.hear(run.row.id, decision)
            self._carry_out(run, decision)
        self._leave_ended_calls(run, before)

    def _row(self, run: Loaded, **changes: object) -> None:
        run.row = msgspec.structs.replace(run.row, **changes)
        run.changed = True

    def _carry_out(self, run: Loaded, decision: Decision) -> None:
        match decision:
            case StartRun(name, _, concurrency):
                self._row(run, name=name, group=concurrency.group if concurrency is not None else None)
                if concurrency is not None:
                    self.enter_run(run.row, concurrency)
            case CreateJob():
                self._create_job(run, decision)
            case EndJob():
                self._end_job(run, decision)
            case CancelJob(key, _, reason, code, force):
                job = self.tx.job_of_key(run.row.id, key)
                if job is not None:
                    self.happen(job, CancelWanted(reason, code, force))
            case FinishRun(conclusion, _, reason, code):
                self._row(
                    run,
                    phase="done",
                    ended_ns=self.now_ns,
                    conclusion=conclusion,
                    reason=reason,
                    reason_code=code,
                )
                if run.row.group is not None:
                    self._leave(run.row.repository, f"run:{run.row.id}", run.row.group)

    # --- making jobs

    def _create_job(self, run: Loaded, made: CreateJob) -> None:
        spec = made.spec
        of = class_of(spec, run.row.repository)
        members = groups.members_of(run.state, run.row.id, spec.id, spec.key)
        holds: set[Hold] = set(run.row.holds)
        if members:
            holds.add("concurrency")
        if self.rules.vault.is_locked(self.tx, run.row.repository):
            holds.add("vault")
        job = Job(
            id=spec.id,
            run_id=run.row.id,
            key=spec.key,
            sequence=self.tx.next_number("job"),
            created_ns=self.now_ns,
            of=of,
            class_id=of.id,
            holds=frozenset(holds),
            priority=run.row.priority,
            retry_lost=0 if of.kind == "publish" else spec.retry_lost,
        )
        job = created(job, self.now_ns, self.rules.settings)
        body = JobBody(
            job=job.id,
            run_id=job.run_id,
            key=job.key,
            name=spec.name,
            path=spec.job,
            spec=encode(spec),
            secrets=encode_levels(made.secrets),
            matrix=encode(made.matrix) if made.matrix is not None else b"",
            why=encode(made.why),
            groups=tuple(encode(member) for member in members),
        )
        self.tx.insert_job(job, body)
        self.tx.wake(Topic.of_run(job.run_id))
        if job.phase == "queued":
            self.tx.wake(Topic.of_class(job.class_id))
        if members:
            self.ask_for_groups(job)

    def _end_job(self, run: Loaded, end: EndJob) -> None:
        """A row for people: a job that ends without being executed was never in the queue."""
        if end.why.rule == "selected" or self.tx.job_of_key(run.row.id, end.key) is not None:
            return
        of = JobClass(repository=run.row.repository)
        reason = end.reason
        if end.at is not None and 0 < end.at.file <= len(run.plan.files):
            reason = f"{run.plan.files[end.at.file - 1]}:{end.at.line}:{end.at.column}: {reason}"
        job = Job(
            id=str(uuid.uuid5(_IDS, f"{run.row.id}/{end.key}")),
            run_id=run.row.id,
            key=end.key,
            sequence=self.tx.next_number("job"),
            created_ns=self.now_ns,
            of=of,
            class_id=of.id,
            phase="done",
            conclusion=end.conclusion,
            reason=reason,
            reason_code=end.reason_code,
            ended_ns=self.now_ns,
        )
        body = JobBody(
            job=job.id,
            run_id=job.run_id,
            key=job.key,
            name=end.name,
            path=end.job,
            matrix=encode(end.matrix) if end.matrix is not None else b"",
            why=encode(end.why),
        )
        self.tx.insert_job(job, body)

    # --- concurrency groups

    def ask_for_groups(self, job: Job) -> None:
        """Ask for a job's groups in order until one has to be waited for; with all of them the hold is gone."""
        while True:
            now = self.tx.job(job.id)
            if now is None or "concurrency" not in now.holds:
                return
            wanted = groups.next_group(self.tx, now)
            if wanted is None:
                self.happen(now, Cleared("concurrency"))
                return
            holder = groups.knot(self.tx, now, wanted.request.group)
            if holder is not None:
                reason = f"concurrency group '{wanted.request.group}' is held by {holder}, which waits for this job"
                self.happen(now, Dropped("cancelled", reason, "concurrency"))
                return
            verdict = self._enter(now.repository, wanted, f"a newer job waits in it: {now.key}")
            if verdict == "cancelled":
                reason = f"concurrency group '{wanted.request.group}' is full"
                self.happen(now, Dropped("cancelled", reason, "concurrency"))
                return
            if verdict == "waits":
                return
            groups.advance_joined(self.tx, now)

    def enter_run(self, row: Run, request: GroupRequest) -> None:
        """A run asks for its group: admitted at once, later, or cancelled."""
        who = GroupMember(f"run:{row.id}", request)
        verdict = self._enter(row.repository, who, f"a newer run of it takes its place: {row.id}")
        if verdict == "holds":
            self.tell(row.id, Admitted())
        elif verdict == "cancelled":
            reason = f"concurrency group '{request.group}' is full"
            self.tell(row.id, CancelRequested(reason=reason, reason_code="concurrency"))

    def _enter(self, repository: str, who: GroupMember, because: str) -> str:
        arrival = groups.enter(self.tx, repository, who)
        reason = f"concurrency group '{who.request.group}': {because}"
        for other in arrival.cancel_waiting:
            self._end_member(other, reason)
        if arrival.cancel_holder is not None:
            self._end_member(arrival.cancel_holder, reason)
        return arrival.verdict

    def _end_member(self, member: str, reason: str) -> None:
        kind, _, name = member.partition(":")
        if kind == "run":
            self.tell(name, CancelRequested(reason=reason, reason_code="concurrency"))
            return
        found = self.tx.job(name) if kind == "job" else None
        jobs = [found] if found is not None else self._jobs_of_call(member) if kind == "call" else []
        for job in jobs:
            self.happen(job, CancelWanted(reason, "concurrency"))

    def _jobs_of_call(self, member: str) -> list[Job]:
        jobs = []
        for job in self.tx.jobs_of_run(groups.run_of(self.tx, member)):
            body = self.tx.body(job.id)
            if job.phase != "done" and body is not None and any(_is_member(blob, member) for blob in body.groups):
                jobs.append(job)
        return jobs

    def _leave(self, repository: str, member: str, group: str) -> None:
        heir = groups.go(self.tx, repository, member, same_group(group))
        if heir is None:
            return
        kind, _, name = heir.partition(":")
        if kind == "run":
            self.tell(name, Admitted())
        elif kind == "job":
            job = self.tx.job(name)
            if job is not None:
                self.ask_for_groups(job)
        else:
            for job in self._jobs_of_call(heir):
                self.ask_for_groups(job)

    def _leave_ended_calls(self, run: Loaded, before: RunState) -> None:
        """A call ended: it lets go of the groups that its jobs entered for it."""
        for key, leg in run.state.legs.items():
            if leg.call and leg.groups and leg.phase == "done" and before.legs.get(key) != leg:
                for request in leg.groups:
                    self._leave(run.row.repository, groups.call_member(run.row.id, key), request.group)


def _is_member(blob: bytes, member: str) -> bool:
    return decode_member(blob).member == member


def class_of(spec: JobSpec, repository: str) -> JobClass:
    """What of a job a worker is matched by. Labels are compared in lower case."""
    requires = set(spec.requires)
    if spec.container is not None and not isinstance(spec.container, NullToken):
        requires.add("containers")
    if spec.services is not None and not isinstance(spec.services, NullToken):
        requires.add("services")
    if any(isinstance(step, ContainerActionStep) for step in spec.steps):
        requires.add("containers")
    return JobClass(
        repository=repository,
        platform=None if spec.platform.endswith(f"/{ANY}") else spec.platform,
        labels=frozenset(label.lower() for label in spec.labels),
        requires=frozenset(requires),
        pool=spec.pool,
        group=spec.group,
        trust=spec.trust,
        disk_mb=spec.limits.disk_mb,
    )
