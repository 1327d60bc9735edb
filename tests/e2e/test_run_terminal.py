"""What needs a terminal: a shell at a failing step, a retry, and a sandbox that is kept."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from e2e.command_line import RUNYARD, environment, repository

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORKFLOW = """
on: push
jobs:
  j:
    runs-on: ubuntu-latest
    env: {MARK: in-the-step}
    steps:
      - {name: Fails, run: 'test -e fixed && echo "it is fixed"'}
      - {run: echo after}
"""


PROMPT = "# "
"""Jobs run as uid 0 of their sandbox, whoever the invoking user is (D12)."""


class Terminal:
    """A command with a pseudo terminal: what it shows, and keys for it."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.screen = ""
        self._here, there = pty.openpty()
        self.process = subprocess.Popen(
            [*RUNYARD, "run", "--sandbox", "bubblewrap", "--network", "none", "--format", "plain", *arguments],
            cwd=folder,
            env=environment(folder.parent, {"TERM": "dumb"}),
            stdin=there,
            stdout=there,
            stderr=there,
            start_new_session=True,
        )
        os.close(there)

    def until(self, text: str, *, after: int = 0) -> int:
        """Wait until the screen has the text; returns where it ends."""
        deadline = time.monotonic() + 20
        while text not in self.screen[after:]:
            assert time.monotonic() < deadline, self.screen
            ready, _, _ = select.select([self._here], [], [], 0.2)
            if ready:
                try:
                    self.screen += os.read(self._here, 65536).decode(errors="replace")
                except OSError:
                    assert text in self.screen[after:], self.screen
        return self.screen.index(text, after) + len(text)

    def type(self, text: str) -> None:
        os.write(self._here, text.encode())

    def end(self) -> int:
        deadline = time.monotonic() + 20
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.screen
            ready, _, _ = select.select([self._here], [], [], 0.1)
            if ready:
                try:
                    self.screen += os.read(self._here, 65536).decode(errors="replace")
                except OSError:
                    time.sleep(0.02)
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(timeout=10)
        os.close(self._here)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return repository(tmp_path / "repo", {".github/workflows/ci.yml": WORKFLOW})


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for each in opened:
        each.close()


def opened(terminals: list[Terminal], folder: Path, *arguments: str) -> Terminal:
    terminals.append(Terminal(folder, *arguments))
    return terminals[-1]


@pytest.mark.timeout(100)
def test_a_paused_step_has_a_shell_and_can_be_tried_again(folder: Path, terminals: list[Terminal]) -> None:
    terminal = opened(terminals, folder, "--pause-on", "failure")
    at = terminal.until("[g]ive up")
    assert "paused at step 1, Fails" in terminal.screen
    terminal.type("s\n")
    at = terminal.until(PROMPT, after=at)
    terminal.type('echo "<$MARK>"; touch fixed; exit\n')
    at = terminal.until("<in-the-step>", after=at)
    at = terminal.until("[g]ive up", after=at)
    terminal.type("r\n")
    terminal.until("it is fixed", after=at)
    assert terminal.end() == 0
    assert "after" in terminal.screen


@pytest.mark.timeout(100)
@pytest.mark.parametrize("key", ["c", "g"])
def test_a_paused_step_can_stay_failed(folder: Path, terminals: list[Terminal], key: str) -> None:
    terminal = opened(terminals, folder, "--pause-on", "failure")
    terminal.until("[g]ive up")
    terminal.type(f"{key}\n")
    assert terminal.end() == 1


@pytest.mark.timeout(100)
def test_a_kept_sandbox_is_entered_with_the_command_that_is_printed(folder: Path, terminals: list[Terminal]) -> None:
    terminal = opened(terminals, folder, "--keep")
    at = terminal.until("enter it with: ")
    terminal.until("Ctrl+C lets them go", after=at)
    command = terminal.screen[at:].splitlines()[0].strip()
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        input=b"echo inside-$((40 + 2)); exit\n",
        capture_output=True,
        env=environment(folder.parent),
        timeout=20,
        check=False,
    )
    assert b"inside-42" in done.stdout, (command, done)
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 1, "the run had ended before; its own result counts"
    assert not list((folder.parent / "state").rglob("sandboxes/*"))


NOBODY = """
on: push
jobs:
  j:
    runs-on: ubuntu-latest
    steps:
      - run: read x || echo "it is eof"
      - run: '[ -t 0 ] || [ -t 1 ] || echo "no terminal"'
"""


@pytest.mark.timeout(60)
def test_F58e_a_step_that_reads_has_end_of_file_where_nobody_types(tmp_path: Path, terminals: list[Terminal]) -> None:
    terminal = opened(terminals, repository(tmp_path / "repo", {".github/workflows/ci.yml": NOBODY}))
    terminal.until("| it is eof")
    terminal.until("| no terminal")
    assert terminal.end() == 0
    hidden, shown = terminal.screen.rfind("\x1b[?25l"), terminal.screen.rfind("\x1b[?25h")
    assert hidden <= shown, "the cursor is visible at the end"
