"""How long a job is ours, by this machine's own clock, and how long to wait before a call is tried again.

The clock is the one that goes on while the machine sleeps, so a worker that was frozen or suspended beyond its lease
knows it the moment it wakes. A lease counts from before the request that extended it went out: never longer than the
server's.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Final, TypeVar

from runyard.source.dialout import AwayError, LeaseOverError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

FIRST_S: Final = 0.2
MOST_S: Final = 10.0
LOOK_S: Final = 1.0
"""How often the clock is looked at: a timer of the loop stands still while the machine sleeps."""

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

T = TypeVar("T")


def boot_s() -> float:
    """Seconds since the machine started, sleep included."""
    return time.clock_gettime(_CLOCK)


class Backoff:
    """Waits that double up to a bound, each a random part of it (full jitter). `reset` after a good call."""

    def __init__(
        self, *, first_s: float = FIRST_S, most_s: float = MOST_S, draw: Callable[[], float] = random.random
    ) -> None:
        self._first, self._most, self._draw = first_s, most_s, draw
        self.tries = 0

    def next_s(self, at_least_s: float = 0.0) -> float:
        """The wait before the next try, in seconds."""
        bound = min(self._most, self._first * 2.0 ** min(self.tries, 30))
        self.tries += 1
        return max(bound * self._draw(), at_least_s, self._first / 10)

    def reset(self) -> None:
        """The next failure is a first one again."""
        self.tries = 0


class Lease:
    """The right to execute one attempt. `check` before anything that others could see."""

    def __init__(self, until_s: float, *, clock: Callable[[], float] = boot_s) -> None:
        self.until_s = until_s
        self.clock = clock
        self.ended = asyncio.Event()
        self.reason = ""

    @property
    def left_s(self) -> float:
        """Seconds to its end; below 0 when it is over."""
        return self.until_s - self.clock()

    def extend(self, sent_s: float, good_for_s: float) -> None:
        """A request sent at `sent_s` was answered with this many seconds. Never shortens; what is lost stays so."""
        if not self.ended.is_set():
            self.until_s = max(self.until_s, sent_s + good_for_s)

    def end(self, reason: str) -> None:
        """It is over. The first reason stays."""
        if not self.ended.is_set():
            self.reason = reason
            self.ended.set()

    def check(self) -> None:
        """Raises LeaseOverError when it is over."""
        if not self.ended.is_set() and self.left_s <= 0:
            self.end("the server could not be reached for longer than the lease")
        if self.ended.is_set():
            raise LeaseOverError(self.reason, code="lease.over")

    async def watch(self) -> None:
        """Until it is over, by the clock or by word of the server."""
        while not self.ended.is_set():
            if self.left_s <= 0:
                self.end("the server could not be reached for longer than the lease")
                return
            try:
                async with asyncio.timeout(min(max(self.left_s, 0.001), LOOK_S)):
                    await self.ended.wait()
            except TimeoutError:
                continue

    async def insist(
        self,
        call: Callable[[], Awaitable[T]],
        *,
        backoff: Backoff | None = None,
        away: Callable[[AwayError], None] | None = None,
    ) -> T:
        """Call until there is an answer, or the lease is over (LeaseOverError). Other errors go through."""
        backoff = backoff or Backoff()
        while True:
            self.check()
            try:
                answer = await call()
            except AwayError as error:
                if away is not None:
                    away(error)
                await self._sleep(backoff.next_s(error.after_s))
            except LeaseOverError as error:
                self.end(error.message)
                raise
            else:
                backoff.reset()
                return answer

    async def _sleep(self, seconds: float) -> None:
        """At most until the lease is over."""
        try:
            async with asyncio.timeout(min(seconds, max(self.left_s, 0.001))):
                await self.ended.wait()
        except TimeoutError:
            return
