"""What a killed run leaves: nothing that runs, and nothing that the next command does not take away."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from e2e.command_line import run_events, runyard
from e2e.test_job_process import launch, run_one, with_launcher
from engine.scripted import claim
from faults.going import Going, left_of, processes_with, started, within
from runyard.job import Cancel, Claim

if TYPE_CHECKING:
    from runyard.engine.launch import Launcher

LONG = """
on: push
jobs:
  j:
    runs-on: ubuntu-latest
    steps:
      - run: (setsid sleep {number} >/dev/null 2>&1 &); echo sleeping; sleep {number}
"""


@pytest.mark.timeout(90)
@pytest.mark.parametrize(("after", "number"), [("run", 48101), ("doctor", 48102)])
def test_kill_9_ends_the_jobs_at_once_and_the_next_command_removes_the_rest(
    tmp_path: Path, after: str, number: int
) -> None:
    going = Going(tmp_path, LONG.replace("{number}", str(number)))
    try:
        started(f"sleep\0{number}", 2)
        names = going.names()
        assert names
    finally:
        going.process.kill()
        going.process.wait(timeout=10)
    # The processes of the job, its grandchild in a session of its own too, and every process of ours.
    assert within(10, lambda: processes_with(f"sleep\0{number}")) == []
    assert within(10, going.processes) == []
    if after == "run":
        told = run_events(going.folder, "--sandbox", "bubblewrap", "--event", "pull_request", home=tmp_path)
        assert told.code == 0
    else:
        told = runyard(going.folder, "doctor", "--json", home=tmp_path)
        assert json.loads(told.out)
    assert within(10, going.names) == set()
    assert within(10, lambda: left_of(names)) == []


TWO = """
on: push
jobs:
  ill:
    runs-on: ubuntu-latest
    steps:
      - {name: Ill, run: 'echo "ill began"; sleep 48103'}
      - {name: After, if: always(), run: echo after}
  well: {runs-on: ubuntu-latest, steps: [{run: "echo well began; sleep 48104"}, {run: echo never}]}
"""


def job_process_of(step: int, going: Going) -> int:
    """The job process that reads what this process of a step prints: both hold the same pipe."""
    pipe = Path(f"/proc/{step}/fd/1").readlink()
    for each in going.processes():
        folder = Path(f"/proc/{each}/fd")
        if b"runyard.cli.main" in Path(f"/proc/{each}/cmdline").read_bytes():
            links = [fd.readlink() for fd in folder.iterdir() if fd.is_symlink()]
            if pipe in links:
                return each
    raise AssertionError("nobody reads the step's output")


@pytest.mark.timeout(90)
def test_a_job_process_that_is_killed_fails_alone(tmp_path: Path) -> None:
    going = Going(tmp_path, TWO, "--parallel", "2")
    try:
        (ill,) = started("sleep\00048103")
        (well,) = started("sleep\00048104")
        os.kill(job_process_of(ill, going), signal.SIGKILL)
        going.until('"reason_code":"job_process_lost"')
        assert within(10, lambda: processes_with("sleep\00048103")) == []
        # The other one has not noticed. It ends when its step does.
        os.kill(well, signal.SIGTERM)
        assert going.end() == 1
    finally:
        going.process.kill()
        going.process.wait(timeout=10)
    ended = {event["job"]: event for event in going.events() if event["type"] == "job_finished"}
    assert (ended["ill"]["conclusion"], ended["ill"]["reason_code"]) == ("failure", "job_process_lost")
    assert "job process" in ended["ill"]["reason"]
    assert (ended["well"]["conclusion"], ended["well"]["reason_code"]) == ("failure", "exit_code")
    steps = [e for e in going.events() if e["type"] == "step_finished" and e["job"] == "ill" and e["step"]["number"]]
    assert [(e["step"]["name"], e["conclusion"], e["reason_code"]) for e in steps] == [
        ("Ill", "failure", "job_process_lost")
    ]
    assert within(10, going.processes) == []
    assert left_of(going.names()) == []


CATASTROPHE = (
    'echo \'{"problemMatcher": [{"owner": "slow", "pattern": [{"regexp": "^(a|aa)+$", "message": 1}]}]}\' '
    "> m.json; echo '::add-matcher::m.json'"
)
LINE = "head -c 4000 /dev/zero | tr '\\0' a; echo '!'"


def matched(limit: str, *steps: str) -> Claim:
    """A job with a matcher that never ends on LINE, under a limit that the owner chose."""
    given = claim({"run": CATASTROPHE}, *({"run": each} for each in steps))
    context = msgspec.structs.replace(given.context, vars={"GITHUB_ACTIONS_RUNNER_ISSUE_MATCHER_TIMEOUT": limit})
    return msgspec.structs.replace(given, context=context)


def test_a_job_that_is_stuck_in_a_matcher_fails_alone() -> None:
    """The owner set the limit of matchers away; then the standstill of the job process is what is noticed."""

    async def test(launcher: Launcher) -> None:
        ill = await launch(launcher, matched("1:00:00", f"{LINE}; sleep 48105"))
        well = await launch(launcher, claim({"run": "echo begun; sleep 48106"}))
        await well.wait_for("begun")
        finished = await ill.end()
        assert (finished.conclusion, finished.reason_code) == ("failure", "job_process_stuck")
        assert finished.reason is not None
        assert "no sign of life" in finished.reason
        assert not well.task.done()
        await well.handle.order(Cancel())
        assert (await well.end()).conclusion == "cancelled"

    with_launcher(test, stuck_after_s=4.0)
    assert within(10, lambda: processes_with("sleep\00048105")) == []


def test_a_catastrophic_matcher_costs_itself_alone() -> None:
    finished, told = run_one(matched("0:00:00.05", f"{LINE}; {LINE}; {LINE}; {LINE}", "echo went on"))
    assert finished.conclusion == "success"
    assert told.log("output").splitlines()[-1] == "went on"
    assert "slow" in told.log("runner")


LADDER = """
on: push
jobs:
  j:
    runs-on: ubuntu-latest
    steps:
      - run: |
          echo $$ > "$RUNNER_TEMP/pid"
          (trap 'sleep 0.3; echo cleaned > "$RUNNER_TEMP/child"; exit' INT; exec >/dev/null 2>&1
           touch ready; while :; do sleep 0.05; done) &
          while ! [ -e ready ]; do sleep 0.05; done
          trap 'exit 130' INT
          echo sleeping
          while :; do sleep 0.05; done
      - {if: always(), run: 'cat "$RUNNER_TEMP/child" || echo killed'}
"""


@pytest.mark.parametrize("strict", [False, True], ids=["D3", "D3-strict"])
def test_D3_a_child_without_output_has_time_to_clean_up(tmp_path: Path, strict: bool) -> None:
    going = Going(tmp_path, LADDER, *(("--strict-github",) if strict else ()))
    try:
        going.until('"kind":"output","text":"sleeping"')
        going.process.send_signal(signal.SIGINT)
        assert going.end() == 130
    finally:
        going.process.kill()
        going.process.wait(timeout=10)
    lines = [event["text"] for event in going.events() if event["type"] == "log" and event["kind"] == "output"]
    assert ("cleaned" in lines) is not strict
