"""An event loop whose clock is a number: when everybody waits, time jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

HORIZON_S: Final = 30 * 24 * 3600.0
"""No history is longer; a timer beyond it means that somebody waits for ever."""


class StuckError(Exception):
    """Everybody waits, and nothing is due."""


class _Jump(selectors.SelectSelector):
    """A selector that moves the clock instead of waiting."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or self.loop.now + timeout > HORIZON_S:
            raise StuckError("everybody waits and nothing is due")
        self.loop.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time begins at 0. No threads, no processes, no sockets: they don't know this clock."""

    def __init__(self) -> None:
        self.now = 0.0
        jump = _Jump()
        super().__init__(jump)
        jump.loop = self

    def time(self) -> float:
        """Virtual seconds."""
        return self.now


def run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """`main` to its end on a loop of its own; what it left running is cancelled."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())
