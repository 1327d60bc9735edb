"""Secrets are searched for wherever a run could have left them: every format, files, processes, caches."""

from __future__ import annotations

import base64
import json
import os
import signal
import time
import urllib.parse
from pathlib import Path

import pytest

from e2e.command_line import repository, runyard
from faults.going import Going, processes_with, started, within

WORKFLOW = ".github/workflows/ci.yml"
LOCAL = ("--sandbox", "bubblewrap", "--network", "none")
SECRET = "Kq7+vZ/p2 Wn&\"9x'L0"
ADDED = "m4de.by-a-St3p"
FORMS = {
    "plain": SECRET,
    "base64": base64.b64encode(SECRET.encode()).decode().rstrip("="),
    "url": urllib.parse.quote(SECRET, safe=""),
    "json": json.dumps(SECRET)[1:-1],
}

TEXT = """
name: CI
on: push
jobs:
  j:
    runs-on: ubuntu-latest
    outputs: {leak: "${{ steps.s.outputs.leak }}"}
    env: {S: "${{ secrets.S }}"}
    steps:
      - uses: actions/checkout@v4
      - name: "named ${{ secrets.S }}"
        id: s
        run: |
          echo "value $S"
          python3 -c 'import os,base64,json,urllib.parse as u; s=os.environ["S"]
          print(base64.b64encode(s.encode()).decode()); print(u.quote(s, safe="")); print(json.dumps(s))' >&2
          echo "::warning file=$S,title=$S::about $S"
          echo "leak=$S" >> "$GITHUB_OUTPUT"
          echo "SAVED=$S" >> "$GITHUB_ENV"
          echo "summary $S" >> "$GITHUB_STEP_SUMMARY"
          echo "::add-mask::m4de.by-a-St3p"
          echo "::group::$S"
          echo "$S" > "$RUNNER_TEMP/$(echo -n left)"; mkdir -p "$HOME/$(echo "$S" | tr / _)"
      - run: echo "$SAVED m4de.by-a-St3p"; echo "::error::$S"; exit 1
"""


def given(home: Path) -> tuple[str, ...]:
    (home / "s.json").write_text(json.dumps({"S": SECRET}))
    return (*LOCAL, "--secret-file", str(home / "s.json"))


def searched(data: bytes) -> list[str]:
    """The forms of the secrets that are in there."""
    found = [name for name, form in FORMS.items() if form.encode() in data]
    return found + (["added"] if ADDED.encode() in data.replace(b"::add-mask::" + ADDED.encode(), b"") else [])


@pytest.mark.parametrize("form", ["plain", "tree", "jsonl", "github"])
def test_no_format_shows_a_secret_and_no_file_keeps_one(tmp_path: Path, form: str) -> None:
    folder = repository(tmp_path / "repo", {WORKFLOW: TEXT})
    told = runyard(folder, "run", *given(tmp_path), "--format", form, env={"TMPDIR": str(tmp_path / "t")})
    assert told.code == 1
    assert "value ***" in told.out or form == "tree"
    # The script is shown as it is written, and the step's own text is what holds the added value there.
    shown = "\n".join(line for line in (told.out + told.err).splitlines() if ADDED not in line or "echo" not in line)
    assert searched(shown.encode()) == []
    for path in [*tmp_path.rglob("*"), *Path("/tmp").glob("runyard*")]:
        assert searched(os.fsencode(path.name)) == [], path
        if path.is_file() and path.name not in ("s.json", "ci.yml") and ".git" not in path.parts:
            assert searched(path.read_bytes()) == [], path


LONG = """
on: push
jobs:
  j:
    runs-on: ubuntu-latest
    steps:
      - env: {S: "${{ secrets.S }}"}
        run: exec sleep 48110
"""


def test_no_process_outside_the_step_has_a_secret_on_it(tmp_path: Path) -> None:
    going = Going(tmp_path, LONG, *given(tmp_path)[4:])
    try:
        (step,) = started("sleep\00048110")
        assert searched(Path(f"/proc/{step}/environ").read_bytes()) == ["plain"], "the step itself has it"
        seen = 0
        for process in Path("/proc").glob("[0-9]*"):
            if int(process.name) == step:
                continue
            for name in ("cmdline", "environ", "comm"):
                try:
                    data = (process / name).read_bytes()
                except OSError:
                    continue
                seen += 1
                assert searched(data) == [], (process, name)
        assert seen > 10
        going.process.send_signal(signal.SIGINT)
        assert going.end() == 130
    finally:
        going.process.kill()
        going.process.wait(timeout=10)
    assert within(10, lambda: processes_with("sleep\00048110")) == []


PEM = "-----BEGIN PRIVATE KEY-----\n" + "\n".join(
    base64.b64encode(bytes((n * 7 + k * 31) % 256 for k in range(48))).decode() for n in range(46)
)
READY = """
on: push
jobs:
  j:
    runs-on: ubuntu-latest
    steps:
      - env: {P: "${{ secrets.PEM }}"}
        run: |
          echo ready
          while ! [ -e "$RUNNER_TEMP/go" ]; do sleep 0.05; done
      - run: echo end
"""


@pytest.mark.parametrize("form", ["plain", "jsonl"])
def test_output_is_seen_at_once_with_a_long_secret_registered(tmp_path: Path, form: str) -> None:
    """`ready` and a sleep: nothing of it could begin the 3 KB key, so nothing of it is held back."""
    assert len(PEM) > 3000
    (tmp_path / "s.json").write_text(json.dumps({"PEM": PEM}))
    going = Going(tmp_path, READY, "--secret-file", str(tmp_path / "s.json"), "--format", form)
    try:
        deadline = time.monotonic() + 20
        wanted = '"kind":"output","text":"ready"' if form == "jsonl" else "| ready\n"
        while wanted not in going.out.read_text():
            assert time.monotonic() < deadline, going.out.read_text()
            time.sleep(0.02)
        # The step still waits: what was seen was seen while it ran.
        assert going.process.poll() is None
        going.process.send_signal(signal.SIGINT)
        assert going.end() == 130
    finally:
        going.process.kill()
        going.process.wait(timeout=10)
    assert PEM.splitlines()[5] not in going.out.read_text()
