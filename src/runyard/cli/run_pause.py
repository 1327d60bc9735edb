"""`--pause-on failure`: somebody at a terminal, a step that failed, a shell in its exact place, and a choice.

One step is asked about at a time; keys go to the shell unread, and the terminal is put back whatever happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import termios
import tty
from typing import TYPE_CHECKING, Final

from runyard.engine.wire import TerminalEnded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runyard.engine.launch import PausedStep
    from runyard.engine.wire import PauseAction
    from runyard.report.run_report import RunReport

_CHOICES: Final[dict[str, PauseAction]] = {"r": "retry", "c": "go_on", "g": "give_up"}
_MENU: Final = "[s]hell in its place, [r]etry, [c]ontinue as failed, [g]ive up"


class Pausing:
    """Asks at the terminal; `ask` is what the launcher calls."""

    def __init__(self, report: RunReport) -> None:
        self._report = report
        self._turn = asyncio.Lock()

    async def ask(self, step: PausedStep) -> PauseAction:
        """The choice for one failed step. The end of input counts as going on."""
        async with self._turn:
            self._report.note(f"paused at step {step.step}, {step.name}: {step.reason or 'it failed'}")
            while True:
                key = await self._key(f"{_MENU}: ")
                if key == "s":
                    await self._shell(step)
                elif key in _CHOICES:
                    return _CHOICES[key]
                elif not key:
                    return "go_on"

    async def _key(self, prompt: str) -> str:
        sys.stderr.write(prompt)
        sys.stderr.flush()
        line = await _read(sys.stdin.fileno())
        return line.decode(errors="replace").strip()[:1].lower() or ("?" if line else "")

    async def _shell(self, step: PausedStep) -> None:
        size = shutil.get_terminal_size()
        await step.open_terminal(size.lines, size.columns)
        with _raw(sys.stdin.fileno()):
            keys = asyncio.create_task(self._send_keys(step))
            try:
                while not isinstance(told := await step.read_terminal(), TerminalEnded):
                    os.write(sys.stderr.fileno(), told.data)
            finally:
                keys.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await keys
        if told.problem:
            self._report.note(f"no shell: {told.problem}")

    async def _send_keys(self, step: PausedStep) -> None:
        while data := await _read(sys.stdin.fileno()):
            await step.write_terminal(data)


async def _read(descriptor: int) -> bytes:
    """What is typed next; cancelled without losing a key, since nothing is read before there is something."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def readable() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(descriptor, readable)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""


@contextlib.contextmanager
def _raw(descriptor: int) -> Iterator[None]:
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
