"""Our plans in the shape of the corpus's `official_template`, so that the two can be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runyard.job import (
    ActionStep,
    BooleanToken,
    ContainerActionStep,
    ExpressionToken,
    InsertToken,
    MappingToken,
    NullToken,
    NumberToken,
    RunStep,
    SequenceToken,
    Step,
    Template,
    TextToken,
)

if TYPE_CHECKING:
    from runyard.workflow import CalledPlan, ConcurrencyPlan, JobPlan, RunPlan

PLACES = ("file", "line", "col")


def data(token: Template | None) -> Any:
    """A token as plain data."""
    match token:
        case TextToken() | BooleanToken():
            return token.value
        case NumberToken():
            return _number(token.value)
        case ExpressionToken():
            return {"type": 3, "expr": token.text}
        case InsertToken():
            return {"type": 4, "directive": "insert"}
        case SequenceToken():
            return {"type": 1, "seq": [data(item) for item in token.items]}
        case MappingToken():
            return {"type": 2, "map": [{"Key": data(key), "Value": data(value)} for key, value in token.entries]}
        case NullToken() | None:
            return None


def _number(value: float) -> Any:
    """JSON has no infinities: the recorded templates hold them as text."""
    if value != value:  # noqa: PLR0124 - NaN
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def plan_data(plan: RunPlan) -> dict[str, Any]:
    """What the recorded template says of a whole plan, as far as we keep it."""
    told: dict[str, Any] = {"jobs": [job_data(job) for job in plan.jobs]}
    if plan.env is not None:
        told["env"] = data(plan.env)
    if plan.permissions is not None:
        told["permissions"] = granted(plan.permissions)
    if plan.concurrency is not None:
        told["concurrency"] = _concurrency(plan.concurrency)
    return told


def granted(permissions: dict[str, str]) -> dict[str, str]:
    """The permissions that are more than nothing."""
    return {key: level for key, level in permissions.items() if level != "none"}


def _concurrency(plan: ConcurrencyPlan) -> Any:
    if plan.cancel_in_progress is None and plan.queue == "single" and not isinstance(plan.group, MappingToken):
        return data(plan.group)
    entries = [{"Key": "group", "Value": data(plan.group)}]
    if plan.cancel_in_progress is not None:
        entries.append({"Key": "cancel-in-progress", "Value": data(plan.cancel_in_progress)})
    return {"type": 2, "map": entries}


def job_data(job: JobPlan) -> dict[str, Any]:
    """One job; a call shows the called jobs."""
    told: dict[str, Any] = {"id": job.id, "name": job.id if job.name is None else data(job.name)}
    told["if"] = {"type": 3, "expr": job.condition}
    told["needs"] = list(job.needs)
    optional = {
        "runs-on": job.runs_on,
        "env": job.env,
        "outputs": job.outputs,
        "container": job.container,
        "services": job.services,
        "timeout-minutes": job.timeout_minutes,
        "cancel-timeout-minutes": job.cancel_timeout_minutes,
        "continue-on-error": job.continue_on_error,
    }
    told.update({key: data(token) for key, token in optional.items() if token is not None})
    if job.call is not None:
        called: CalledPlan = job.call.workflow
        told["ref"] = job.call.uses
        told["jobs"] = [job_data(each) for each in called.jobs]
        if job.call.inputs is not None:
            told["input-values"] = data(job.call.inputs)
    else:
        told["steps"] = [step_data(step) for step in job.steps]
    return told


def step_data(step: Step) -> dict[str, Any]:
    """One step."""
    told: dict[str, Any] = {"id": step.id, "if": {"type": 3, "expr": step.condition}}
    optional: dict[str, Template | None] = {
        "name": step.name,
        "env": step.env,
        "continue-on-error": step.continue_on_error,
        "timeout-minutes": step.timeout_minutes,
    }
    match step:
        case RunStep():
            optional |= {"run": step.script, "shell": step.shell, "working-directory": step.working_directory}
        case ActionStep() | ContainerActionStep():
            told["uses"] = step.uses
            optional["with"] = step.inputs
    told.update({key: data(token) for key, token in optional.items() if token is not None})
    return told


def without_places(recorded: Any) -> Any:
    """A recorded value without the positions some cases carry."""
    if isinstance(recorded, dict):
        if "lit" in recorded:
            return recorded["lit"]
        return {key: without_places(value) for key, value in recorded.items() if key not in PLACES}
    if isinstance(recorded, list):
        return [without_places(value) for value in recorded]
    return recorded
