"""The pairs of workflow-language section 18 that are decided when a file is read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runyard.job import Entry, MappingToken, RunStep, TextToken
from runyard.workflow import (
    EventFacts,
    InputDefinition,
    Problem,
    RunPlan,
    Workflow,
    WorkflowError,
    check_workflow,
    compile_workflow,
    dispatch_inputs,
    read_workflow,
    triggered,
)
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


# --- 18.3 ----------------------------------------------------------------------------------------------------------


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


# --- 18.4 as far as the file tells ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        pytest.param("{os: [a], exclude: [{nope: 1}]}", "exclude key 'nope' does not match", id="M10"),
        pytest.param("{os: []}", "Matrix vector 'os' does not contain any values", id="M12"),
        pytest.param("{include: []}", "at least one vector", id="M13"),
        pytest.param("{}", "at least one vector", id="nothing"),
        pytest.param("{os: [a], include: [{}]}", "can't be empty", id="empty-item"),
        pytest.param("{os: a}", "a list was expected", id="scalar"),
        pytest.param(f"{{n: {list(range(257))}}}", "257 jobs; 256 is the limit", id="M17"),
    ],
)
def test_matrix(matrix: str, message: str) -> None:
    (told,) = errors(job(f"strategy: {{matrix: {matrix}}}"))
    assert message in told


@pytest.mark.parametrize(
    "matrix",
    [
        "{OS: [a], exclude: [{os: a}]}",
        "{include: [{a: 1}]}",
        "'${{ fromJSON(vars.M) }}'",
        "{include: '${{ vars.I }}'}",
        f"{{n: {list(range(257))}, exclude: [{{n: 1}}]}}",
        "{'${{ insert }}': '${{ vars.M }}'}",
    ],
)
def test_matrix_is_left_to_the_run(matrix: str) -> None:
    assert errors(job(f"strategy: {{matrix: {matrix}}}")) == []


# --- 18.5 ----------------------------------------------------------------------------------------------------------


def test_G6_needs_ignore_case() -> None:
    text = f"on: push\njobs: {{A: {{runs-on: x, {STEPS}}}, B: {{needs: a, runs-on: x, {STEPS}}}}}"
    assert read(text).jobs[1].needs == ("A",)


def test_G10_empty_group() -> None:
    assert errors(job("", top="concurrency: ''")) == ["Concurrency group name cannot be empty"]
    assert errors(job("concurrency: ''")) == ["Unexpected value ''"]
    assert errors(job("", top="concurrency: {group: ''}")) == ["Unexpected value ''"]


def test_concurrency_rules() -> None:
    assert "less than 400" in errors(job("", top=f"concurrency: {'g' * 401}"))[0]
    assert "queue: max" in errors(job("concurrency: {group: a, queue: max, cancel-in-progress: true}"))[0]
    plan = read(job("concurrency: {group: a, queue: max}")).jobs[0].concurrency
    assert plan is not None
    assert plan.queue == "max"


def test_G11_partial_permissions() -> None:
    permissions = read(job("", top="permissions: {contents: read}")).permissions
    assert permissions is not None
    assert permissions["contents"] == "read"
    assert permissions["issues"] == "none"


def test_G12_job_permissions_replace() -> None:
    workflow = read(job("permissions: {}", top="permissions: {contents: write}"))
    assert workflow.jobs[0].permissions is not None
    assert set(workflow.jobs[0].permissions.values()) == {"none"}


def test_permission_shorthands() -> None:
    everything = read(job("", top="permissions: write-all")).permissions
    assert everything is not None
    assert everything["id-token"] == everything["contents"] == "write"
    assert everything["models"] == "read"
    reading = read(job("", top="permissions: read-all")).permissions
    assert reading is not None
    assert reading["id-token"] == "none"


def calling(call: str, callee: str) -> list[str]:
    """The errors of a job that calls a file."""
    text = job(f"uses: ./.github/workflows/c.yml\n{call}")
    problems = check_workflow(text, path="w.yml", loader=lambda _: callee.encode(), policy="read")
    return [problem.message for problem in problems if problem.severity == "error"]


def callee(inputs: str = "", *, secrets: str = "", permissions: str = "") -> str:
    """A called file."""
    return f"on: {{workflow_call: {{inputs: {{{inputs}}}, secrets: {{{secrets}}}}}}}\n{permissions}\n{JOB}"


def test_G13_nested_permissions() -> None:
    (message,) = calling("permissions: {contents: read}", callee(permissions="permissions: {contents: write}"))
    assert "is requesting 'contents: write', but is only allowed 'contents: read'" in message
    assert calling("permissions: {contents: write}", callee(permissions="permissions: {contents: write}")) == []


def test_G15_G16_input_types() -> None:
    inputs = "n: {type: number}, s: {type: string}, b: {type: boolean}"
    (message,) = calling("with: {n: '5'}", callee(inputs))
    assert "Unexpected value '5'" in message
    assert calling("with: {s: 5, n: 5, b: true}", callee(inputs)) == []
    assert calling("with: {b: '${{ vars.B }}'}", callee(inputs)) == []


def test_G17_undefined_input() -> None:
    (message,) = calling("with: {naem: x}", callee("name: {type: string}"))
    assert message == "Invalid input, naem is not defined in the referenced workflow; did you mean 'name'?"


def test_required_inputs_and_secrets() -> None:
    declared = callee("r: {type: string, required: true, default: d}", secrets="t: {required: true}")
    assert len(calling("", declared)) == 2
    assert calling("with: {R: x}\nsecrets: {T: y}", declared) == []
    assert calling("with: {r: x}\nsecrets: inherit", declared) == []
    assert "Invalid secret, u" in calling("with: {r: x}\nsecrets: {t: a, u: b}", declared)[0]


def test_G20_call_with_runs_on() -> None:
    text = "on: push\njobs: {j: {uses: ./.github/workflows/c.yml, runs-on: x}}"
    (message,) = errors(text)
    assert message.startswith("Unexpected value 'runs-on'")


def test_G22_group_and_labels() -> None:
    assert errors(job("runs-on: {labels: [a]}")) == []
    assert errors(job("runs-on: {group: org/g, labels: a}")) == []
    assert "Invalid runs-on group name" in errors(job("runs-on: {group: x/g}"))[0]


@pytest.mark.parametrize("uses", ["a/b", "a@b", "a/b@", "a/b@c@d", "docker://", "/x@y"])
def test_G23_uses_format(uses: str) -> None:
    (message,) = errors(job(f"steps: [{{uses: '{uses}'}}]"))
    assert message.startswith("Expected format {org}/{repo}[/path]@ref")


@pytest.mark.parametrize(("name", "fragment"), [("1st", "is invalid"), ("a.b", "is invalid"), ("__x", "are reserved")])
def test_G24_ids(name: str, fragment: str) -> None:
    (message,) = errors(f"on: push\njobs: {{{name}: {{runs-on: x, {STEPS}}}}}")
    assert fragment in message


# --- sections 7, 11, 15, 16 ----------------------------------------------------------------------------------------


def test_O25_generated_ids() -> None:
    steps = (
        "{run: a}, {run: b}, {uses: o/r/p@v}, {uses: ./x}, {uses: 'docker://a:1'}, {id: mine, run: c}, {uses: o/r@w}"
    )
    found = [step.id for step in read(job(f"steps: [{steps}]")).jobs[0].steps]
    assert found == ["__run", "__run_2", "__o_r", "__self", "__a_1", "mine", "__o_r_2"]


def test_step_ids_are_unique() -> None:
    (message,) = errors(job("steps: [{id: a, run: x}, {id: A, run: y}]"))
    assert "may not be used more than once within the same scope" in message


def test_conditions_are_wrapped() -> None:
    plan = read(job("if: github.ref == 'x'\nsteps: [{run: a, if: always()}, {run: b, if: '${{ env.A }}'}, {run: c}]"))
    (only,) = plan.jobs
    assert only.condition == "success() && (github.ref == 'x')"
    assert only.condition_written == "github.ref == 'x'"
    assert [step.condition for step in only.steps] == ["always()", "success() && (env.A)", "success()"]


def test_needs_cycle_names_the_jobs() -> None:
    body = ", ".join(f"{a}: {{needs: {b}, runs-on: x, {STEPS}}}" for a, b in [("a", "b"), ("b", "c"), ("c", "b")])
    told = errors(f"on: push\njobs: {{{body}}}")
    assert any("'b' needs 'c' needs 'b'" in message for message in told)
    assert any("at least one job with no dependencies" in message for message in told)
    assert errors(f"on: push\njobs: {{a: {{needs: a, runs-on: x, {STEPS}}}}}")[1].endswith("'a' needs 'a'")


def test_a_long_chain_is_no_cycle() -> None:
    jobs = [f"  j0: {{runs-on: x, {STEPS}}}"]
    jobs += [f"  j{n}: {{needs: j{n - 1}, runs-on: x, {STEPS}}}" for n in range(1, 3000)]
    assert errors("on: push\njobs:\n" + "\n".join(jobs)) == []


def test_called_files_are_nested() -> None:
    files = {
        "./.github/workflows/a.yml": "on: workflow_call\njobs: {in: {uses: o/r/.github/workflows/b.yml@v1}}",
        "o/r/.github/workflows/b.yml@v1": "on: workflow_call\njobs: {in: {uses: ./.github/workflows/c.yml}}",
        "o/r/.github/workflows/c.yml@v1": callee(),
    }
    plan = compile_workflow(
        job("uses: ./.github/workflows/a.yml"),
        path="w.yml",
        loader=lambda uses: files[uses].encode() if uses in files else None,
    )
    assert plan.files == ("w.yml", ".github/workflows/a.yml", *list(files)[1:])
    first = plan.jobs[0].call
    assert first is not None
    second = first.workflow.jobs[0].call
    assert second is not None
    third = second.workflow.jobs[0].call
    assert third is not None
    assert (third.workflow.repository, third.workflow.path, third.workflow.ref) == (
        "o/r",
        ".github/workflows/c.yml",
        "v1",
    )
    assert third.workflow.jobs[0].at is not None
    assert third.workflow.jobs[0].at.file == 4


def chain(length: int) -> RunPlan:
    """A workflow whose calls are `length` files deep, itself counted."""

    def load(uses: str) -> bytes:
        number = int(uses.rsplit("/", 1)[1].removesuffix(".yml"))
        last = number + 1 == length
        return (callee() if last else f"on: workflow_call\njobs: {{j: {{uses: ./w/{number + 1}.yml}}}}").encode()

    return compile_workflow(job("uses: ./w/1.yml"), path="w/0.yml", loader=load)


def test_ten_levels() -> None:
    assert len(chain(10).files) == 10
    with pytest.raises(WorkflowError, match="depth exceeded 10"):
        chain(11)


def test_loops_are_refused() -> None:
    texts = {"./a.yml": "b", "./b.yml": "a"}

    def load(uses: str) -> bytes:
        return f"on: workflow_call\njobs: {{j: {{uses: ./{texts[uses]}.yml}}}}".encode()

    with pytest.raises(WorkflowError, match=r"calls itself: \./a\.yml calls \./b\.yml calls \./a\.yml"):
        compile_workflow(job("uses: ./a.yml"), path="w.yml", loader=load)


def test_jobs_in_all_are_bounded() -> None:
    """Each level calls the next a hundred times: refused without building what that would be."""

    def load(uses: str) -> bytes:
        number = int(uses[2:-4])
        if number == 8:
            return callee().encode()
        calls = ", ".join(f"j{n}: {{uses: ./{number + 1}.yml}}" for n in range(100))
        return f"on: workflow_call\njobs: {{{calls}}}".encode()

    with pytest.raises(WorkflowError, match="may not contain more than 5000 jobs"):
        compile_workflow(job("uses: ./1.yml"), path="w.yml", loader=load)


def test_callee_must_be_callable() -> None:
    (message,) = calling("", f"on: push\n{JOB}")
    assert message == "workflow_call key is not defined in the referenced workflow"


def test_an_invalid_callee_is_one_problem_of_the_call() -> None:
    (message,) = calling("", "on: workflow_call\njobs: {j: {runs-on: x, steps: [{runn: a}]}}")
    assert "is invalid: .github/workflows/c.yml:2:33: Unexpected value 'runn'" in message


def test_dispatch_limits() -> None:
    many = ", ".join(f"i{n}: {{}}" for n in range(26))
    assert "at most 25" in errors(f"on: {{workflow_dispatch: {{inputs: {{{many}}}}}}}\n{JOB}")[0]


def test_what_is_not_run_yet_is_refused_by_name() -> None:
    text = job("steps: [{run: a, background: true, id: b}, {wait: b}]")
    assert errors(text) == []
    with pytest.raises(WorkflowError, match="not supported by Runyard yet"):
        compile_workflow(text, path="w.yml")


def test_plan_of_a_job() -> None:
    plan = compile_workflow(
        job("timeout-minutes: 5\ndefaults: {run: {shell: sh}}\nservices: {db: {image: x}}\nenvironment: ${{ vars.E }}"),
        path="w.yml",
    )
    (only,) = plan.jobs
    assert data(only.timeout_minutes) == 5
    assert data(only.defaults) == {"type": 2, "map": [{"Key": "shell", "Value": "sh"}]}
    assert isinstance(only.services, MappingToken)
    assert isinstance(only.services.entries[0], Entry)
    assert only.environment is not None
    assert data(only.environment.name) == {"type": 3, "expr": "vars.E"}
    assert isinstance(only.steps[0], RunStep)
    assert plan.name == "w.yml"
