"""`runyard run` as people use it: exit codes, events, the working tree, interrupts, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.command_line import RUNYARD, Told, environment, repository, run_events, runyard
from source.repositories import everything_in, git

if TYPE_CHECKING:
    from collections.abc import Callable

WORKFLOW = ".github/workflows/ci.yml"
LOCAL = ("--sandbox", "bubblewrap", "--network", "none")


def run_workflow(tmp_path: Path, text: str, *arguments: str, files: dict[str, str] | None = None, **more: Any) -> Told:
    folder = repository(tmp_path / "repo", {WORKFLOW: text, **(files or {})})
    return run_events(folder, *LOCAL, *arguments, **more)


def test_events_of_a_run_have_their_fields(tmp_path: Path) -> None:
    text = """
name: CI
on: push
jobs:
  a:
    runs-on: ubuntu-latest
    strategy: {matrix: {v: [x]}}
    outputs: {o: "${{ steps.s.outputs.o }}"}
    steps:
      - {id: s, name: Say, run: 'echo "o=1" >> "$GITHUB_OUTPUT"; echo "hello ${{ matrix.v }}"'}
      - {run: exit 3, continue-on-error: true}
  b: {if: false, runs-on: ubuntu-latest, steps: [{run: "true"}]}
"""
    told = run_workflow(tmp_path, text)
    assert told.code == 0
    assert [event["workflow"] for event in told.of_type("run_started")] == [WORKFLOW]
    started = told.of_type("job_started")[0]
    assert (started["job"], started["key"], started["job_name"], started["matrix"]) == ("a", "a.x", "a (x)", {"v": "x"})
    assert told.log("a", "output") == ["hello x"]
    steps = {event["step"]["number"]: event for event in told.of_type("step_finished")}
    assert steps[1]["step"]["name"] == "Say"
    assert (steps[2]["outcome"], steps[2]["conclusion"]) == ("failure", "success")
    ended = {event["key"]: event for event in told.of_type("job_finished")}
    assert ended["a.x"]["outputs"] == {"o": "1"}
    assert ended["b"]["conclusion"] == "skipped"
    assert ended["b"]["reason_code"] == "condition_false"
    assert told.run == "success"
    assert all(len(event["time"]) == 30 for event in told.events if "time" in event)


def test_exit_codes(tmp_path: Path) -> None:
    text = "on: [push, issues]\njobs: {j: {runs-on: ubuntu-latest, steps: [{run: 'exit ${{ vars.CODE }}'}]}}\n"
    folder = repository(tmp_path / "repo", {WORKFLOW: text})
    assert runyard(folder, "run", *LOCAL, "--var", "CODE=0").code == 0
    failed = runyard(folder, "run", *LOCAL, "--var", "CODE=7")
    assert failed.code == 1
    assert "j" in failed.out
    skipped = run_events(folder, *LOCAL, "--event", "pull_request")
    assert (skipped.code, [event["type"] for event in skipped.events]) == (0, ["not_triggered"])
    assert skipped.events[0]["workflow"] == WORKFLOW


def test_F60_labels_that_this_machine_cannot_serve(tmp_path: Path) -> None:
    text = """
on: push
jobs:
  w: {runs-on: windows-latest, steps: [{run: Write-Host hi}]}
  m: {runs-on: macos-latest, steps: [{run: sw_vers}]}
  l:
    runs-on: ubuntu-latest
    steps:
      - {run: "false | true"}
      - {run: "false | true", shell: bash, continue-on-error: true, id: p}
      - {run: 'echo "$0" > sh.txt', shell: sh}
      - {run: echo x, shell: cmd, if: false}
      - {run: 'test "${{ steps.p.outcome }}" = failure'}
"""
    told = run_workflow(tmp_path, text)
    ended = {event["key"]: event for event in told.of_type("job_finished")}
    assert ended["l"]["conclusion"] == "success"
    assert told.code == 3
    for key, platform in (("w", "windows/amd64"), ("m", "macos")):
        assert ended[key]["conclusion"] == "failure"
        assert ended[key]["reason_code"] == "unavailable"
        assert f"needs {platform}, not available here" in ended[key]["reason"]
        assert not told.of_type("step_started", key=key)
    assert run_events(tmp_path / "repo", *LOCAL, "--job", "l").code == 0


def test_an_unserved_leg_does_not_end_its_siblings(tmp_path: Path) -> None:
    text = """
on: push
jobs:
  t:
    runs-on: ${{ matrix.os }}
    strategy: {matrix: {os: [windows-latest, ubuntu-latest]}}
    steps: [{run: echo ran}]
"""
    told = run_workflow(tmp_path, text)
    assert told.conclusion("t.ubuntu-latest") == "success"
    assert told.code == 3
    failing = text.replace("echo ran", "exit 1")
    (tmp_path / "repo" / WORKFLOW).write_text(failing)
    assert run_events(tmp_path / "repo", *LOCAL).code == 1, "another job failed: then 1"


CHECKOUT = """
on: push
jobs:
  j:
    runs-on: ubuntu-latest
    steps:
      - run: test -z "$(ls -A)"
      - uses: actions/checkout@v4
      - run: cat a.txt; ls; echo "sha $GITHUB_SHA"
"""


def test_D10_the_working_tree_is_what_is_checked_out(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repo", {WORKFLOW: CHECKOUT, "a.txt": "committed\n", ".gitignore": "*.log\n"})
    sha = git(folder, "rev-parse", "HEAD")
    (folder / "a.txt").write_text("edited\n")
    (folder / "new.txt").write_text("new\n")
    (folder / "out.log").write_text("ignored\n")
    before = everything_in(folder)
    told = run_events(folder, *LOCAL)
    assert told.code == 0, told.out
    assert everything_in(folder) == before
    lines = told.log("j", "output")
    assert "edited" in lines
    assert "new.txt" in lines
    assert "out.log" not in lines
    assert f"sha {sha}" in lines
    for arguments in (("--ref", "HEAD"), ("--strict-github",)):
        lines = run_events(folder, *LOCAL, *arguments).log("j", "output")
        assert "committed" in lines, arguments
        assert "new.txt" not in lines, arguments


def test_secrets_come_from_files_and_the_environment_and_stay_hidden(tmp_path: Path) -> None:
    text = """
on: push
jobs:
  j:
    runs-on: ubuntu-latest
    environment: Prod
    steps:
      - env: {A: "${{ secrets.A }}", B: "${{ secrets.B }}", C: "${{ secrets.C }}", T: "${{ secrets.GITHUB_TOKEN }}"}
        run: |
          echo "[$A][$B][$C][$T] ${{ vars.V }}"
          test "$A" = from-the-file && test "$B" = from-the-variable && test "$C" = of-the-environment && test -z "$T"
"""
    (tmp_path / "s.env").write_text("A=from-the-file\nC=of-the-repository\n")
    (tmp_path / "e.json").write_text('{"prod": {"secrets": {"c": "of-the-environment"}, "vars": {"V": "inner"}}}')
    told = run_workflow(
        tmp_path,
        text,
        *("--secret-file", str(tmp_path / "s.env"), "--secret", "B", "--var", "V=outer"),
        *("--environment-file", str(tmp_path / "e.json")),
        env={"B": "from-the-variable"},
    )
    assert told.code == 0, told.out
    assert told.log("j", "output") == ["[***][***][***][] inner"]
    for value in ("from-the-file", "from-the-variable", "of-the-environment"):
        assert value not in told.out + told.err


def test_env_flags_reach_the_job_and_not_the_env_context(tmp_path: Path) -> None:
    text = "on: push\njobs: {j: {runs-on: ubuntu-latest, steps: [{run: 'echo \"$A [${{ env.A }}]\"'}]}}\n"
    told = run_workflow(tmp_path, text, "--env", "A=1")
    assert told.log("j", "output") == ["1 []"]


def test_parallel_bounds_jobs_at_a_time(tmp_path: Path) -> None:
    text = """
on: push
jobs:
  t:
    runs-on: ubuntu-latest
    strategy: {matrix: {v: [1, 2, 3]}}
    steps: [{run: "true"}]
"""
    told = run_workflow(tmp_path, text, "--parallel", "1")
    assert told.code == 0
    order = [event["type"] for event in told.events if event["type"] in ("job_started", "job_finished")]
    assert order == ["job_started", "job_finished"] * 3


def test_concurrency_of_workflows_of_one_command(tmp_path: Path) -> None:
    text = "on: push\nconcurrency: g\njobs: {j: {runs-on: ubuntu-latest, steps: [{run: 'true'}]}}\n"
    files = {f".github/workflows/{name}.yml": text for name in "abc"}
    folder = repository(tmp_path / "repo", files)
    told = run_events(folder, *LOCAL)
    ended = {event["workflow"].rpartition("/")[2]: event for event in told.of_type("run_finished")}
    assert {name: event["conclusion"] for name, event in ended.items()} == {
        "a.yml": "success",
        "b.yml": "cancelled",
        "c.yml": "success",
    }
    assert ended["b.yml"]["reason_code"] == "concurrency"


def test_offline_names_what_is_missing_before_anything_runs(tmp_path: Path) -> None:
    text = """
on: push
jobs: {j: {runs-on: ubuntu-latest, steps: [{uses: actions/checkout@v4}, {uses: acme/tool@v1}, {uses: acme/x/y@v2}]}}
"""
    folder = repository(tmp_path / "repo", {WORKFLOW: text})
    told = runyard(folder, "run", *LOCAL, "--offline")
    assert (told.code, told.out) == (3, "")
    assert "acme/tool@v1" in told.err
    assert "acme/x/y@v2" in told.err
    assert "actions/checkout" not in told.err


@pytest.mark.parametrize("flag", [("--keep",), ("--pause-on", "failure")])
def test_what_needs_a_terminal_is_refused_without_one(tmp_path: Path, flag: tuple[str, ...]) -> None:
    text = "on: push\njobs: {j: {runs-on: ubuntu-latest, steps: [{run: 'true'}]}}\n"
    folder = repository(tmp_path / "repo", {WORKFLOW: text})
    told = runyard(folder, "run", *LOCAL, *flag)
    assert told.code == 3
    assert "needs a terminal" in told.err


def test_a_closed_output_changes_no_exit_code(tmp_path: Path) -> None:
    text = "on: push\njobs: {j: {runs-on: ubuntu-latest, steps: [{run: 'seq 1 200'}, {run: exit 1}]}}\n"
    folder = repository(tmp_path / "repo", {WORKFLOW: text})
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*RUNYARD, "run", *LOCAL, "--format", "plain"],
            cwd=folder,
            env=environment(tmp_path),
            stdout=writer,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    assert b"Traceback" not in done.stderr
    assert done.returncode == 1


# --- interrupts


INTERRUPTED = """
on: push
jobs:
  j:
    runs-on: ubuntu-latest
    steps:
      - run: read x || echo eof
      - run: echo "::notice::sleeping"; sleep 60
      - if: always()
        run: echo cleaning; sleep ${{ vars.CLEAN }}; echo cleaned
  later: {needs: j, runs-on: ubuntu-latest, steps: [{run: "true"}]}
"""


class Going:
    """A run that goes on; its output is read from a file, so that nobody has to drain it."""

    def __init__(self, tmp_path: Path, clean: str) -> None:
        self.folder = repository(tmp_path / "repo", {WORKFLOW: INTERRUPTED})
        self.home = tmp_path
        self.out = tmp_path / "out.jsonl"
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                [*RUNYARD, "run", *LOCAL, "--format", "jsonl", "--var", f"CLEAN={clean}"],
                cwd=self.folder,
                env=environment(tmp_path),
                stdout=out,
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def until(self, text: str) -> None:
        deadline = time.monotonic() + 20
        while text not in self.out.read_text():
            assert time.monotonic() < deadline, self.out.read_text()
            assert self.process.poll() is None, self.out.read_text()
            time.sleep(0.02)

    def end(self) -> tuple[int, str]:
        try:
            _, err = self.process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=10)
            raise
        assert b"Traceback" not in err, err
        return self.process.returncode, self.out.read_text()

    def leftovers(self) -> list[str]:
        """Processes of the run's session, and what is kept in its state folder."""
        left = [str(path) for path in (self.home / "state").rglob("sandboxes/*")]
        ours = os.fsencode(f"RUNYARD_STATE_DIR={self.home / 'state'}")
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if ours in (process / "environ").read_bytes().split(b"\0"):
                    left.append(f"process {process.name}")
            except OSError:
                continue
        return left


@pytest.mark.timeout(90)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_F58_an_interrupt_runs_the_clean_up_and_ends_with_130(tmp_path: Path, number: signal.Signals) -> None:
    going = Going(tmp_path, "0")
    going.until("sleeping")
    going.process.send_signal(number)
    code, out = going.end()
    assert code == 130, out
    assert '"text":"cleaned"' in out
    assert '"text":"eof"' in out
    assert '"conclusion":"cancelled","reason":"interrupted"' in out
    assert going.leftovers() == []


@pytest.mark.timeout(90)
def test_F58_a_second_interrupt_ends_at_once(tmp_path: Path) -> None:
    going = Going(tmp_path, "30")
    going.until("sleeping")
    going.process.send_signal(signal.SIGINT)
    going.until('"text":"cleaning"')
    going.process.send_signal(signal.SIGINT)
    code, out = going.end()
    assert code == 130
    assert '"text":"cleaned"' not in out
    assert '"run_finished"' in out
    assert going.leftovers() == []


@pytest.mark.timeout(90)
def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path) -> None:
    going = Going(tmp_path, "0")
    going.until("sleeping")
    going.process.kill()
    going.process.communicate(timeout=10)
    told = run_events(going.folder, *LOCAL, "--event", "pull_request", home=going.home)
    assert told.code == 0
    deadline = time.monotonic() + 10
    while (left := going.leftovers()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def test_an_interrupt_while_the_program_is_loaded_is_an_interrupt(tmp_path: Path) -> None:
    """At whatever moment it comes: an error that nobody took would end the program by the signal. Nobody is left."""
    workflow = "on: push\njobs: {a: {runs-on: ubuntu-latest, steps: [{run: ls}]}}"
    folder = repository(tmp_path / "repo", {WORKFLOW: workflow})
    state = str(tmp_path / "state")
    for number in range(4):
        process = subprocess.Popen(
            [*RUNYARD, "run", *LOCAL],
            cwd=folder,
            env=environment(tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for_helper(process.pid)
        time.sleep(number * 0.03)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) in {0, 130}
    until(lambda: not owned_by(state), "a process is left")


def wait_for_helper(pid: int) -> None:
    """Until our own part of a program is at work: it has started its helper."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    until(lambda: not children.exists() or bool(children.read_text("ascii").split()), "the program did not start")


def owned_by(state: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"RUNYARD_STATE_DIR={state}".encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 15
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
