"""A `runyard run` that goes on: its output in a file, so that nobody has to drain it, and what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from e2e.command_line import RUNYARD, environment, repository

WORKFLOW = ".github/workflows/ci.yml"
WAIT_S = 20


class Going:
    """A run under way in a folder below `home`, with a state folder of its own."""

    def __init__(self, home: Path, text: str, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.home = home
        self.folder = repository(home / "repo", {WORKFLOW: text})
        self.out = home / "out.jsonl"
        self.err = home / "err.txt"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [*RUNYARD, "run", "--sandbox", "bubblewrap", "--network", "none", "--format", "jsonl", *arguments],
                cwd=self.folder,
                env=environment(home, env),
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def events(self) -> list[dict[str, Any]]:
        """The whole lines so far."""
        return [json.loads(line) for line in self.out.read_text().split("\n")[:-1]]

    def until(self, text: str) -> None:
        """Wait until this stands in the output."""
        deadline = time.monotonic() + WAIT_S
        while text not in self.out.read_text():
            assert time.monotonic() < deadline, self.out.read_text() + self.err.read_text()
            assert self.process.poll() is None, self.out.read_text() + self.err.read_text()
            time.sleep(0.02)

    def end(self) -> int:
        """Wait for its end; the exit code."""
        try:
            code = self.process.wait(timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=10)
            raise AssertionError(f"it did not end: {self.out.read_text()}{self.err.read_text()}") from None
        assert "Traceback" not in self.err.read_text(), self.err.read_text()
        return code

    def processes(self) -> list[int]:
        """Every process that was started with its state folder, the job processes among them."""
        ours = os.fsencode(f"RUNYARD_STATE_DIR={self.home / 'state'}")
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if ours in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
            except OSError:
                continue
        return found

    def names(self) -> set[str]:
        """The names of its sandboxes that are open or were left, by their records."""
        return {path.name.partition(".")[0] for path in (self.home / "state").rglob("sandboxes/*")}


def left_of(names: set[str]) -> list[str]:
    """What of this machine still carries one of these names: mounts, control groups, folders."""
    left = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if any(n in line for n in names)]
    for root in ("/sys/fs/cgroup", "/tmp", "/run"):
        for folder, inside, files in os.walk(root):
            if folder.count("/") - root.count("/") >= 5:
                inside.clear()
            left += [f"{folder}/{each}" for each in (*inside, *files) if any(name in each for name in names)]
    return left


def processes_with(text: str) -> list[int]:
    """Processes of this machine whose command line holds `text`."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (each / "cmdline").read_bytes():
                found.append(int(each.name))
        except OSError:
            continue
    return found


def within(seconds: float, left: Any) -> Any:
    """Ask until nothing is left, or time is up; the last answer."""
    deadline = time.monotonic() + seconds
    while (answer := left()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return answer


def started(text: str, count: int = 1) -> list[int]:
    """Wait for so many processes whose command line holds `text`."""
    deadline = time.monotonic() + WAIT_S
    while len(found := processes_with(text)) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} processes run {text!r}"
        time.sleep(0.02)
    return found
