"""`.runyard/ci.toml`: what a file means, and every way in which one is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runyard.job import Collect, JobSpec, Limits, RunContext, RunStep, TextToken
from runyard.run import Begin, CreateJob, EndJob, Finished, RunState, advance
from runyard.workflow import EventFacts, RunPlan, plan_workflow, read_workflow, triggered

if TYPE_CHECKING:
    from runyard.workflow.model import Workflow

PATH = ".runyard/ci.toml"

WHOLE = """
name = "ci"
image = "rust:1"
platform = "linux/arm64/v8"
timeout = "30min"
shell = "sh"

[on]
push = { branches = ["main", "!old/**"], paths_ignore = ["docs/**"] }
pull_request = true
schedule = ["0 3 * * *"]

[env]
CARGO_TERM_COLOR = "always"

[limits]
memory = "2GiB"
pids = 512
network = "proxy"

[jobs.test]
run = "cargo test"
secrets = ["CARGO_TOKEN"]
env = { RUST_LOG = "debug", N = 3 }
artifacts = [{ name = "docs", path = "target/doc", browse = true }, { name = "log", path = "l.txt", when = "always" }]
retry_lost = 2
limits = { cpus = 1.5, memory = "512MiB" }

[jobs.matrix]
needs = ["test"]
image = "python:3"
platform = "linux/amd64"
labels = ["big"]
checkout = false
matrix = { v = [1, "two"] }
steps = ["echo ${{ matrix.v }}", { name = "again", run = "false", if = "always()", allow_failure = true }]
if = "github.ref == 'refs/heads/main'"
timeout = "90s"
group = "one at a time"

[jobs.ship]
needs = ["matrix"]
run = "deploy"
publish = true
"""


def read(text: str) -> Workflow:
    reading = read_workflow(text, path=PATH)
    assert reading.workflow is not None, reading.problems
    return reading.workflow


def jobs_of(text: str, ref: str = "refs/heads/main") -> dict[str, JobSpec]:
    """Every job that the whole run creates, each said to be a success."""
    plan: RunPlan = plan_workflow(read(text))
    state = RunState(run_id="1", context=RunContext(github={"ref": ref}))
    made: dict[str, JobSpec] = {}
    happenings: list[Begin | Finished] = [Begin()]
    while happenings:
        state, decisions = advance(plan, state, happenings.pop(0), 1)
        for decision in decisions:
            if isinstance(decision, CreateJob):
                made[decision.key] = decision.spec
                happenings.append(Finished(decision.key, "success"))
            elif isinstance(decision, EndJob):
                made.setdefault(decision.key, JobSpec(id="", run_id="", key="", job="", name=decision.reason, steps=()))
    return made


def test_a_whole_pipeline_says_everything() -> None:
    made = jobs_of(WHOLE)
    test = made["test"]
    assert (test.image, test.platform, test.retry_lost, test.labels) == (
        "rust:1",
        "linux/arm64/v8",
        2,
        ("self-hosted",),
    )
    assert test.limits == Limits(memory_mb=512, cpus=1.5, pids=512, network="proxy", timeout_s=1800)
    assert test.collect == (Collect("docs", "target/doc", browse=True), Collect("log", "l.txt", when="always"))
    assert [step.id for step in test.steps] == ["__actions_checkout", "__run"]
    assert test.permissions == {"contents": "read"} | {
        key: "none" for key in test.permissions or {} if key != "contents"
    }
    legs = [spec for key, spec in made.items() if key.startswith("matrix")]
    assert [leg.matrix for leg in legs] == [{"v": 1}, {"v": "two"}]
    leg = legs[0]
    assert (leg.image, leg.platform, leg.labels) == ("python:3", "linux/amd64", ("big",))
    assert (leg.limits.timeout_s, leg.limits.memory_mb) == (90, 2048)
    script = leg.steps[1]
    assert isinstance(script, RunStep)
    assert script.condition == "always()"
    assert isinstance(script.name, TextToken)
    ship = made["ship"]
    assert (ship.requires, ship.retry_lost) == (("publish",), 0)


def test_conditions_and_positions_are_those_of_the_file() -> None:
    assert jobs_of(WHOLE, ref="refs/heads/x")["matrix"].steps == ()
    plan = plan_workflow(read(WHOLE))
    test, matrix, _ = plan.jobs
    lines = WHOLE.splitlines()
    assert test.at is not None
    assert lines[test.at.line - 1] == "[jobs.test]"
    step = matrix.steps[0]
    assert isinstance(step, RunStep)
    assert step.script.at is not None
    assert lines[step.script.at.line - 1].startswith("steps = ")


@pytest.mark.parametrize(
    ("facts", "starts"),
    [
        (EventFacts(event="push", ref="refs/heads/main"), True),
        (EventFacts(event="push", ref="refs/heads/other"), False),
        (EventFacts(event="push", ref="refs/heads/main", changed_files=("docs/a.md",)), False),
        (EventFacts(event="pull_request", base_ref="main", payload={"action": "opened"}), True),
        (EventFacts(event="workflow_dispatch", ref="refs/heads/main"), True),
        (EventFacts(event="issues"), False),
    ],
)
def test_what_starts_it(facts: EventFacts, starts: bool) -> None:
    assert triggered(read(WHOLE), facts).triggered is starts


def test_without_on_a_push_and_a_hand_start_it() -> None:
    workflow = read("[jobs.a]\nrun = 'true'\n")
    assert [trigger.event for trigger in workflow.triggers] == ["workflow_dispatch", "push"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", f"{PATH}:1:1: a pipeline has at least one job: [jobs.NAME]"),
        ("[jobs.a]\n", f"{PATH}:1:1: a job has either run, one script, or steps"),
        ("[jobs.a]\nrun='x'\nsteps=['y']", f"{PATH}:1:1: a job has either run, one script, or steps"),
        ("[jobs.a]\nrun='x'\nimgae='y'", f"{PATH}:3:1: no such key; did you mean image?"),
        ("platform='amd64'\n[jobs.a]\nrun='x'", "'amd64' is no platform; write os/arch, as in linux/amd64 or"),
        ("[jobs.a]\nrun='x'\ntimeout=30", f"{PATH}:3:1: expected text with a unit, as in 90s"),
        ("[jobs.a]\nrun='x'\nneeds=['b']", f"{PATH}:3:"),
        ("[jobs.a]\nrun='x'\nneeds=['a']", f"{PATH}:"),
        ("[jobs.a]\nrun='x'\nif='nope('", f"{PATH}:3:"),
        ("[jobs.'a b']\nrun='x'", f"{PATH}:1:"),
        ("[jobs.a]\nsteps=['${{ secret.X }}']", f"{PATH}:2:"),
        ("[jobs.a]\nrun='x'\nartifacts=[{name='a/b',path='x'}]", "'a/b' can't be an artifact's name"),
        ("[jobs.a]\nrun='x'\nartifacts=[{name='a',path='../x'}]", ":3:22: '../x' is no path below the workspace"),
        ("[jobs.a]\nrun='x'\nartifacts=[{name='a',path='x'},{name='a',path='y'}]", "two artifacts are named 'a'"),
        ("[jobs.a]\nrun='x'\npublish=true\nmatrix={v=[1]}", "a publish job has no matrix, services or artifacts"),
        ("[jobs.a]\nrun='x'\nlimits={memory=5}", "expected text with a unit, as in 512MiB"),
        ("on = 'push'\n[jobs.a]\nrun='x'", f"{PATH}:1:1: "),
        ("[on]\nschedule=['nope']\n[jobs.a]\nrun='x'", f"{PATH}:2:"),
        ("a = = 1", f"{PATH}:1:5: it is no TOML"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(text: str, problem: str) -> None:
    reading = read_workflow(text, path=PATH)
    assert reading.workflow is None
    assert any(problem in str(found) for found in reading.problems), reading.problems


def test_all_problems_are_said_at_once() -> None:
    text = "nam = 'x'\n[jobs.a]\nruns = 1\n[jobs.b]\nrun = 2\n"
    assert len(read_workflow(text, path=PATH).problems) == 3
