"""Field cases decided when a workflow is read: F04 (its inputs), F32, F34 (the rules), F44 (its text), F54; and D6."""

from __future__ import annotations

from typing import Any

import pytest

from runyard.job import InputError, RunStep
from runyard.workflow import EventFacts, compile_workflow, dispatch_inputs, triggered
from workflow.files import JOB, changed, decided, env_of, errors, job, push, read, warnings


@pytest.mark.parametrize(
    ("branches", "branch", "runs"),
    [
        (["feature/*"], "feature/a", True),
        (["feature/*"], "feature/a/b", False),
        (["feature/**"], "feature/a/b", True),
        (["**", "!release/**"], "release/1", False),
        (["**", "!release/**"], "main", True),
        (["release/**", "!release/**-alpha", "release/9-alpha"], "release/8-alpha", False),
        (["release/**", "!release/**-alpha", "release/9-alpha"], "release/9-alpha", True),
        (["v[12].[0-9]+"], "v1.10", True),
        (["v[12].[0-9]+"], "v3.1", False),
        (["!main"], "main", False),
        (["!main"], "dev", False),
    ],
)
def test_F32_patterns(branches: list[str], branch: str, runs: bool) -> None:
    assert push(branch, branches=branches) is runs


def test_F32_check_asks_for_a_positive_pattern() -> None:
    (problem,) = warnings(f"on: {{push: {{branches: ['!main']}}}}\n{JOB}")
    assert "positive pattern" in problem.message
    assert (problem.line, problem.column) == (1, 13)


def test_F32_the_event_chooses_the_workflow() -> None:
    facts = EventFacts(event="pull_request", base_ref="main", payload={"action": "opened"})
    assert not triggered(read(f"on: push\n{JOB}"), facts).triggered
    assert triggered(read(f"on: pull_request\n{JOB}"), facts).triggered


ZERO = "0" * 40


@pytest.mark.parametrize("ref", ["refs/heads/x", "refs/tags/v1"])
@pytest.mark.parametrize("payload", [{"deleted": True, "after": ZERO}, {"after": ZERO}, {"deleted": True}])
def test_F34_deleted_refs_start_nothing(ref: str, payload: dict[str, Any]) -> None:
    decision = triggered(read(f"on: push\n{JOB}"), EventFacts(event="push", ref=ref, payload=payload))
    assert not decision.triggered
    assert "deleted" in decision.reason


def test_F34_created_branch_is_compared_or_passes() -> None:
    assert changed(["src/a", "b"], paths=["src/**"])
    facts = EventFacts(
        event="push",
        ref="refs/heads/y",
        payload={"created": True, "before": ZERO, "after": "a" * 40},
        changed_files=None,
    )
    decision = triggered(read(f"on: {{push: {{paths: ['src/**']}}}}\n{JOB}"), facts)
    assert decision.triggered
    assert "could not be compared" in decision.reason


F54 = f"""\
on: push
env: {{P: 3.10, Q: yes, R: 0x10, S: 012, T: ~, U: 1e3, V: "3.10"}}
{JOB}
"""


def test_F54_scalars() -> None:
    assert list(env_of(F54).values()) == ["3.1", "yes", "16", "12", "", "1000", "3.10"]


def test_F54_a_version_read_as_a_number_is_told() -> None:
    (problem,) = warnings(F54)
    assert problem.key == "env.P"
    assert "3.10 is read as the number 3.1" in problem.message
    assert (problem.line, problem.column) == (2, 10)


def test_F54_typos_and_curly_quotes() -> None:
    told = errors(job("continue-on-eror: true\nsteps: [{run: a, “shell”: b}]"))
    assert told[0] == "Unexpected value 'continue-on-eror'; did you mean 'continue-on-error'?"
    assert "curly quote “" in told[1]
    assert "did you mean 'shell'" in told[1]


F04 = f"on: {{workflow_dispatch: {{inputs: {{dry: {{type: boolean, default: false}}}}}}}}\n{JOB}"


@pytest.mark.parametrize(("given", "dry"), [({}, False), ({"dry": "true"}, True), ({"dry": "false"}, False)])
def test_F04_boolean_inputs(given: dict[str, str], dry: bool) -> None:
    plan = compile_workflow(F04, path="w.yml", event="workflow_dispatch", inputs=given)
    assert plan.inputs == {"dry": dry}


@pytest.mark.parametrize(
    ("inputs", "given", "message"),
    [
        ("dry: {type: boolean}", {"dry": "maybe"}, "input 'dry' is of type boolean: 'maybe' is not a boolean"),
        ("n: {type: number}", {"n": "x"}, "input 'n' is of type number"),
        ("n: {type: number}", {"n": " "}, "input 'n' is of type number"),
        ("c: {type: choice, options: [a, b]}", {"c": "d"}, "not one of a, b"),
        ("name: {}", {"nmae": "x"}, "no input 'nmae'; did you mean 'name'"),
        ("name: {required: true}", {}, "input 'name' is required"),
        ("name: {required: true}", {"name": ""}, "input 'name' is required"),
        ("name: {}", {"name": "x" * 65_536}, "65,535 characters"),
    ],
)
def test_F04_what_is_wrong_with_an_input(inputs: str, given: dict[str, str], message: str) -> None:
    workflow = read(f"on: {{workflow_dispatch: {{inputs: {{{inputs}}}}}}}\n{JOB}")
    with pytest.raises(InputError, match=message) as caught:
        dispatch_inputs(workflow.dispatch or (), given)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("minutes", ["0", "-5", "-.inf"])
def test_D6_check_warns(minutes: str) -> None:
    (problem,) = warnings(job(f"timeout-minutes: {minutes}"))
    assert "must be positive" in problem.message
    assert problem.code == "lint.timeout"


def test_D6_steps_may_have_no_limit() -> None:
    assert warnings(job("steps: [{run: a, timeout-minutes: 0}]")) == []


@pytest.mark.parametrize(
    "message",
    [
        "fix [skip ci]",
        "[CI SKIP] x",
        "[no ci]",
        "a\n\n[actions skip]",
        "fix\n\n\nskip-checks: true",
        "fix\n\n\nskip-checks:true",
    ],
)
@pytest.mark.parametrize("event", ["push", "pull_request"])
def test_skip_messages(message: str, event: str) -> None:
    assert not decided(event, event=event, ref="refs/heads/a", head_commit_message=message)
    assert decided("workflow_dispatch", event="workflow_dispatch", head_commit_message=message)


@pytest.mark.parametrize("message", ["skip ci", "fix skip-checks: true", "fix\nskip-checks: true", ""])
def test_messages_that_skip_nothing(message: str) -> None:
    assert decided("push", event="push", ref="refs/heads/a", head_commit_message=message)


def test_F44_steps_that_share_files_are_read() -> None:
    """The shell parts of the case hold quotes, braces and redirections; they stay as written."""
    script = """for f in "$GITHUB_ENV" "${GITHUB_OUTPUT}"; do test ! -s "$f" || exit 1; done; echo "$GITHUB_ENV" > p"""
    last = 'echo "[${{ steps.a.outputs.o }}][${{ toJSON(steps.c.outputs) }}]"'
    text = job(f"steps:\n- {{id: a, run: '{script}'}}\n- {{id: d, run: '{last}'}}")
    first, second = compile_workflow(text, path="w.yml").jobs[0].steps
    assert isinstance(first, RunStep)
    assert isinstance(second, RunStep)
    assert first.script.value == script  # type: ignore[union-attr]  # a token of plain text
    assert second.script.text == (  # type: ignore[union-attr]  # an expression
        "format('echo \"[{0}][{1}]\"', steps.a.outputs.o, toJSON(steps.c.outputs))"
    )
