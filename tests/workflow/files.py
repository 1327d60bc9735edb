"""Small workflow files for tests, and what reading them gives."""

from __future__ import annotations

import json
from typing import Any

from runyard.job import MappingToken, TextToken
from runyard.workflow import EventFacts, Problem, Workflow, read_workflow, triggered
from workflow.official import data

STEPS = "steps: [{run: 'true'}]"
JOB = f"jobs: {{j: {{runs-on: x, {STEPS}}}}}"


def errors(text: str) -> list[str]:
    """The errors of a file, one line each."""
    return [problem.message for problem in read_workflow(text, path="w.yml").problems if problem.severity == "error"]


def warnings(text: str) -> list[Problem]:
    """The warnings of a file."""
    return [problem for problem in read_workflow(text, path="w.yml").problems if problem.severity == "warning"]


def read(text: str) -> Workflow:
    """A file that is good."""
    reading = read_workflow(text, path="w.yml")
    assert reading.workflow is not None, reading.problems
    return reading.workflow


def env_of(text: str) -> dict[str, Any]:
    """The top-level env of a file as texts."""
    env = read(text).env
    assert isinstance(env, MappingToken)
    return {key.value: data(value) for key, value in env.entries if isinstance(key, TextToken)}


def job(lines: str, *, top: str = "") -> str:
    """A file with one job `j` that has these lines (flow or block, without indentation)."""
    body = "\n".join(f"    {line}" for line in lines.splitlines())
    calls = lines.startswith("uses:")
    runs_on = "" if "runs-on:" in lines or calls else "    runs-on: x\n"
    steps = "" if "steps:" in lines or calls else f"    {STEPS}\n"
    return f"on: push\n{top}\njobs:\n  j:\n{runs_on}{steps}{body}\n"


def decided(on: Any, **facts: Any) -> bool:
    """Whether an event starts a workflow that listens to `on`."""
    text = json.dumps({"on": on, "jobs": {"j": {"runs-on": "x", "steps": [{"run": "true"}]}}})
    return triggered(read(text), EventFacts(**facts)).triggered


def push(branch: str, **filters: Any) -> bool:
    """The same for a push."""
    return decided({"push": filters}, event="push", ref=f"refs/heads/{branch}")


def changed(files: list[str], ref: str = "refs/heads/main", **filters: Any) -> bool:
    """The same for a push that changed files."""
    return decided({"push": filters}, event="push", ref=ref, changed_files=tuple(files))
