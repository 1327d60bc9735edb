"""The life of a step: environment, condition, handler, results, in exactly this order (job-semantics 4.1).

One function for the steps of a workflow and one for those nested in a composite action: they differ in what an error
before the start does, in time limits and in which status their conditions look at.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, assert_never

from runyard.engine.evaluate import decide, still_holds, text_of, texts_of, value_of
from runyard.engine.refusals import ask_refusals
from runyard.engine.results import Result, merge
from runyard.engine.run_step import fail, run_script, script_title
from runyard.engine.state import Control, Frame, plus
from runyard.expression.errors import ExpressionError
from runyard.job import (
    ActionStep,
    ContainerActionStep,
    InputError,
    MachineError,
    Output,
    RunStep,
    StepFinished,
    StepStarted,
    TextToken,
)

if TYPE_CHECKING:
    from runyard.engine.state import Job, Scope
    from runyard.job import Step, Template


async def run_workflow_step(job: Job, step: Step) -> None:
    """One step of the workflow, from its StepStarted to its StepFinished; folds its result into the job's status."""
    log = job.new_log(step.number)
    control = Control()
    frame = Frame(job, step, job.scope, log, control)
    frame.name = default_name(step)
    await _try_name(frame)
    log.emit(StepStarted(step.number, job.masker.mask_text(frame.name), job.now_ns(), own_id(step)))
    started = time.monotonic()
    job.frames.append(frame)
    try:
        outcome, conclusion = await _attempts(frame)
    finally:
        job.frames.remove(frame)
    if job.stores is not None and step.number == job.stores.after:
        await job.stores.lay(frame, workspace=True)
    job.scope.record(step.id, frame.outputs, outcome.conclusion, conclusion.conclusion)
    _tell_outputs(frame)
    if conclusion is Result.FAILURE:
        job.status = "failure"
        job.first_failure = job.first_failure or frame
    finish_record(frame, outcome, conclusion, started)


async def _attempts(frame: Frame) -> tuple[Result, Result]:
    """The step, again as long as a person who looks at its failure wants it again."""
    while True:
        outcome = await _lifecycle(frame)
        conclusion = await _with_continue_on_error(frame, outcome)
        if outcome is Result.FAILURE:
            await ask_refusals(frame.job)
        if conclusion is not Result.FAILURE or frame.control.why is not None:
            return outcome, conclusion
        match await frame.job.pause_at(frame):
            case "retry":
                frame.start_again()
            case "give_up":
                frame.log.say("The job was given up at this step: nothing more of it is run.")
                frame.job.skips_everything = True
                return outcome, conclusion
            case _:
                return outcome, conclusion


async def _lifecycle(frame: Frame) -> Result:
    """Steps 4 to 9 of the order. An error in `env` fails the step even where its `if` would be false (O19)."""
    step = frame.step
    try:
        frame.add_own_env(await texts_of(frame, step.env))
    except InputError as error:
        frame.undecided = True
        return _evaluation_failed(frame, error)
    await _try_name(frame)
    runs = await _decided(frame, step.condition)
    if not isinstance(runs, bool):
        frame.undecided = True
        return runs
    if not runs:
        return Result.SKIPPED
    timer = await _start_timer(frame, step.timeout_minutes)
    try:
        result = await handle(frame)
    finally:
        if timer is not None:
            timer.cancel()
    if frame.command_failed:
        result = merge(result, Result.FAILURE)
    return result


async def _decided(frame: Frame, condition: str) -> bool | Result:
    """Whether the step runs, or the failure that its condition's error is."""
    if frame.job.skips_everything:
        return False
    try:
        decision = await decide(frame, condition)
    except InputError as error:
        frame.log.issue("error", f"The condition could not be evaluated: {error}")
        frame.explain("condition_error", str(error))
        return Result.FAILURE
    if not decision.runs:
        frame.explain("condition_false", decision.because())
    return decision.runs


async def _start_timer(frame: Frame, minutes: Template | None) -> asyncio.TimerHandle | None:
    """The step's own time limit: truncated to whole minutes, none below one (O6, O7)."""
    if minutes is None:
        return None
    try:
        limit = int(await value_of(frame, minutes, "number"))
    except (InputError, OverflowError, ValueError) as error:
        frame.log.issue("error", f"timeout-minutes could not be evaluated: {error}")
        return None
    if limit < 1:
        return None

    def fire() -> None:
        message = f"The action '{frame.name}' has timed out after {limit} minutes."
        frame.log.issue("error", message)
        frame.explain("timed_out", message)
        frame.control.stop("timed_out")

    return asyncio.get_running_loop().call_later(limit * frame.job.minute_s, fire)


async def handle(frame: Frame) -> Result:
    """The handler of a step's kind. What goes wrong on the way fails the step with a line in the log."""
    step = frame.step
    try:
        match step:
            case RunStep():
                return await run_script(frame, step)
            case ActionStep() | ContainerActionStep():
                from runyard.engine.actions import run_action

                return await run_action(frame, step)
            case _:
                assert_never(step)
    except ExpressionError as error:
        return _evaluation_failed(frame, error)
    except InputError as error:
        return fail(frame, str(error))
    except MachineError as error:
        frame.explain("sandbox_lost" if error.code.startswith("sandbox") else "unavailable", str(error))
        return fail(frame, str(error))


def _evaluation_failed(frame: Frame, error: InputError) -> Result:
    frame.log.issue("error", str(error))
    frame.explain("evaluation_error", str(error))
    return Result.FAILURE


async def _with_continue_on_error(frame: Frame, outcome: Result) -> Result:
    """The conclusion: looked at only after a failure, and not after an error before the start (4.2)."""
    wish = frame.step.continue_on_error
    if outcome is not Result.FAILURE or wish is None or frame.undecided:
        return outcome
    try:
        forgiven = await value_of(frame, wish, "boolean")
    except InputError as error:
        frame.log.issue("error", f"continue-on-error could not be evaluated: {error}")
        return outcome
    return Result.SUCCESS if forgiven else outcome


async def run_nested_step(outer: Frame, step: Step, scope: Scope, state: dict[str, str]) -> tuple[Result, Frame]:
    """One step inside the composite action that `outer` runs: its conclusion, and the frame it ran in (9.7).

    Raises ExpressionError when its condition can't be evaluated: that ends the whole action.
    """
    job = outer.job
    frame = Frame(job, step, scope, outer.log, Control(outer.control), state=state)
    frame.name = default_name(step)
    job.frames.append(frame)
    try:
        outcome = await _nested_lifecycle(frame)
        conclusion = await _with_continue_on_error(frame, outcome)
    finally:
        job.frames.remove(frame)
    scope.record(step.id, frame.outputs, outcome.conclusion, conclusion.conclusion)
    return conclusion, frame


async def _nested_lifecycle(frame: Frame) -> Result:
    result: Result | None = None
    try:
        frame.add_own_env(await texts_of(frame, frame.step.env))
    except InputError as error:
        # Unlike a workflow step it is not left there: the condition is still looked at and the step still runs.
        result = _evaluation_failed(frame, error)
    await _try_name(frame)
    if frame.job.skips_everything or not (await decide(frame, frame.step.condition)).runs:
        return merge(result, Result.SKIPPED) if result is None else result
    result = merge(result, await handle(frame))
    return merge(result, Result.FAILURE) if frame.command_failed else result


def retest(frame: Frame) -> bool:
    """Whether a step that runs may go on after the job's status has changed (section 5)."""
    return still_holds(frame, frame.condition)


async def _try_name(frame: Frame) -> None:
    """An explicit name, as soon as its contexts are there; otherwise what stands there already stays (4.4)."""
    if frame.step.name is None:
        if isinstance(frame.step, RunStep) and not isinstance(frame.step.script, TextToken):
            await _try_script_name(frame, frame.step)
        return
    try:
        frame.name = await text_of(frame, frame.step.name) or frame.name
    except InputError:
        return


async def _try_script_name(frame: Frame, step: RunStep) -> None:
    try:
        frame.name = script_title(await text_of(frame, step.script))
    except InputError:
        return


def default_name(step: Step) -> str:
    """The display name before anything is evaluated (4.4)."""
    if isinstance(step.name, TextToken) and step.name.value:
        return step.name.value
    match step:
        case RunStep():
            return script_title(_raw(step.script))
        case ActionStep():
            return f"Run {step.uses}"
        case ContainerActionStep():
            return f"Run {step.image}"
        case _:
            assert_never(step)


def _raw(template: Template) -> str:
    if isinstance(template, TextToken):
        return template.value
    return "${{ " + getattr(template, "text", "") + " }}"


def own_id(step: Step) -> str:
    """The id as written, "" where it was generated."""
    return "" if step.id.startswith("__") else step.id


def _tell_outputs(frame: Frame) -> None:
    if not own_id(frame.step):
        return
    mask = frame.job.masker.mask_text
    for name, value in frame.outputs.items():
        frame.log.emit(Output(frame.log.step, mask(name), mask(value), frame.job.now_ns()))


def finish_record(frame: Frame, outcome: Result, conclusion: Result, started: float) -> None:
    """The record's last event."""
    job = frame.job
    frame.log.settle()
    usage = frame.usage_since(started)
    job.used_by_steps = plus(job.used_by_steps, usage)
    frame.log.emit(
        StepFinished(
            frame.log.step,
            job.masker.mask_text(frame.name),
            outcome=outcome.conclusion,
            conclusion=conclusion.conclusion,
            time_ns=job.now_ns(),
            id=own_id(frame.step),
            exit_code=frame.exit_code,
            usage=usage,
            reason=job.masker.mask_text(frame.reason) if frame.reason else None,
            reason_code=frame.reason_code,
        )
    )
