"""From a file and a trigger to a RunPlan, or to everything that is wrong with the file and the files it calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runyard.workflow.calls import CallLimits, Calls, Loader
from runyard.workflow.inputs import dispatch_inputs
from runyard.workflow.plan import JobPlan, RunPlan
from runyard.workflow.problems import Problem, Problems, WorkflowError
from runyard.workflow.reading import read_workflow

if TYPE_CHECKING:
    from runyard.workflow.model import PermissionsPolicy, Workflow

UNSUPPORTED = "unsupported."
"""Codes of what GitHub takes and this build refuses to run begin so."""


def check_workflow(
    source: str | bytes,
    *,
    path: str,
    loader: Loader | None = None,
    policy: PermissionsPolicy = "write",
    limits: CallLimits | None = None,
    remote: bool = True,
) -> tuple[Problem, ...]:
    """Everything that is wrong with a file, and with the way it and the files it calls fit together.

    What is wrong within a called file stands under that file's path; one that can't be read at all is one problem of
    the call. Never raises. Without a loader calls are checked for their form only; without `remote` those into other
    repositories are. `policy` is the repository's default for the job token; `write` refuses no call that some setting
    would allow.
    """
    reading = read_workflow(source, path=path)
    if reading.workflow is None or not reading.workflow.calls or loader is None:
        return reading.problems
    problems = Problems(path)
    calls = Calls(problems, loader, limits or CallLimits(), remote=remote)
    calls.jobs(reading.workflow, policy)
    problems.extend((*reading.problems, *calls.faults(unread=False)))
    return problems.all()


def compile_workflow(
    source: str | bytes,
    *,
    path: str,
    event: str = "push",
    inputs: dict[str, str] | None = None,
    loader: Loader | None = None,
    policy: PermissionsPolicy = "read",
    limits: CallLimits | None = None,
) -> RunPlan:
    """Reads a file with all it calls and compiles it for one event. Safe to repeat.

    `inputs` are the texts given for a `workflow_dispatch`; they are checked and typed. Local and remote `uses` go
    through `loader`; without one, a call is an error. Whether the event starts the workflow is not asked here: see
    `triggered`. Raises `WorkflowError` with all problems, or `InputError` for an input (both exit 2).
    """
    reading = read_workflow(source, path=path)
    if reading.workflow is None:
        raise WorkflowError(reading.problems)
    return plan_workflow(reading.workflow, event=event, inputs=inputs, loader=loader, policy=policy, limits=limits)


def plan_workflow(
    workflow: Workflow,
    *,
    event: str = "push",
    inputs: dict[str, str] | None = None,
    loader: Loader | None = None,
    policy: PermissionsPolicy = "read",
    limits: CallLimits | None = None,
) -> RunPlan:
    """The same for a workflow that was read before (as file 1)."""
    problems = Problems(workflow.path)
    calls = Calls(problems, loader, limits or CallLimits())
    jobs: tuple[JobPlan, ...] = calls.jobs(workflow, policy)
    problems.extend(calls.faults(unread=True))
    problems.extend(
        msgspec.structs.replace(warning, severity="error")
        for warning in (*workflow.warnings, *calls.warnings)
        if warning.code.startswith(UNSUPPORTED)
    )
    if problems.refused:
        raise WorkflowError(problems.all())
    definitions = workflow.dispatch or ()
    typed = None
    if event == "workflow_dispatch":
        typed = dispatch_inputs(definitions, inputs or {}, path=workflow.path)
    return RunPlan(
        path=workflow.path,
        name=workflow.name,
        event=event,
        jobs=jobs,
        run_name=workflow.run_name,
        env=workflow.env,
        defaults=workflow.defaults,
        concurrency=workflow.concurrency,
        permissions=workflow.permissions,
        inputs=typed,
        input_definitions=definitions,
        files=tuple(calls.files),
    )


__all__ = ["CallLimits", "Loader", "check_workflow", "compile_workflow", "dispatch_inputs", "plan_workflow"]
