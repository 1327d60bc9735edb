"""One job from hand-out to result: the phases of job-semantics 3.1 in a sandbox of its own.

Set-up, pre steps, main steps, post steps, completion, in this order. An order may come at any moment (`JobRun.order`);
it changes the job's status and stops what runs, and the phases go on with what is still to be done.
"""

from __future__ import annotations

import asyncio
import functools
import time
from typing import TYPE_CHECKING, TypeVar

import runyard
from runyard.engine.actions import NoActionStore, run_pre_step, run_pre_steps, steps_with_pre
from runyard.engine.complete import complete_job, used_by
from runyard.engine.layout import layout_for
from runyard.engine.matchers import Matchers, parse_timespan
from runyard.engine.processes import Waits
from runyard.engine.results import Result
from runyard.engine.services import Services
from runyard.engine.setup import enter_session, make_contexts, set_up_job
from runyard.engine.shape import shape_of
from runyard.engine.state import Control, Frame, Job, JobHooks
from runyard.engine.steps import default_name, finish_record, retest, run_workflow_step
from runyard.job import (
    Cancel,
    Drain,
    JobFinished,
    JobStarted,
    LeaseLost,
    Pause,
    RunStep,
    RunyardError,
    StepStarted,
    TextToken,
)
from runyard.report.masks import masker_for
from runyard.sandbox.contract import Identity, SandboxRefused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from runyard.engine.actions import ActionStore
    from runyard.engine.logbook import Emitter, StepLog
    from runyard.engine.services import JobServices
    from runyard.engine.state import PostStep
    from runyard.engine.wire import JobSettings
    from runyard.job import Claim, Conclusion, Order
    from runyard.sandbox.contract import Sandbox, Session

_Value = TypeVar("_Value")

CLOSE_TIMEOUT_S = 30.0
SHUTDOWN = "runner shutdown"


class LeaseGone(Exception):  # noqa: N818 - ends a job without a result; nothing went wrong here
    """The lease was lost: the sandbox is closed and nothing more is reported."""


class _Aborted(Exception):  # noqa: N818 - unwinds a set-up that is no longer wanted
    """The job was ended by force before its steps began."""


class JobRun:
    """One claim's execution. `run` once; `order` from the same loop whenever one arrives."""

    def __init__(
        self,
        claim: Claim,
        settings: JobSettings,
        *,
        sandbox: Sandbox,
        emitter: Emitter,
        hooks: JobHooks | None = None,
        waits: Waits | None = None,
        actions: ActionStore | None = None,
        services: JobServices | None = None,
    ) -> None:
        timeout = claim.context.vars.get("GITHUB_ACTIONS_RUNNER_ISSUE_MATCHER_TIMEOUT") or settings.runner_env.get(
            "GITHUB_ACTIONS_RUNNER_ISSUE_MATCHER_TIMEOUT"
        )
        seconds = parse_timespan(timeout) if timeout else None
        self.job = Job(
            claim,
            settings,
            layout_for(claim.context.github.get("repository")),
            emitter=emitter,
            masker=masker_for(claim),
            matchers=Matchers() if seconds is None else Matchers(timeout_s=seconds),
            hooks=hooks,
            waits=waits or Waits(),
        )
        self.job.actions = actions or NoActionStore()
        self.job.services = Services(services)
        if settings.stores.declared:
            from runyard.engine.stores import JobStores

            self.job.stores = JobStores(self.job, settings.stores)
        self.job.capabilities = sandbox.capabilities
        make_contexts(self.job)
        self.session: Session | None = None
        self.keeps = False
        self._sandbox = sandbox
        self._abort = asyncio.Event()
        self._lease_lost: LeaseLost | None = None
        self._cancelled: Cancel | None = None
        self._shut_down = False
        self._timers: list[asyncio.TimerHandle] = []
        self._usage_started = time.monotonic()

    async def run(self) -> JobFinished:
        """Everything, to the result. Raises LeaseGone, and nothing else that a job could cause.

        The session is closed on return, except where `keeps` is set: then whoever called closes it later.
        """
        job = self.job
        job.emitter.emit(JobStarted(job.now_ns()))
        self._after(job.spec.limits.timeout_s, self._time_is_up)
        try:
            finished = await self._phases()
        except LeaseGone:
            await self._close(None)
            raise
        finally:
            for timer in self._timers:
                timer.cancel()
        return finished

    async def _phases(self) -> JobFinished:
        job = self.job
        log = job.new_log(0)
        frame = _job_frame(job, log, "Set up job")
        log.emit(StepStarted(0, frame.name, job.now_ns()))
        started = time.monotonic()
        ready = await self._set_up(frame)
        hooks = job.settings.hooks
        apart = bool(job.containers or hooks.started or hooks.host_started)
        stores = job.stores
        if ready and stores is not None and not job.containers:
            await stores.begin(frame)
        if ready and not apart:
            await run_pre_steps(frame)
        result = frame.result or Result.SUCCESS
        finish_record(frame, result, result, started)
        if ready and job.containers:
            ready = await self._initialize_containers()
        if ready and stores is not None and job.containers:
            await self._generated_step("Lay stores", stores.begin)
        if ready and hooks:
            await self._hooks()
        if ready and apart:
            await self._pre_steps()
        if not ready:
            await self._close(log)
            return self._finished(frame, {}, (), None)
        for step in job.spec.steps:
            self._check_lease()
            await run_workflow_step(job, step)
        while job.posts:
            self._check_lease()
            await self._post_step(job.posts.pop())
        self._check_lease()
        return await self._complete()

    async def _set_up(self, frame: Frame) -> bool:
        """Phase 3. False: nothing else is to run, the job is over."""
        try:
            await set_up_job(frame, self._open_session, runyard.__version__)
        except _Aborted:
            frame.result = Result.CANCELLED
            return False
        except RunyardError as error:
            self._has_no_sandbox(frame, error)
            return False
        return True

    def _has_no_sandbox(self, frame: Frame, error: RunyardError) -> None:
        job = self.job
        refused = isinstance(error, SandboxRefused) or error.code.startswith(("refused", "admission"))
        code = "refused" if refused else "unavailable" if error.exit_code == 3 else "invalid_job"
        frame.log.issue("error", str(error))
        frame.explain(code, str(error))
        frame.result = Result.CANCELLED if job.status == "cancelled" else Result.FAILURE
        job.status = "failure"
        job.first_failure = frame

    async def _initialize_containers(self) -> bool:
        """The generated steps of 3.2. False: there is no sandbox to run anything in."""
        from runyard.engine.initialize import start_containers

        async def open_session() -> None:
            enter_session(self.job, await self._open_session())

        is_there = True

        async def start(frame: Frame) -> Result:
            nonlocal is_there
            try:
                return await start_containers(frame, open_session)
            except _Aborted:
                is_there = False
                return Result.CANCELLED
            except RunyardError as error:
                is_there = False
                self._has_no_sandbox(frame, error)
                return frame.result or Result.FAILURE

        await self._generated_step("Initialize containers", start)
        return is_there

    async def _hooks(self) -> None:
        """The started hooks, each in a record of its own; the completed ones go below all post steps (3.2)."""
        from runyard.engine.hooks import register_completed, started_hooks

        register_completed(self.job)
        for name, run in started_hooks(self.job):
            await self._generated_step(name, run)

    async def _pre_steps(self) -> None:
        """The pre phases of actions in records of their own: something ran after set-up already."""
        for step in steps_with_pre(self.job):
            await self._generated_step(f"Pre {default_name(step)}", functools.partial(run_pre_step, step=step))

    async def _generated_step(self, name: str, run: Callable[[Frame], Awaitable[Result]]) -> None:
        """A record of its own before the first step."""
        job = self.job
        log = job.new_log(job.take_number())
        frame = _job_frame(job, log, name)
        log.emit(StepStarted(log.step, job.masker.mask_text(name), job.now_ns()))
        started = time.monotonic()
        job.frames.append(frame)
        try:
            result = await run(frame)
        finally:
            job.frames.remove(frame)
        if result is Result.FAILURE:
            job.status = "failure"
            job.first_failure = job.first_failure or frame
        finish_record(frame, result, result, started)

    async def _open_session(self) -> Session:
        job, settings = self.job, self.job.settings
        shape = await shape_of(job)
        self.session = await self._unless_aborted(self._sandbox.prepare(shape))
        identity = Identity(
            job_key=job.spec.key, run_id=job.spec.run_id, attempt=job.claim.attempt, owner=settings.owner
        )
        await self._unless_aborted(self.session.adopt(identity))
        return self.session

    async def _unless_aborted(self, work: Awaitable[_Value]) -> _Value:
        doing = asyncio.ensure_future(work)
        aborted = asyncio.ensure_future(self._abort.wait())
        await asyncio.wait({doing, aborted}, return_when=asyncio.FIRST_COMPLETED)
        aborted.cancel()
        if not doing.done():
            doing.cancel()
            await asyncio.wait({doing}, timeout=CLOSE_TIMEOUT_S)
            raise _Aborted
        return doing.result()

    async def _post_step(self, post: PostStep) -> None:
        job = self.job
        log = job.new_log(job.take_number())
        frame = Frame(job, post.step, post.scope, log, Control(), phase="post", state=post.state)
        frame.name = post.name
        log.emit(StepStarted(log.step, job.masker.mask_text(frame.name), job.now_ns()))
        started = time.monotonic()
        job.frames.append(frame)
        try:
            result = await post.run(frame)
        finally:
            job.frames.remove(frame)
        if result is Result.FAILURE:
            job.status = "failure"
            job.first_failure = job.first_failure or frame
        finish_record(frame, result, result, started)

    async def _complete(self) -> JobFinished:
        job = self.job
        log = job.new_log(job.take_number())
        frame = _job_frame(job, log, "Complete job")
        log.emit(StepStarted(log.step, frame.name, job.now_ns()))
        started = time.monotonic()
        if job.spec.collect and not job.skips_everything:
            from runyard.engine.collect import collect

            await collect(frame)
        outputs, dropped, url = await complete_job(frame)
        if job.stores is not None and frame.reason_code is None:
            await job.stores.publish(frame)
        job.services.say_notes(frame)
        self.keeps = job.settings.keep and job.status == "failure" and self.session is not None
        if not self.keeps:
            await self._close(log)
        result = Result.FAILURE if frame.reason_code else Result.SUCCESS
        if result is Result.FAILURE:
            job.status = "failure"
            job.first_failure = job.first_failure or frame
        finish_record(frame, result, result, started)
        self._check_lease()
        return self._finished(frame, outputs, dropped, url)

    def _finished(
        self, frame: Frame, outputs: dict[str, str], dropped: tuple[str, ...], url: str | None
    ) -> JobFinished:
        job = self.job
        reason, code = self._why()
        return JobFinished(
            conclusion=self._conclusion(),
            time_ns=job.now_ns(),
            reason=job.masker.mask_text(reason) if reason else None,
            reason_code=code,
            outputs=outputs,
            dropped_outputs=dropped,
            environment_url=url,
            usage=used_by(job, time.monotonic() - self._usage_started),
        )

    def _conclusion(self) -> Conclusion:
        return "failure" if self._shut_down else self.job.status

    def _why(self) -> tuple[str | None, str | None]:
        if self._cancelled is not None:
            return self._cancelled.reason or "the job was cancelled", self._cancelled.reason_code
        failure = self.job.first_failure
        if failure is None:
            return None, None
        reason = f"step '{failure.name}': {failure.reason}" if failure.reason else f"step '{failure.name}' failed"
        return reason, failure.reason_code

    async def _close(self, log: StepLog | None) -> None:
        session, self.session = self.session, None
        if session is None:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                self.job.usage = await session.usage()
                left = await session.close()
        except (TimeoutError, RunyardError) as error:
            if log is not None:
                log.say(f"The sandbox did not close in time: {error}")
            return
        finally:
            await self.job.services.close()
            if self.job.stores is not None:
                self.job.stores.close()
            self.job.clean_up()
        if log is not None:
            for item in left.items:
                log.say(f"The sandbox left something behind, which the next start removes: {item}")

    # Orders -----------------------------------------------------------------------------------------------------

    def order(self, order: Order) -> None:
        """Obey an order now. Safe to repeat; a second cancellation without force changes nothing."""
        match order:
            case Cancel():
                self._cancel(order)
            case LeaseLost():
                self._lease_lost = order
                self._force()
            case Drain():
                self._drain(order)
            case Pause():
                self.job.pause_wanted = True

    def is_stopping(self) -> bool:
        """Whether what is only prepared is no longer wanted. Safe from any thread."""
        return self.job.skips_everything or self.job.status == "cancelled"

    def _cancel(self, cancel: Cancel) -> None:
        job = self.job
        if cancel.force:
            self._cancelled = self._cancelled or cancel
            job.status = "cancelled"
            self._force()
        elif self._cancelled is None:
            self._cancelled = cancel
            job.status = "cancelled"
            if not job.session_is_open:
                self._abort.set()
            self._stop_what_should()
            self._after(job.settings.clean_up_s, self._force)

    def _stop_what_should(self) -> None:
        """Look at the condition of every step that runs again; the ones that no longer hold are stopped (section 5)."""
        for frame in list(self.job.frames):
            if frame.control.why is None and not retest(frame):
                frame.log.issue("error", "The operation was canceled.")
                frame.explain("cancelled_by_user", "the job was cancelled")
                frame.control.stop("cancelled")
        self.job.hooks.interrupt_pause()

    def _force(self) -> None:
        job = self.job
        job.skips_everything = True
        self._abort.set()
        job.hooks.interrupt_pause()
        for frame in list(job.frames):
            frame.control.stop("forced")

    def _drain(self, drain: Drain) -> None:
        if self.job.strict:
            # GitHub's runner fails the job at once and skips every remaining step (deviation D4).
            self._shut_down = True
            self._cancelled = Cancel(reason=SHUTDOWN, reason_code="runner_shutdown")
            self.job.status = "cancelled"
            self.job.skips_everything = True
            self._abort.set()
            for frame in list(self.job.frames):
                frame.control.stop("cancelled")
        elif drain.timeout_s is not None:
            shutdown = Cancel(reason=SHUTDOWN, reason_code="runner_shutdown")
            self._after(drain.timeout_s, self._cancel, shutdown)

    def _time_is_up(self) -> None:
        limits = self.job.spec.limits
        reason = limits.timeout_from or f"the job ran longer than its limit of {limits.timeout_s / 60:g} min"
        self._cancel(Cancel(reason=reason, reason_code="timed_out"))

    def _after(self, seconds: float, call: object, *args: object) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, call, *args))  # type: ignore[arg-type]

    def _check_lease(self) -> None:
        if self._lease_lost is not None:
            raise LeaseGone(self._lease_lost.reason)


def _job_frame(job: Job, log: StepLog, name: str) -> Frame:
    """A frame for what belongs to the job itself; its step says nothing."""
    step = RunStep(id="", number=log.step, script=TextToken(""))
    frame = Frame(job, step, job.scope, log, Control())
    frame.name = name
    return frame
