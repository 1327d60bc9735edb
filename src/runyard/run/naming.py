"""What a run is called: its `run-name`, or what GitHub shows for its event (workflow-language 15)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runyard.run.evaluate import text

if TYPE_CHECKING:
    from runyard.job import Json
    from runyard.run.work import Work


def run_name(work: Work) -> str:
    """Raises UnevaluableError where `run-name` has no value. Blank text counts as none."""
    plan = work.plan
    if plan.run_name is not None:
        inputs = {} if plan.inputs is None else plan.inputs
        name = text(work.evaluator.value(plan.run_name, {"inputs": inputs}), plan.run_name, "run-name").strip()
        if name:
            return name
    return default_run_name(plan.name, plan.event, work.before.context.event)


def default_run_name(workflow: str, event: str, payload: Json) -> str:
    """The first line of a pushed commit, the title of a pull request, issue or release, else the workflow."""
    if not isinstance(payload, dict):
        return workflow
    if event == "push":
        commit = payload.get("head_commit")
        message = commit.get("message") if isinstance(commit, dict) else None
        return _first_line(message) or workflow
    for part, field in (("pull_request", "title"), ("issue", "title"), ("discussion", "title"), ("release", "name")):
        found = payload.get(part)
        if isinstance(found, dict) and (title := _first_line(found.get(field))):
            return title
    return workflow


def _first_line(value: Json) -> str:
    return value.strip().partition("\n")[0].rstrip() if isinstance(value, str) else ""
