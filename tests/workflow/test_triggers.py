"""The pairs of workflow-language 18.3: filters, activity types, schedules, inputs of a manual run."""

from __future__ import annotations

import pytest

from runyard.job import TextToken
from runyard.workflow import InputDefinition, compile_workflow, dispatch_inputs, read_workflow
from workflow.files import JOB, changed, decided, errors, push, warnings


def test_T1_star_stops_at_slashes() -> None:
    assert not push("rel/a/b", branches=["rel/*"])


def test_T2_negative_pattern() -> None:
    assert not push("main", branches=["**", "!main"])


def test_T3_later_positive_pattern() -> None:
    assert push("main", branches=["!main", "**"])


def test_T4_only_negative_patterns() -> None:
    assert not push("dev", branches=["!main"])


def test_T5_only_tags() -> None:
    assert not push("main", tags=["v*"])


def test_T6_only_branches() -> None:
    assert not decided({"push": {"branches": ["main"]}}, event="push", ref="refs/tags/v1")


def test_T7_question_mark_makes_optional() -> None:
    assert not push("main", branches=["ma?n"])
    assert push("mn", branches=["ma?n"])
    assert push("man", branches=["ma?n"])


def test_T8_plus_repeats() -> None:
    assert push("v111", branches=["v1+"])
    assert not push("v", branches=["v1+"])


def test_T9_double_star_in_a_name() -> None:
    assert changed(["a/b/c.js"], paths=["**.js"])


def test_T10_star_stays_in_the_folder() -> None:
    assert not changed(["a/c.js"], paths=["*.js"])


def test_T11_T12_excluded_folder() -> None:
    paths = ["src/**", "!src/docs/**"]
    assert not changed(["src/docs/a"], paths=paths)
    assert changed(["src/docs/a", "src/x"], paths=paths)


def test_T13_paths_ignore() -> None:
    on = {"push": {"paths-ignore": ["docs/**"]}}
    assert decided(on, event="push", changed_files=("docs/a", "src/b"))
    assert not decided(on, event="push", changed_files=("docs/a",))


def test_T14_paths_do_not_count_for_tags() -> None:
    assert changed(["x"], ref="refs/tags/v1", paths=["src/**"])


def test_T15_both_filters() -> None:
    problems = read_workflow(f"on:\n  push:\n    branches: [a]\n    branches-ignore: [b]\n{JOB}", path="w.yml").problems
    assert [(problem.line, problem.column) for problem in problems] == [(3, 5), (4, 5)]
    assert "line 4, column 5" in problems[0].message
    assert "line 3, column 5" in problems[1].message


def test_T16_default_activity_types() -> None:
    assert not decided("pull_request", event="pull_request", payload={"action": "labeled"})
    assert decided("pull_request", event="pull_request", payload={"action": "synchronize"})


def test_T17_base_branch() -> None:
    on = {"pull_request": {"branches": ["main"]}}
    assert decided(on, event="pull_request", base_ref="main", payload={"action": "opened"})
    assert not decided(on, event="pull_request", base_ref="feature", payload={"action": "opened"})


@pytest.mark.parametrize(
    "cron",
    [
        *("@daily", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "5-1 * * * *"),
        *("*/0 * * * *", "a * * * *", "* * * * * *", "1,,2 * * * *"),
    ],
)
def test_T18_invalid_cron(cron: str) -> None:
    (message,) = errors(f"on: {{schedule: [{{cron: '{cron}'}}]}}\n{JOB}")
    assert message.startswith("Invalid cron")


@pytest.mark.parametrize("cron", ["0 0 * * *", "*/15 1-5 * JAN-MAR mon,WED", "5,35 0 1 1 0", "0 0 * * 7"])
def test_cron(cron: str) -> None:
    text = f"on: {{schedule: [{{cron: '{cron}', timezone: Europe/London}}]}}\n{JOB}"
    assert read_workflow(text, path="w.yml").problems == ()


@pytest.mark.parametrize(("cron", "fine"), [("* * * * *", True), ("*/4 * * * *", True), ("1,3 * * * *", True)])
def test_cron_finer_than_github_starts(cron: str, fine: bool) -> None:
    (problem,) = warnings(f"on: {{schedule: [{{cron: '{cron}'}}]}}\n{JOB}")
    assert ("every 5 minutes" in problem.message) is fine


def test_unknown_time_zone() -> None:
    (problem,) = warnings(f"on: {{schedule: [{{cron: '0 0 * * *', timezone: Not/AZone}}]}}\n{JOB}")
    assert "Not/AZone" in problem.message


DISPATCH = (
    InputDefinition(name="b", type="boolean"),
    InputDefinition(name="n", type="number"),
    InputDefinition(name="c", type="choice", options=("x", "y"), default=TextToken("y")),
    InputDefinition(name="s"),
)


def test_T19_dispatch_inputs_are_typed() -> None:
    assert dispatch_inputs(DISPATCH, {"B": "true", "n": "2"}) == {"b": True, "n": 2, "c": "y", "s": ""}
    assert dispatch_inputs(DISPATCH, {}) == {"b": False, "n": 0, "c": "y", "s": ""}


def test_T20_no_inputs_on_push() -> None:
    text = f"on: {{push: , workflow_dispatch: {{inputs: {{b: {{type: boolean}}}}}}}}\n{JOB}"
    assert compile_workflow(text, path="w.yml", event="push").inputs is None
    assert compile_workflow(text, path="w.yml", event="workflow_dispatch").inputs == {"b": False}
