"""A server of the simulation: the dial-out protocol's calls over the real flows, a sweep, and death at any moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from runyard.server.control import (
    Ask,
    accept_events,
    claim,
    hand_back,
    heartbeat,
    planned_stop,
    sweep,
    take_result,
    tick_runs,
)
from runyard.server.store.port import StoreBusyError, Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from random import Random

    from runyard.job import JobFinished
    from runyard.server.control import Call, Rules
    from runyard.server.store.memory import MemoryStore

SWEEP_S: Final = 10.0
TICK_S: Final = 3600.0


class SimServer:
    """One replica. Everything it knows besides the store is gone with `crash`."""

    def __init__(self, name: str, store: MemoryStore, rules: Rules, random: Random) -> None:
        self.name = name
        self.store = store
        self.rules = rules
        self.random = random
        self.is_up = False
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._woken: dict[asyncio.Event, None] = {}  # in the order of arrival: a set has none
        self._unlisten: Callable[[], None] | None = None

    def start(self) -> None:
        """Up, with nothing in memory. Safe to repeat."""
        if self.is_up:
            return
        self.is_up = True
        self._unlisten = self.store.listen(self._hear)
        self._spawn(self._sweeping())
        self._spawn(self._ticking())

    def crash(self) -> None:
        """Down at once: what it was doing may be done or not. Safe to repeat."""
        self.is_up = False
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        for task in list(self._tasks):
            task.cancel()
        self._tasks.clear()
        self._woken.clear()

    async def stop(self, seconds: float) -> None:
        """A planned stop: nobody is served any more, leases are extended, then it is down."""
        self.is_up = False
        try:
            await self.store.transact(planned_stop, self.rules, seconds)
        except StoreBusyError:
            pass
        finally:
            self.crash()

    # --- calls

    async def claim(self, ask: Ask) -> Any:
        """A long poll: tried at once, and whenever something opened."""
        return await self._served(self._poll(ask))

    async def _poll(self, ask: Ask) -> Any:
        loop = asyncio.get_running_loop()
        until = loop.time() + self.rules.settings.poll_s
        woken = asyncio.Event()
        self._woken[woken] = None
        try:
            while True:
                woken.clear()
                given = await self.store.transact(claim, self.rules, ask)
                if given is not None or loop.time() >= until:
                    return given
                try:
                    async with asyncio.timeout_at(until):
                        await woken.wait()
                except TimeoutError:
                    return None
        finally:
            self._woken.pop(woken, None)

    async def heartbeat(self, call: Call, seen: int) -> Any:
        """See the flow."""
        return await self._served(self.store.transact(heartbeat, self.rules, call, seen))

    async def events(self, call: Call, first: int, events: Sequence[bytes]) -> Any:
        """See the flow."""
        return await self._served(self.store.transact(accept_events, self.rules, call, first, events))

    async def result(self, call: Call, body: bytes, finished: JobFinished) -> Any:
        """See the flow."""
        return await self._served(self.store.transact(take_result, self.rules, call, body, finished))

    async def hand_back(self, call: Call, reason: str, counted: bool) -> Any:  # as it travels
        """See the flow."""
        return await self._served(self.store.transact(hand_back, self.rules, call, reason, counted=counted))

    async def _served(self, work: Coroutine[Any, Any, Any]) -> Any:
        """An answer, unless the server dies first."""
        task = self._spawn(work)
        try:
            await asyncio.wait({task})
        finally:
            if not task.done():
                task.cancel()
        if task.cancelled():
            raise ConnectionError(f"{self.name} died")
        return task.result()

    # --- by itself

    async def _sweeping(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S * (0.5 + self.random.random()))
            try:
                await self.store.transact(sweep, self.rules)
            except StoreBusyError:
                continue

    async def _ticking(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self.store.transact(tick_runs, self.rules)
            except StoreBusyError:
                continue

    def _hear(self, topics: frozenset[str]) -> None:
        if Topic.SLOT in topics or any(topic.startswith("class:") for topic in topics):
            for woken in list(self._woken):
                woken.set()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task
