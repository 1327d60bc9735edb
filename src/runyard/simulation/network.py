"""What lies between: a network that delays, loses, repeats, reorders and splits; a disk that is slow or busy."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runyard.server.store.port import StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from random import Random

    from runyard.simulation.server import SimServer


@dataclass
class Weather:
    """How bad it is: chances are of one message or transaction, delays in seconds."""

    loss: float = 0.0
    repeat: float = 0.0
    delay_s: float = 0.01
    slow: float = 0.0
    slow_s: float = 0.0
    conflict: float = 0.0
    busy: float = 0.0
    commit_s: float = 0.001

    @classmethod
    def of(cls, random: Random) -> Weather:
        """One seed's weather: some have none of it."""
        bad = random.choice((0.0, 0.3, 1.0, 2.0))
        return cls(
            loss=random.random() * 0.08 * bad,
            repeat=random.random() * 0.08 * bad,
            delay_s=random.choice((0.005, 0.05, 0.5)),
            slow=random.random() * 0.05 * bad,
            slow_s=random.choice((5.0, 20.0, 60.0)),
            conflict=random.random() * 0.05 * bad,
            busy=random.random() * 0.03 * bad,
            commit_s=random.choice((0.0005, 0.01, 0.2)),
        )


@dataclass
class Network:
    """Calls of workers to whichever server is up. `cut` are the workers behind a partition."""

    random: Random
    weather: Weather
    servers: list[SimServer] = field(default_factory=list)
    cut: set[str] = field(default_factory=set)
    tasks: dict[asyncio.Task[Any], None] = field(default_factory=dict)

    async def call(self, who: str, name: str, *args: Any, timeout_s: float) -> Any:
        """One request and its answer. TimeoutError, ConnectionError, StoreBusyError: it may have happened or not.

        What is on its way arrives even when nobody waits for it any more; a poll ends with its connection.
        """
        work = self._exchange(who, name, args)
        async with asyncio.timeout(timeout_s):
            return await (work if name == "claim" else asyncio.shield(self._later(work)))

    async def _exchange(self, who: str, name: str, args: tuple[Any, ...]) -> Any:
        await self._travel(who)
        if self.random.random() < self.weather.repeat:
            self._later(self._repeat(who, name, args))
        answer = await self._deliver(name, args)
        await self._travel(who)
        return answer

    async def _repeat(self, who: str, name: str, args: tuple[Any, ...]) -> None:
        await self._travel(who)
        await self._deliver(name, args)

    async def _deliver(self, name: str, args: tuple[Any, ...]) -> Any:
        up = [server for server in self.servers if server.is_up]
        if not up:
            raise ConnectionError("no server is up")
        handler: Callable[..., Awaitable[Any]] = getattr(self.random.choice(up), name)
        return await handler(*args)

    async def _travel(self, who: str) -> None:
        delay = self.random.expovariate(1 / self.weather.delay_s)
        if self.random.random() < self.weather.slow:
            delay += self.random.random() * self.weather.slow_s
        await asyncio.sleep(delay)
        if who in self.cut or self.random.random() < self.weather.loss:
            await asyncio.get_running_loop().create_future()

    def _later(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self.tasks[task] = None
        task.add_done_callback(self._is_over)
        return task

    def _is_over(self, task: asyncio.Task[Any]) -> None:
        """Whether anybody waited or not: what it raised was heard."""
        self.tasks.pop(task, None)
        if not task.cancelled():
            task.exception()


@dataclass
class Disk:
    """The faults of a MemoryStore."""

    random: Random
    weather: Weather

    async def before(self) -> None:
        """Wait for the turn."""
        await asyncio.sleep(self.random.expovariate(1 / self.weather.commit_s))
        if self.random.random() < self.weather.busy:
            raise StoreBusyError("the disk is busy")

    def conflicts(self) -> bool:
        """Whether this try has to begin anew."""
        return self.random.random() < self.weather.conflict

    async def after(self) -> None:
        """The commit is durable; its answer takes its time, and a server may die in it."""
        await asyncio.sleep(self.random.expovariate(1 / self.weather.commit_s))
