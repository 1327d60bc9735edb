"""Every case of the shared corpus about workflow files and triggers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from corpus_path import corpus, corpus_or_none
from runyard.workflow import (
    CallLimits,
    EventFacts,
    Problem,
    RunPlan,
    check_manifest,
    check_workflow,
    is_manifest,
    plan_workflow,
    read_workflow,
    triggered,
)
from workflow.official import granted, plan_data, without_places

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONTRADICTIONS = {
    "reader-events-mapping-all": "it has branches beside branches-ignore, which T15, F32 and another case want refused",
}
UNSUPPORTED = {"lint-err-if_cond_constants", "lint-ok-snapshot_name_and_version", "reader-job-snapshot-simple"}
"""Valid files with `snapshot`, which this build refuses to plan by name."""

IGNORED_KEYS = {"type", "strategy", "environment", "snapshot", "permissions", "input-definitions"}
"""Parts of a recorded job that are kept in another shape here; tested on their own."""


def _ids(folder: str) -> list[Any]:
    root = corpus_or_none(folder)
    names = sorted(each.name for each in root.iterdir() if each.is_dir()) if root is not None else ["none"]
    return [pytest.param(name, id=f"{folder}/{name}") for name in names]


def _case(folder: str, name: str) -> tuple[Path, dict[str, Any]]:
    place = corpus(folder, name)
    return place, json.loads((place / "expected.json").read_text(encoding="utf-8"))


def _loader(place: Path, expected: dict[str, Any]) -> Callable[[str], bytes | None]:
    called = expected.get("called_workflows") or {}

    def load(uses: str) -> bytes | None:
        return (place / called[uses]).read_bytes() if uses in called else None

    return load


def _problems(place: Path, expected: dict[str, Any]) -> tuple[Problem, ...]:
    options = expected.get("options") or {}
    source = (place / "workflow.yml").read_bytes()
    if "max-file-size" in options:
        return read_workflow(source, path="workflow.yml", max_characters=options["max-file-size"]).problems
    follow = "called_workflows" in expected or place.name == "lint-project-call-not-found"
    return check_workflow(
        source,
        path="workflow.yml",
        loader=_loader(place, expected) if follow else None,
        policy="write" if options.get("permissions-policy") == "Write" else "read",
        limits=_limits(options),
    )


def _limits(options: dict[str, Any]) -> CallLimits:
    return CallLimits(
        depth=options.get("max-nested-reusable-workflows-depth", 9), jobs=options.get("max-job-limit", 5000)
    )


@pytest.mark.corpus
@pytest.mark.parametrize("name", _ids("workflows-invalid"))
def test_invalid(name: str) -> None:
    place, expected = _case("workflows-invalid", name)
    errors = [problem for problem in _problems(place, expected) if problem.severity == "error"]
    assert errors, "GitHub refuses this file"
    lines = {(_file(each.get("file"), expected), each["line"]) for each in expected["errors"]}
    lines |= {("workflow.yml", line) for line in expected.get("also_accepted_lines") or ()}
    told = {(problem.path, problem.line) for problem in errors}
    assert any(line is None for _, line in lines) or told & lines, f"{told} names none of {lines}"


@pytest.mark.corpus
@pytest.mark.parametrize("name", _ids("workflows-invalid"))
def test_all_at_once(name: str) -> None:
    """A reader tells everything: each recorded line is named, not just one."""
    place, expected = _case("workflows-invalid", name)
    accepted = set(expected.get("also_accepted_lines") or ())
    told = {(problem.path, problem.line) for problem in _problems(place, expected) if problem.severity == "error"}
    missing = {
        (_file(each.get("file"), expected), each["line"])
        for each in expected["errors"]
        if each["line"] is not None and not accepted
    }
    assert missing <= told


def _file(recorded: str | None, expected: dict[str, Any]) -> str:
    """The path a problem of a recorded file has: the reference that called it."""
    if recorded is None:
        return "workflow.yml"
    called: dict[str, str] = expected["called_workflows"]
    return next(uses for uses, file in called.items() if file == recorded)


@pytest.mark.corpus
@pytest.mark.parametrize("name", _ids("workflows-valid"))
def test_valid(name: str) -> None:
    place, expected = _case("workflows-valid", name)
    if name in CONTRADICTIONS:
        pytest.skip(CONTRADICTIONS[name])
    assert [str(problem) for problem in _problems(place, expected) if problem.severity == "error"] == []
    recorded = expected.get("official_template")
    if recorded is None or name in UNSUPPORTED:
        return
    plan = _plan(place, expected)
    ours = plan_data(plan)
    for key in ("env", "concurrency"):
        assert ours.get(key) == without_places(recorded.get(key))
    if "permissions" in recorded:
        assert plan.permissions is not None
        assert granted(plan.permissions).items() >= recorded["permissions"].items()
    _compare_jobs(ours["jobs"], without_places(recorded["jobs"]))


def _plan(place: Path, expected: dict[str, Any]) -> RunPlan:
    options = expected.get("options") or {}
    workflow = read_workflow((place / "workflow.yml").read_bytes(), path="workflow.yml").workflow
    assert workflow is not None
    return plan_workflow(
        workflow,
        loader=_loader(place, expected),
        policy="write" if options.get("permissions-policy") == "Write" else "read",
        limits=_limits(options),
    )


def _compare_jobs(ours: list[Any], recorded: list[Any]) -> None:
    assert len(ours) == len(recorded)
    for our, official in zip(ours, recorded, strict=True):
        wanted = {key: value for key, value in official.items() if key not in IGNORED_KEYS and key != "jobs"}
        wanted.setdefault("needs", [])
        # The recording was made of files without a line end at the end, which shows in a last block scalar.
        for step in [*our.get("steps", ()), *wanted.get("steps", ())]:
            if isinstance(step.get("run"), str):
                step["run"] = step["run"].rstrip("\n")
        for key, value in wanted.items():
            assert our[key] == value, key
        if "jobs" in official:
            _compare_jobs(our["jobs"], official["jobs"])


@pytest.mark.corpus
@pytest.mark.parametrize("name", _ids("workflows-valid"))
def test_positions(name: str) -> None:
    """Where the official reader recorded places, ours are the same."""
    place, expected = _case("workflows-valid", name)
    recorded = expected.get("official_template") or {}
    if "file-table" not in recorded:
        return
    plan = _plan(place, expected)
    for job, official in zip(plan.jobs, recorded["jobs"], strict=True):
        assert job.at is not None
        assert tuple(job.at) == tuple(official["id"][key] for key in ("file", "line", "col"))
        if job.call is not None:
            for nested, inner in zip(job.call.workflow.jobs, official["jobs"], strict=True):
                assert nested.runs_on is not None
                assert nested.runs_on.at is not None
                assert tuple(nested.runs_on.at) == tuple(inner["runs-on"][key] for key in ("file", "line", "col"))
    assert len(plan.files) == len(recorded["file-table"])


def _trigger_cases() -> list[Any]:
    path = corpus_or_none("triggers", "cases.json")
    cases = json.loads(path.read_text(encoding="utf-8")) if path is not None else [{"id": "none"}]
    return [pytest.param(case, id=f"triggers/{case['id']}") for case in cases]


@pytest.mark.corpus
@pytest.mark.parametrize("case", _trigger_cases())
def test_trigger(case: dict[str, Any]) -> None:
    corpus("triggers")
    text = json.dumps({"on": case["on"], "jobs": {"j": {"runs-on": "x", "steps": [{"run": "true"}]}}})
    reading = read_workflow(text, path="w.yml")
    assert reading.workflow is not None, reading.problems
    files = case.get("changed_files")
    decision = triggered(
        reading.workflow,
        EventFacts(
            event=case["event"],
            ref=case.get("ref", ""),
            base_ref=case.get("base_ref", ""),
            changed_files=None if files is None else tuple(files),
            head_commit_message=case.get("head_commit_message", ""),
            payload=case.get("payload", {}),
        ),
    )
    assert decision.triggered is case["triggered"], decision.reason
    assert decision.reason


def _real() -> list[Any]:
    path = corpus_or_none("real-workflows", "index.json")
    cases = json.loads(path.read_text(encoding="utf-8")) if path is not None else [{"file": "none"}]
    return [pytest.param(case, id=f"real-workflows/{case['file']}") for case in cases]


@pytest.mark.corpus
@pytest.mark.parametrize("case", _real())
def test_real(case: dict[str, Any]) -> None:
    source = corpus("real-workflows", case["file"]).read_text(encoding="utf-8")
    assert is_manifest(source, "unknown.yml") is (case["kind"] != "workflow")
    if case["kind"] != "workflow":
        assert check_manifest(source, path=case["file"]) == ()
        return
    reading = read_workflow(source, path=case["file"])
    assert reading.problems == ()
    workflow = reading.workflow
    assert workflow is not None
    expected = case["expected"]
    assert sorted(trigger.event for trigger in workflow.triggers) == sorted(expected["triggers"])
    assert [job.id for job in workflow.jobs] == expected["jobs"]
    for job in workflow.jobs:
        needs = expected["needs"].get(job.id) or []
        assert list(job.needs) == ([needs] if isinstance(needs, str) else needs)
        assert len(job.steps) == expected["steps"].get(job.id, 0)
