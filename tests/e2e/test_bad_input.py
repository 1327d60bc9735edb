"""Input that nobody should have given: each with its message and exit code, and never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from e2e.command_line import RUNYARD, environment, repository, run_events, runyard

if TYPE_CHECKING:
    from pathlib import Path

WORKFLOW = ".github/workflows/ci.yml"
LOCAL = ("--sandbox", "bubblewrap", "--network", "none")
GOOD = "on: push\njobs: {j: {runs-on: ubuntu-latest, steps: [{run: 'true'}]}}\n"
LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
CYCLE = """on: push
jobs:
  a: {runs-on: ubuntu-latest, needs: b, steps: [{run: "true"}]}
  b: {runs-on: ubuntu-latest, needs: a, steps: [{run: "true"}]}
  c: {runs-on: ubuntu-latest, steps: [{run: "true"}]}
"""


def unreadable(folder: Path, kind: str) -> None:
    """Something at the workflow's place that can't be read, whoever tries."""
    path = folder / WORKFLOW
    path.parent.mkdir(parents=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere.yml")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["folder", "fifo", "dangling link"])
@pytest.mark.parametrize("command", ["check", "run"])
def test_a_file_that_cannot_be_read(tmp_path: Path, command: str, kind: str) -> None:
    folder = repository(tmp_path / "repo", {"a.txt": "x"})
    unreadable(folder, kind)
    arguments = (*LOCAL, WORKFLOW) if command == "run" else (WORKFLOW,)
    told = runyard(folder, command, *arguments, deadline_s=20)
    assert told.code == 2
    assert "ci.yml" in told.out + told.err


FILES: dict[str, tuple[bytes, str]] = {
    "binary": (bytes(range(256)) * 64, "ci.yml"),
    "not UTF-8": (b"on: push\nname: \xff\xfe\n", "UTF-8"),
    "large": (b"on: push\nenv:\n" + b"  A: " + b"x" * (50 << 20) + b"\n", "ci.yml"),
    "many lines": (b"on: push\njobs:\n" + b"  # nothing here\n" * (50 << 16) + b"x", "ci.yml"),
    "billion laughs": (LAUGHS.encode(), "ci.yml"),
    "cycle": (CYCLE.encode(), "ci.yml"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("command", ["check", "run"])
def test_a_file_that_no_workflow_is(tmp_path: Path, command: str, kind: str) -> None:
    data, said = FILES[kind]
    folder = repository(tmp_path / "repo", {"a.txt": "x"})
    path = folder / WORKFLOW
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    told = runyard(folder, command, *(LOCAL if command == "run" else ()), deadline_s=20)
    assert told.code == 2
    words = told.out + told.err
    assert said in words
    assert len(words) < 20_000, "a message, not the file"
    assert f"{WORKFLOW}:" in words, "with line and column"


def test_the_cycle_is_named(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repo", {WORKFLOW: CYCLE})
    told = runyard(folder, "check")
    assert told.code == 2
    assert f"{WORKFLOW}:3:" in told.out + told.err or f"{WORKFLOW}:4:" in told.out + told.err
    assert "'a'" in told.out + told.err or "a ->" in told.out + told.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--event-file", "nosuch.json"), "nosuch.json"),
        (("--event-file", "bad.json"), "bad.json:1:"),
        (("--event-file", "list.json"), "list.json"),
        (("--event-file", "binary.json"), "binary.json"),
        (("--event", "pussh"), "pussh"),
        (("--job", "nosuch"), "nosuch"),
        (("--input", "x"), "x"),
        (("--secret-file", "nosuch.env"), "nosuch.env"),
        (("--matrix", "v"), "v"),
        (("--network", "everything"), "everything"),
        (("--sandbox", "bubblewrp"), "did you mean 'bubblewrap'"),
        (("--parallel", "0"), "parallel"),
        (("nosuch.yml",), "nosuch.yml"),
        (("--no-such-flag",), "no-such-flag"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_flag_or_payload(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    folder = repository(
        tmp_path / "repo", {WORKFLOW: GOOD, "bad.json": '{"a": }', "list.json": "[1]", "binary.json": "\x00\x01"}
    )
    told = runyard(folder, "run", "--list", *arguments, deadline_s=20)
    assert told.code == 2, told.out + told.err
    assert said in told.err
    assert told.out == ""


STEPS = r"""
on: push
jobs:
  bytes:
    runs-on: ubuntu-latest
    steps:
      - run: printf 'caf\xe9 \xff\xfe ok\n\x00nul\n'; printf '\xc3' ; printf '\xa9\n'
      - run: printf 'A=\xff\n' >> "$GITHUB_ENV"; printf '::warning::caf\xe9\n'
      - run: head -c 300000 /dev/urandom
  daemon:
    runs-on: ubuntu-latest
    steps:
      - run: (setsid sh -c 'sleep 48120' &) ; echo left
      - run: setsid sh -c 'exec sleep 48120' >/dev/null 2>&1 & echo again
      - run: echo after
"""


@pytest.mark.timeout(90)
def test_output_that_is_no_text_and_steps_that_leave_daemons(tmp_path: Path) -> None:
    from faults.going import processes_with, within

    folder = repository(tmp_path / "repo", {WORKFLOW: STEPS})
    told = run_events(folder, *LOCAL, "--parallel", "2")
    assert told.code == 0, told.err
    lines = told.log("bytes", "output")
    assert lines[0] == "caf\ufffd \ufffd\ufffd ok"
    assert lines[1] == "\x00nul"
    assert lines[2] == "é", "a character that came in two pieces"
    assert told.of_type("annotation", job="bytes")[0]["message"] == "caf\ufffd"
    assert told.log("daemon", "output") == ["left", "again", "after"]
    # The output that the daemon holds open ends the step within the grace of pair O30, not with the daemon.
    first = next(e for e in told.of_type("step_finished", job="daemon") if e["step"]["number"] == 1)
    assert first["usage"]["wall_s"] < 30
    assert within(10, lambda: processes_with("sleep\00048120")) == []


def test_a_full_output_is_not_a_good_end(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repo", {WORKFLOW: GOOD})
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*RUNYARD, "run", *LOCAL, "--format", "jsonl"],
            cwd=folder,
            env=environment(tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=20,
            check=False,
        )
    assert done.returncode == 3
    assert b"standard output can't be written" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("closed", ["stdin", "stdout", "stderr", "all"])
@pytest.mark.parametrize("command", [("--version",), ("check",), ("run", *LOCAL)], ids=["version", "check", "run"])
def test_standard_streams_that_are_closed(tmp_path: Path, command: tuple[str, ...], closed: str) -> None:
    folder = repository(tmp_path / "repo", {WORKFLOW: GOOD})
    numbers = {"stdin": "0<&-", "stdout": "1>&-", "stderr": "2>&-", "all": "0<&- 1>&- 2>&-"}
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {numbers[closed]}', "sh", *RUNYARD, *command],
        cwd=folder,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert b"Traceback" not in done.stdout + done.stderr
    assert b"a defect of Runyard" not in done.stdout + done.stderr
    assert done.returncode == 0, done


def test_a_payload_of_another_event_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "e.json").write_text(json.dumps({"unknown": {"deep": [1, {"x": None}]}, "ref": 7}))
    folder = repository(tmp_path / "repo", {WORKFLOW: GOOD})
    told = runyard(folder, "run", "--list", "--event-file", str(tmp_path / "e.json"), deadline_s=20)
    assert told.code in (0, 2)
    assert told.code == 0 or "e.json" in told.err
