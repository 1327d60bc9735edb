"""The pairs of workflow-language 18.1 and 18.2: scalars, coercion, and where a context exists."""

from __future__ import annotations

import pytest

from workflow.files import JOB, STEPS, env_of, errors, job, read
from workflow.official import data

# --- 18.1 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "text"),
    [
        pytest.param("yes", "yes", id="Y2"),
        pytest.param("012", "12", id="Y3"),
        pytest.param("3.10", "3.1", id="Y4"),
        pytest.param("0x1F", "31", id="Y5"),
        pytest.param("True", "true", id="Y6"),
        pytest.param("1e3", "1000", id="Y7"),
        pytest.param("12:30", "12:30", id="Y8"),
        pytest.param("2024-01-02", "2024-01-02", id="Y9"),
        pytest.param("1_000", "1_000", id="Y10"),
        pytest.param("~", "", id="Y11"),
        pytest.param("0xFFFFFFFF", "-1", id="wide-hex"),
        pytest.param("0o10", "8", id="octal"),
        pytest.param("-0", "-0", id="negative-zero"),
        pytest.param("+1", "1", id="plus"),
        pytest.param(".5", "0.5", id="bare-fraction"),
        pytest.param("1.", "1", id="bare-point"),
        pytest.param("-.INF", "-Infinity", id="infinity"),
        pytest.param(".nan", "NaN", id="nan"),
        pytest.param("1.2.3", "1.2.3", id="version"),
        pytest.param("0b1", "0b1", id="binary"),
        pytest.param("'3.10'", "3.10", id="quoted"),
        pytest.param("!!str 3.10", "3.10", id="tagged-text"),
        pytest.param("9" * 400, "Infinity", id="huge"),
        pytest.param("NULL", "", id="null"),
        pytest.param("on", "on", id="on"),
    ],
)
def test_scalars(written: str, text: str) -> None:
    assert env_of(f"on: push\nenv: {{A: {written}}}\n{JOB}") == {"A": text}


def test_Y1_on_is_text() -> None:
    assert [trigger.event for trigger in read(f"on: push\n{JOB}").triggers] == ["push"]


def test_Y12_duplicates_ignore_case() -> None:
    (message,) = errors(f"on: push\nenv: {{A: 1, a: 2}}\n{JOB}")
    assert "'a' is already defined" in message
    assert "line 2, column 7" in message


def test_Y13_merge_keys() -> None:
    (message,) = errors(f"on: push\nenv: &base {{B: 1}}\njobs: {{j: {{runs-on: x, env: {{<<: *base}}, {STEPS}}}}}")
    assert "'<<'" in message
    assert "merge keys are not supported" in message


def test_Y14_anchors() -> None:
    assert env_of(f"on: push\nenv: {{X: &a 1, Y: *a}}\n{JOB}") == {"X": "1", "Y": "1"}
    assert env_of(f"on: push\nenv: {{X: &a 1, Z: &a 2, Y: *a}}\n{JOB}")["Y"] == "2"


def test_Y15_keys_keep_their_case() -> None:
    (message,) = errors(f"on: push\nJobs: {{}}\n{JOB}")
    assert message == "Unexpected value 'Jobs'; did you mean 'jobs'?"
    (unknown,) = errors(f"on: push\n{JOB}\nRun-Name: x")
    assert unknown == "Unexpected value 'Run-Name'; did you mean 'run-name'?"


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        pytest.param("timeout-minutes: '10'", "10", id="Y16"),
        pytest.param("continue-on-error: 'true'", "true", id="Y17"),
        pytest.param("strategy: {fail-fast: \"${{ 'false' }}\"}", "false", id="Y18"),
        pytest.param("timeout-minutes: \"${{ '10' }}\"", "10", id="literal-in-braces"),
        pytest.param("permissions: none", "none", id="G14"),
    ],
)
def test_unexpected_values(lines: str, value: str) -> None:
    (message,) = errors(job(lines))
    assert message.startswith(f"Unexpected value '{value}'")


def test_Y18_variable_is_left_to_the_run() -> None:
    strategy = read(job('strategy: {fail-fast: "${{ vars.F }}"}')).jobs[0].strategy
    assert strategy is not None
    assert data(strategy.fail_fast) == {"type": 3, "expr": "vars.F"}


def test_Y19_an_expression_for_a_mapping() -> None:
    plan = read(job('env: ${{ fromJSON(\'{"A":"1"}\') }}')).jobs[0]
    assert data(plan.env) == {"type": 3, "expr": 'fromJSON(\'{"A":"1"}\')'}


@pytest.mark.parametrize(("step", "stray"), [("run: a\n  uses: b/c@d", "uses"), ("uses: b/c@d\n  run: a", "run")])
def test_Y20_run_and_uses(step: str, stray: str) -> None:
    told = errors(job(f"steps:\n- {step}"))
    assert told == [f"Unexpected value '{stray}'"]


# --- 18.2 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(job("runs-on: ${{ env.R }}"), "Unrecognized named-value: 'env'", id="K1"),
        pytest.param(job("if: matrix.os == 'a'"), "Unrecognized named-value: 'matrix'", id="K2"),
        pytest.param(job("env: {A: '${{ env.B }}'}"), "Unrecognized named-value: 'env'", id="K3"),
        pytest.param(job("steps: [{run: a, if: secrets.T != ''}]"), "Unrecognized named-value: 'secrets'", id="K4"),
        pytest.param(job("steps: [{run: a, if: \"${{ secrets.X != '' }}\"}]"), "named-value: 'secrets'", id="O38"),
        pytest.param(
            job("", top="defaults: {run: {shell: '${{ vars.S }}'}}"), "Unrecognized named-value: 'vars'", id="K6"
        ),
        pytest.param(job("", top="name: ${{ github.ref }}"), "Unrecognized named-value: 'github'", id="K7a"),
        pytest.param(job("", top="name: ${{ format('a') }}"), "expression is not allowed in this context", id="K7b"),
        pytest.param(job("", top="run-name: ${{ secrets.X }}"), "Unrecognized named-value: 'secrets'", id="K8"),
        pytest.param(job("name: ${{ hashFiles('x') }}"), "Unrecognized function: 'hashFiles'", id="K9"),
        pytest.param(job("steps: [{run: 'a ${{ success() }}'}]"), "Unrecognized function: 'success'", id="status"),
        pytest.param(job("steps: [{uses: 'a/b@${{ github.ref }}'}]"), "named-value: 'github'", id="uses"),
        pytest.param(job("needs: ${{ vars.N }}"), "Unrecognized named-value: 'vars'", id="needs"),
    ],
)
def test_contexts(text: str, message: str) -> None:
    (told,) = errors(text)
    assert message in told


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(job("defaults: {run: {shell: '${{ env.S }}'}}"), id="K5"),
        pytest.param(job("steps: [{run: a, if: hashFiles('x') != '' && failure()}]"), id="step-if"),
        pytest.param(job("if: success('a') || failure()"), id="job-if"),
        pytest.param(job("container: {image: a, credentials: {username: '${{ env.A }}'}}"), id="credentials"),
        pytest.param(job("container: {image: a, credentials: {username: '${{ matrix.a }}'}}"), id="inherited"),
        pytest.param(job("environment: {name: a, url: '${{ steps.a.outputs.b }}'}"), id="url"),
        pytest.param(job("", top="env: {A: '${{ secrets.A }}'}"), id="top-env"),
        pytest.param(job("outputs: {a: '${{ steps.a.outputs.b }}${{ secrets.C }}'}"), id="outputs"),
    ],
)
def test_contexts_allowed(text: str) -> None:
    assert errors(text) == []
