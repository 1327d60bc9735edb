"""`run --list` and `run --plan`: the shapes that programs read, and the lines that people do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runyard.cli.run_machine import Machine, Unserved
from runyard.cli.run_notes import job_notes, secret_notes
from runyard.cli.shapes import ListedJob, ListedWorkflow, Listing, PlanDecision, PlanNote, PlanStep
from runyard.expression import ExpressionError, Looked, evaluate_condition, job_status_functions, references_of
from runyard.job import ActionStep, ContainerActionStep, NullToken, RunStep, TextToken
from runyard.run import PreviewJob, Why, preview
from runyard.run.evaluate import written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runyard.cli.run_prepare import Options, PlannedRun, Prepared
    from runyard.job import Json, RunContext, Step


class Offer(msgspec.Struct, frozen=True):
    """What `--plan` says of the machine: the backend and network a job would get."""

    sandbox: str | None
    network: str | None


def listing(
    prepared: Prepared,
    options: Options,
    *,
    whole: bool,
    offer: Callable[[PreviewJob, str], Offer] | None = None,
    more_notes: Callable[[tuple[Step, ...], str], list[PlanNote]] | None = None,
) -> Listing:
    """The shape of `--list` (or, `whole`, of `--plan`). `more_notes` knows about steps in an image."""
    machine = Machine(options.images, options.labels)
    return Listing(
        workflows=[
            ListedWorkflow(
                path=run.path,
                triggered=run.triggered,
                reason=run.reason,
                jobs=[
                    _job(each, run, options, machine, offer=offer if whole else None, more_notes=more_notes)
                    for each in _previewed(run)
                ],
            )
            for run in prepared.runs
        ]
    )


def _previewed(run: PlannedRun) -> tuple[PreviewJob, ...]:
    return () if run.plan is None or run.state is None else preview(run.plan, run.state).jobs


def _job(
    job: PreviewJob,
    run: PlannedRun,
    options: Options,
    machine: Machine,
    *,
    offer: Callable[[PreviewJob, str], Offer] | None,
    more_notes: Callable[[tuple[Step, ...], str], list[PlanNote]] | None,
) -> ListedJob:
    listed = ListedJob(
        id=job.job,
        key=job.key,
        name=job.name,
        matrix=job.matrix,
        needs=list(job.needs),
        runs=job.runs,
        reason=job.reason,
    )
    if offer is None:
        return listed
    assert run.state is not None
    why, notes = job.why, job_notes(job.plan, job.spec, options.secrets, matrix_empty=_excluded(job))
    image: str | None = None
    if job.spec is not None:
        place = machine.place(job.spec)
        if isinstance(place, Unserved):
            why = Why("label", None, dict(place.values))
            listed.reason = place.reason
        else:
            image = place.image
            if more_notes is not None:
                notes += more_notes(job.spec.steps, image if job.spec.container is None else "")
            if place.stand_in is not None:
                notes.append(_stand_in(place.stand_in, place.image))
    offered = Offer(None, None) if image is None else offer(job, image)
    listed.decision = _decision(why)
    listed.runs_on = _runs_on(job)
    listed.image = image
    listed.sandbox = offered.sandbox
    listed.network = offered.network
    listed.steps = [_step(step, job, run.state.context) for step in job.plan.steps]
    listed.notes = [*secret_notes(options.secrets), *notes]
    return listed


def _excluded(job: PreviewJob) -> bool:
    strategy = job.plan.strategy
    return strategy is not None and strategy.matrix is not None and job.spec is not None and job.matrix is None


def _stand_in(label: str, image: str) -> PlanNote:
    return PlanNote(code="stand_in", message=f"{label} is the image {image!r} of this machine here (D20)", step=None)


def _runs_on(job: PreviewJob) -> Json:
    if job.spec is None:
        template = job.plan.runs_on
        return written(template) or None if template is not None else None
    labels: Json = list(job.spec.labels)
    return labels if job.spec.group is None else {"group": job.spec.group, "labels": labels}


def _decision(why: Why) -> PlanDecision:
    return PlanDecision(rule=why.rule, condition=why.condition, values=why.values)


def _step(step: Step, job: PreviewJob, context: RunContext) -> PlanStep:
    uses = step.uses if isinstance(step, (ActionStep, ContainerActionStep)) else None
    return PlanStep(
        number=step.number,
        id=None if step.id.startswith("__") else step.id,
        name=step_name(step),
        uses=uses,
        decision=_decision(_step_why(step, job, context)),
    )


def step_name(step: Step) -> str:
    """The name a step will be shown by, expressions as written (job-semantics 4.4)."""
    if step.name is not None and not isinstance(step.name, NullToken):
        return written(step.name)
    if isinstance(step, RunStep):
        script = step.script.value if isinstance(step.script, TextToken) else written(step.script)
        return f"Run {script.lstrip().partition(chr(10))[0].rstrip()}"
    return f"Run {step.image if isinstance(step, ContainerActionStep) else step.uses}"


def _step_why(step: Step, job: PreviewJob, context: RunContext) -> Why:
    """A step's condition as far as it can be known: what looks only at the run is decided, the rest is `later`."""
    condition = None if step.condition == "success()" else step.condition
    later = Why("later", condition)
    if job.spec is None:
        return later
    contexts: dict[str, Json] = {
        "github": {**context.github, "event": context.event},
        "vars": context.vars,
        "inputs": {} if job.spec.inputs is None else job.spec.inputs,
        "matrix": job.spec.matrix,
        "needs": {name: {"result": need.result, "outputs": need.outputs} for name, need in job.spec.needs.items()},
    }
    try:
        used = references_of(step.condition)
        if not used.contexts <= set(contexts) or "hashfiles" in used.functions:
            return later
        trace: list[Looked] = []
        functions = job_status_functions({})
        holds = evaluate_condition(step.condition, contexts, functions, trace=trace)
        shown = {text: value for text, value in trace if text.lower() != "github.token"}
        if not holds and "failure" not in used.functions and "cancelled" not in used.functions:
            return Why("if", condition, shown)
        if holds and "always" in used.functions and used.functions <= {"always"}:
            return Why("if", condition, shown)
    except ExpressionError:
        return later
    return later


# --- for people


def list_lines(listing_: Listing, event: str) -> Iterator[str]:
    """Lines of `--list`."""
    for workflow in listing_.workflows:
        if not workflow.triggered:
            yield f"{workflow.path}: not started by {event}: {workflow.reason}"
            continue
        yield f"{workflow.path}: {workflow.reason}"
        width = max((len(job.id) for job in workflow.jobs), default=0)
        for job in workflow.jobs:
            mark = " " if job.runs else "-"
            needs = f"  needs {', '.join(job.needs)}" if job.needs else ""
            why = f"  ({job.reason})" if job.reason else ""
            yield f"  {mark} {job.id:<{width}}  {job.name}{needs}{why}"


def plan_lines(listing_: Listing, event: str) -> Iterator[str]:
    """Lines of `--plan`: each decision with its rule, condition and values."""
    for workflow in listing_.workflows:
        verb = "started" if workflow.triggered else "not started"
        yield f"{workflow.path}: {verb} by {event} [trigger]: {workflow.reason}"
        for job in workflow.jobs:
            yield f"  {job.name} ({job.key})"
            yield f"    {'runs' if job.runs else 'is skipped'}{_because(job.reason)}"
            if not isinstance(job.decision, msgspec.UnsetType):
                yield f"    {_decided(job.decision)}"
            where = [
                f"on {_shown(job.runs_on)}",
                f"image {job.image}",
                f"sandbox {job.sandbox}",
                f"network {job.network}",
            ]
            yield f"    {', '.join(where)}"
            for step in job.steps if not isinstance(job.steps, msgspec.UnsetType) else ():
                yield f"    {step.number}. {step.name}  {_decided(step.decision)}"
            for note in job.notes if not isinstance(job.notes, msgspec.UnsetType) else ():
                at = f" (step {note.step})" if note.step is not None else ""
                yield f"    note {note.code}{at}: {note.message}"


def _because(reason: str | None) -> str:
    return f": {reason}" if reason else ""


def _decided(decision: PlanDecision) -> str:
    condition = f" {decision.condition}" if decision.condition else ""
    values = ", ".join(f"{path} = {_shown(value)}" for path, value in decision.values.items())
    return f"[{decision.rule}]{condition}{f'  where {values}' if values else ''}"


def _shown(value: Json) -> str:
    text = msgspec.json.encode(value).decode() if not isinstance(value, msgspec.UnsetType) else "?"
    return text if len(text) <= 200 else f"{text[:197]}..."
