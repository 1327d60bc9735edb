"""The runs of one command line while they go on: decisions carried out, jobs in slots, results fed back.

One event loop, no locks: a happening is worked in at once and its decisions are carried out in order. A job that this
machine can't serve fails with that reason before anything of it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from runyard.admission.policy import OWN_MACHINE
from runyard.cli.job_settings import settings_for
from runyard.cli.run_actions import cache_folder, of_command
from runyard.cli.run_execute import FORCE_WAIT_S, cores, say, spawn
from runyard.cli.run_hooks import host_notes
from runyard.cli.run_machine import Machine, Place, Unserved
from runyard.cli.run_notes import secret_notes
from runyard.cli.run_offer import Backend, Offers
from runyard.engine.declared_stores import StoreSettings
from runyard.expression import to_text
from runyard.job import Cancel, JobFinished, MachineError, RunyardError
from runyard.report.run_report import JobFacts
from runyard.run import (
    Admitted,
    Begin,
    CancelJob,
    CancelRequested,
    CreateJob,
    EndJob,
    Finished,
    FinishRun,
    Group,
    Started,
    StartRun,
    UnevaluableError,
    advance,
    arrive,
    leave,
    preview,
    resolve_secrets,
    same_group,
)
from runyard.source import LocalSource

if TYPE_CHECKING:
    from runyard.cli.run_prepare import Options, PlannedRun, Prepared
    from runyard.engine.launch import JobHandle, JobSettings, Launcher, OnPause
    from runyard.job import Conclusion, JobSpec, Json
    from runyard.report.run_report import RunReport
    from runyard.run import Decision, GroupRequest, Happening
    from runyard.source import Snapshot


class Runs:
    """All runs of one command line. `run` to the end, `cancel` from a signal, `close` once."""

    def __init__(self, prepared: Prepared, options: Options, launcher: Launcher, report: RunReport) -> None:
        self.prepared = prepared
        self.options = options
        self.launcher = launcher
        self.report = report
        self.machine = Machine(options.images, options.labels)
        self.slots = asyncio.Semaphore(options.parallel or cores())
        self.kept: list[JobHandle] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.trees = Trees(prepared, options)
        self.busy = asyncio.Event()
        """Set when the first job is at work, or when none will be."""
        self.actions = of_command(prepared, options)
        self.offers = Offers(options, self.actions)
        self._runs: list[Run] = []
        self._groups: dict[str, Group] = {}
        self._said: set[str] = set()

    @property
    def exit_code(self) -> int:
        """1 where a job failed, 3 where the only failures are jobs that this machine can't serve, else 0."""
        failed = [run for run in self._runs if run.conclusion == "failure"]
        if any(run.failed_here for run in failed):
            return 1
        if any(run.unserved for run in self._runs):
            return 3
        return 1 if failed or any(run.conclusion == "cancelled" for run in self._runs) else 0

    @property
    def over(self) -> bool:
        """Whether every run has ended."""
        return all(run.ended.is_set() for run in self._runs)

    async def run(self) -> None:
        """Every run to its end. Events of jobs go to the report as they come."""
        for planned in self.prepared.runs:
            if not planned.triggered:
                self.report.not_triggered(workflow=planned.path, reason=planned.reason)
            elif planned.selected:
                self._runs.append(Run(self, planned))
        for note in secret_notes(self.options.secrets):
            self.note(note.message)
        for line in host_notes(self.options.hooks):
            say(line)
        for run in self._runs:
            run.warn()
        for run in self._runs:
            run.tell(Begin())
        await asyncio.gather(*(run.ended.wait() for run in self._runs))
        self.busy.set()
        if self.tasks:
            await asyncio.wait(set(self.tasks), timeout=FORCE_WAIT_S)

    def cancel(self, *, force: bool) -> None:
        """Ask every run to stop; by force it is over within seconds whatever the jobs do."""
        for run in self._runs:
            run.tell(CancelRequested(force=force, reason="interrupted"))
        if force:
            spawn(self._end_by_force(), self.tasks, "end by force")

    async def _end_by_force(self) -> None:
        await asyncio.sleep(FORCE_WAIT_S)
        for run in self._runs:
            run.kill()

    def note(self, text: str) -> None:
        """A sentence about the whole command, once."""
        if text not in self._said:
            self._said.add(text)
            self.report.note(text)

    # --- groups of whole workflows

    def join(self, run: Run, request: GroupRequest) -> None:
        """A run asks for its concurrency group; it is admitted now or when its turn comes."""
        name = same_group(request.group)
        me = str(self._runs.index(run))
        arrival = arrive(
            self._groups.get(name, Group()), me, cancel_in_progress=request.cancel_in_progress, queue=request.queue
        )
        self._groups[name] = arrival.group
        reason = f"a newer run of concurrency group '{request.group}' takes its place"
        ends = [*arrival.cancel_waiting, *([arrival.cancel_holder] if arrival.cancel_holder else [])]
        for other in ends:
            self._runs[int(other)].tell(CancelRequested(reason=reason, reason_code="concurrency"))
        if arrival.verdict == "holds":
            run.tell(Admitted())
        elif arrival.verdict == "cancelled":
            reason = f"concurrency group '{request.group}' is full"
            run.tell(CancelRequested(reason=reason, reason_code="concurrency"))

    def left(self, run: Run, request: GroupRequest) -> None:
        """A run ended: the next of its group goes on."""
        name = same_group(request.group)
        group, heir = leave(self._groups.get(name, Group()), str(self._runs.index(run)))
        self._groups[name] = group
        if heir is not None:
            self._runs[int(heir)].tell(Admitted())

    # --- the end

    async def wait_for_kept(self, interrupted: asyncio.Event) -> None:
        """Hold kept sandboxes until somebody interrupts."""
        if self.kept and not interrupted.is_set():
            say("sandboxes of failed jobs are kept; Ctrl+C lets them go")
            await interrupted.wait()

    async def close(self) -> None:
        """Let kept sandboxes and the snapshot go. Safe to repeat."""
        for handle in self.kept:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FORCE_WAIT_S):
                    await handle.release()
        self.kept.clear()
        for task in set(self.tasks):
            task.cancel()
        await self.trees.close()


class Trees:
    """The snapshot for checkout steps: made once, when the first job asks."""

    def __init__(self, prepared: Prepared, options: Options) -> None:
        self._facts = prepared.facts
        self._ref = options.ref
        self._making: asyncio.Task[Snapshot] | None = None
        self._owned: object | None = None

    async def get(self) -> Snapshot:
        """The snapshot. Raises InputError, MachineError."""
        if self._making is None:
            self._making = asyncio.create_task(asyncio.to_thread(self._make), name="snapshot")
        return await asyncio.shield(self._making)

    def _make(self) -> Snapshot:
        import os

        from runyard.sandbox import records
        from runyard.source import committed, snapshot

        if self._ref is not None:
            return committed(self._facts)
        try:
            owned = records.own(records.state_folder(), f"run-{os.getpid()}-{time.monotonic_ns()}", "run")
        except OSError as error:
            raise MachineError(
                f"{records.state_folder()} can't be written: {error.strerror}",
                code="run.state",
                remedy="RUNYARD_STATE_DIR names another folder.",
            ) from error
        self._owned = owned
        return snapshot(self._facts, owned.folder)

    async def close(self) -> None:
        """Remove what was made."""
        from runyard.sandbox.records import Owned

        if isinstance(self._owned, Owned):
            await asyncio.to_thread(self._owned.remove)
            self._owned = None


class Run:
    """One run: its state, and the tasks of its jobs."""

    def __init__(self, runs: Runs, planned: PlannedRun) -> None:
        assert planned.plan is not None
        assert planned.state is not None
        self.runs = runs
        self.plan = planned.plan
        self.state = planned.state
        self.ended = asyncio.Event()
        self.conclusion: Conclusion | None = None
        self.failed_here = False
        self.unserved = False
        self._happenings: deque[Happening] = deque()
        self._working = False
        self._handles: dict[str, JobHandle] = {}
        self._cancels: dict[str, CancelJob] = {}
        self._shown: dict[str, JobFacts] = {}
        self._woken: dict[str, asyncio.Event] = {}

    def warn(self) -> None:
        """Say before anything runs which jobs this machine can't serve."""
        for job in preview(self.plan, self.state).jobs:
            if job.spec is not None and job.runs:
                place = self.runs.machine.place(job.spec)
                if isinstance(place, Unserved):
                    self.runs.note(f"{job.name}: {place.reason}")

    def tell(self, happening: Happening) -> None:
        """Work a happening in and carry out what follows; one that comes meanwhile waits its turn."""
        self._happenings.append(happening)
        if self._working:
            return
        self._working = True
        try:
            while self._happenings:
                self.state, decisions = advance(self.plan, self.state, self._happenings.popleft(), time.time_ns())
                for decision in decisions:
                    self._carry_out(decision)
        finally:
            self._working = False

    def kill(self) -> None:
        """End every job process at once."""
        for handle in self._handles.values():
            handle.kill()

    def _carry_out(self, decision: Decision) -> None:
        now = time.time_ns()
        report = self.runs.report
        match decision:
            case StartRun(name, _, concurrency):
                report.run_started(
                    workflow=self.plan.path, event=self.plan.event, time_ns=now, run_id=self.state.run_id, name=name
                )
                if concurrency is not None:
                    self.runs.join(self, concurrency)
            case CreateJob(spec):
                self._shown[spec.key] = self._facts(spec, decision.matrix)
                report.job_waits(self._shown[spec.key], reason="waits for a slot")
                self._woken[spec.key] = asyncio.Event()
                spawn(self._job(decision), self.runs.tasks, f"job {spec.key}")
            case EndJob():
                self._end_job(decision, now)
            case CancelJob(key):
                self._cancels[key] = decision
                self._woken[key].set()
                handle = self._handles.get(key)
                if handle is not None:
                    spawn(self._order(handle, decision), self.runs.tasks, f"cancel {key}")
            case FinishRun(conclusion, _, reason, code):
                self.conclusion = conclusion
                report.run_finished(
                    conclusion=conclusion, time_ns=now, workflow=self.plan.path, reason=reason, reason_code=code
                )
                self.ended.set()
                if self.state.group is not None:
                    self.runs.left(self, self.state.group)

    async def _order(self, handle: JobHandle, decision: CancelJob) -> None:
        await handle.order(Cancel(force=decision.force, reason=decision.reason, reason_code=decision.reason_code))

    def _end_job(self, end: EndJob, now: int) -> None:
        if end.why.rule == "selected":
            return
        reason = end.reason
        if end.at is not None and 0 < end.at.file <= len(self.plan.files):
            reason = f"{self.plan.files[end.at.file - 1]}:{end.at.line}:{end.at.column}: {reason}"
        if end.conclusion == "failure":
            self.failed_here = True
        facts = JobFacts(job=end.job, key=end.key, job_name=end.name, matrix=end.matrix, workflow=self.plan.path)
        self.runs.report.job_skipped(
            facts, time_ns=now, conclusion=end.conclusion, reason=reason, reason_code=end.reason_code
        )

    def _facts(self, spec: JobSpec, matrix: Json) -> JobFacts:
        values = " ".join(f"--matrix {shlex.quote(f'{key}:{value}')}" for key, value in _scalars(matrix))
        return JobFacts(
            job=spec.job,
            key=spec.key,
            job_name=spec.name,
            matrix=matrix,
            total_steps=len(spec.steps),
            workflow=self.plan.path,
            rerun=f"runyard run {self.plan.path} --job {spec.job}{f' {values}' if values else ''}",
        )

    # --- one job

    async def _job(self, made: CreateJob) -> None:
        spec = made.spec
        conclusion: Conclusion = "failure"
        outputs: dict[str, str] = {}
        unserved = False
        try:
            place = self.runs.machine.place(spec)
            if isinstance(place, Unserved):
                unserved = self._unserved(spec, place.reason)
            elif await self._slot(spec.key):
                try:
                    finished = await self._execute(made, place)
                finally:
                    self.runs.slots.release()
                conclusion, outputs = finished.conclusion, finished.outputs
                if conclusion == "failure" and not spec.continue_on_error:
                    if finished.reason_code in ("unavailable", "refused"):
                        self.unserved = True
                    else:
                        self.failed_here = True
            else:
                conclusion = "cancelled"
                cancel = self._cancels[spec.key]
                self._ended_early(spec, "cancelled", cancel.reason, cancel.reason_code)
        except MachineError as error:
            unserved = self._unserved(spec, str(error))
        except OSError as error:
            unserved = self._unserved(
                spec, f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
            )
        except RunyardError as error:
            self.failed_here = True
            self._ended_early(spec, "failure", str(error), "invalid_job")
        except UnevaluableError as error:
            self.failed_here = True
            self._ended_early(spec, "failure", error.message, "evaluation_error")
        finally:
            self._handles.pop(spec.key, None)
            self.tell(Finished(spec.key, conclusion, outputs, unserved))

    def _unserved(self, spec: JobSpec, reason: str) -> bool:
        if not spec.continue_on_error:
            self.unserved = True
        self._ended_early(spec, "failure", reason, "unavailable")
        return True

    def _ended_early(self, spec: JobSpec, conclusion: Conclusion, reason: str, code: str) -> None:
        self.runs.report.job_skipped(
            self._shown[spec.key], time_ns=time.time_ns(), conclusion=conclusion, reason=reason, reason_code=code
        )

    async def _slot(self, key: str) -> bool:
        """Wait for a slot; False when the job was cancelled first."""
        if not self.runs.slots.locked():
            await self.runs.slots.acquire()
        else:
            acquiring = asyncio.ensure_future(self.runs.slots.acquire())
            woken = asyncio.ensure_future(self._woken[key].wait())
            await asyncio.wait({acquiring, woken}, return_when=asyncio.FIRST_COMPLETED)
            woken.cancel()
            if not acquiring.done():
                acquiring.cancel()
                return False
        if key in self._cancels:
            self.runs.slots.release()
            return False
        return True

    async def _execute(self, made: CreateJob, place: Place) -> JobFinished:
        runs, spec = self.runs, made.spec
        backend = runs.offers.backend_for(spec, place.image)
        if backend.line is not None:
            runs.note(backend.line)
        secrets = resolve_secrets(
            made.secrets, runs.options.secrets, self.state.context, strict=runs.options.strict_github
        )
        snapshot = await runs.trees.get() if needs_tree(spec) else None
        source = LocalSource(
            self.state.context,
            snapshot,
            environments=runs.options.environments,
            policy=runs.options.policy or OWN_MACHINE,
            strict_github=runs.options.strict_github,
        )
        settings = await asyncio.to_thread(self._settings, spec, place, backend)
        handle = await runs.launcher.launch(
            runs.actions.with_token(source.claim(spec, secrets)),
            settings,
            on_pause=_on_pause(runs) if runs.options.pause_on_failure else None,
        )
        self._handles[spec.key] = handle
        runs.busy.set()
        self.tell(Started(spec.key))
        cancel = self._cancels.get(spec.key)
        if cancel is not None:
            # As a task of its own it comes after the hand-out, which the launcher's task sends first.
            spawn(self._order(handle, cancel), runs.tasks, f"cancel {spec.key}")
        sink = runs.report.job(self._shown[spec.key])
        finished: JobFinished | None = None
        async for event in handle.events():
            sink.take(event)
            if isinstance(event, JobFinished):
                finished = event
        sink.close()
        if finished is None or runs.options.keep:  # that a sandbox is kept is told after the result
            finished = await handle.wait()
        if handle.kept is not None:
            runs.kept.append(handle)
            runs.note(f"{spec.name} is kept; enter it with: {handle.kept}")
        return finished

    def _settings(self, spec: JobSpec, place: Place, backend: Backend) -> JobSettings:
        options = self.runs.options
        return msgspec.structs.replace(
            settings_for(spec, place, backend, self.runs.actions, tools=options.tools, hooks=options.hooks),
            runner_env=options.env,
            action_pins=self.runs.prepared.pins,
            keep=options.keep,
            pause_on_failure=options.pause_on_failure,
            artifacts_dir=options.artifacts or "",
            collect_dir=_collected(options, spec) if spec.collect else "",
            stores=_stores(self.runs, spec),
        )


def _collected(options: Options, spec: JobSpec) -> str:
    """The folder for the artifacts that a pipeline's job declares: one a job, below --artifacts where it is given."""
    if options.artifacts:
        return f"{options.artifacts}/{spec.key}"
    return f"{cache_folder(options.cache_dir)}/collected/{spec.run_id}/{spec.key}"


def _stores(runs: Runs, spec: JobSpec) -> StoreSettings:
    if runs.prepared.stores is None:
        return StoreSettings()
    from runyard.cli.run_stores import settings_for

    return settings_for(runs.prepared, spec, cache_folder(runs.options.cache_dir))


def _on_pause(runs: Runs) -> OnPause:
    from runyard.cli.run_pause import Pausing

    return Pausing(runs.report).ask


def _scalars(matrix: Json) -> list[tuple[str, str]]:
    if not isinstance(matrix, dict):
        return []
    return [(key, to_text(value)) for key, value in matrix.items() if isinstance(value, (str, int, float))]


def needs_tree(spec: JobSpec) -> bool:
    """Whether a checkout may happen in the job: it uses some action."""
    from runyard.job import ActionStep

    return any(isinstance(step, ActionStep) for step in spec.steps)
