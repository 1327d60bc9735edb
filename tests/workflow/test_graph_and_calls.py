"""The pairs of workflow-language 18.4 and 18.5 that a file alone decides, calls, generated ids, and limits."""

from __future__ import annotations

import pytest

from runyard.job import Entry, MappingToken, RunStep
from runyard.workflow import RunPlan, WorkflowError, check_workflow, compile_workflow
from workflow.files import JOB, STEPS, errors, job, read
from workflow.official import data

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
    jobs += [f"  j{n}: {{needs: j{n - 1}, runs-on: x, {STEPS}}}" for n in range(1, 1200)]
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
