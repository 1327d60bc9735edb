"""What people and fate do in a history: cancel, approve, drain, lock, crash, cut, freeze, move clocks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from runyard.job import Pause
from runyard.server.control import (
    LockedError,
    approve,
    cancel_job,
    cancel_run,
    drain_worker,
    offer_job,
    order_job,
    rerun,
    resume_worker,
    unlocked,
    withdraw_job,
)
from runyard.server.store.port import StoreBusyError
from runyard.simulation import workflows

if TYPE_CHECKING:
    from collections.abc import Callable

    from runyard.server.store.port import Transaction
    from runyard.server.store.rows import Run
    from runyard.simulation.world import World

DEEDS: Final = (
    ("worker crash", 3),
    ("partition", 3),
    ("freeze", 1),
    ("server crash", 2),
    ("planned stop", 1),
    ("clock jump", 1),
    ("drain", 1),
    ("cancel run", 2),
    ("force run", 1),
    ("cancel job", 1),
    ("lock vault", 1),
    ("offer", 2),
    ("withdraw", 1),
    ("pause", 1),
    ("rerun", 1),
)


class SimVault:
    """A vault that can be locked; its seal is a rotation, so that a value in clear would be seen."""

    def __init__(self) -> None:
        self.locked: set[str] = set()

    def is_locked(self, tx: Transaction, repository: str) -> bool:
        """Whether somebody locked it."""
        del tx
        return repository in self.locked

    def secrets(self, tx: Transaction, run: Run, environment: str | None) -> dict[str, str]:
        """One secret."""
        del tx, environment
        if run.repository in self.locked:
            raise LockedError(run.repository)
        return {"TOKEN": f"secret of {run.repository}"}

    def seal(self, data: bytes) -> bytes:
        """See above."""
        return bytes(each ^ 0x5A for each in data)

    def unseal(self, sealed: bytes) -> bytes:
        """See above."""
        return self.seal(sealed)


class Chaos:
    """Triggers and deeds until the chaos is over; `help` is what kind people do afterwards."""

    def __init__(self, world: World) -> None:
        self.world = world
        random = world.random
        chosen = [deed for deed in DEEDS if random.random() < 0.5]
        self._deeds = [name for name, weight in chosen for _ in range(weight)]
        self._tasks: dict[asyncio.Task[Any], None] = {}

    async def happen(self) -> None:
        """Everything of the chaos, in the order of the seed."""
        world, random = self.world, self.world.random
        moments = [
            (random.random() * world.chaos_s * 0.6, number, "trigger") for number in range(random.choice((1, 2, 3, 4)))
        ]
        if self._deeds:
            moments += [
                (random.random() * world.chaos_s, 100 + number, random.choice(self._deeds))
                for number in range(random.choice((0, 3, 6, 12)))
            ]
        for at, number, name in sorted(moments):
            await asyncio.sleep(max(at - asyncio.get_running_loop().time(), 0))
            if name == "trigger":
                await world.trigger(number)
            else:
                world.count(name)
                await self._do(name)
        await asyncio.sleep(max(world.chaos_s - asyncio.get_running_loop().time(), 0))
        for task in list(self._tasks):
            task.cancel()

    async def _do(self, name: str) -> None:
        world, random = self.world, self.world.random
        worker, server = random.choice(world.workers), random.choice(world.servers)
        for_s = random.choice((1.0, 20.0, 60.0, 200.0)) * (0.5 + random.random())
        match name:
            case "worker crash":
                worker.crash()
                self._later(for_s, worker.start)
            case "partition":
                world.network.cut.add(worker.facts.id)
                self._later(for_s, lambda: world.network.cut.discard(worker.facts.id))
            case "freeze":
                worker.frozen_until = asyncio.get_running_loop().time() + for_s
            case "server crash":
                server.crash()
                self._later(min(for_s, 60.0), server.start)
            case "planned stop":
                for each in world.servers:
                    await each.stop(600.0)
                self._later(min(for_s * 3, 500.0), self._start_servers)
            case "clock jump":
                world.skew_s += random.choice((-600.0, -20.0, 20.0, 600.0))
            case "lock vault":
                run = self._any_run()
                if run is not None:
                    world.vault.locked.add(run.repository)
            case _:
                await self._ask(name, worker.facts.id)

    async def _ask(self, name: str, worker: str) -> None:
        world, random = self.world, self.world.random
        run = self._any_run()
        jobs = [job.id for job in world.store.tables.jobs.values() if job.phase != "done"]
        if name == "drain":
            await self._try(drain_worker, worker, "somebody")
        elif run is not None and name in ("cancel run", "force run"):
            await self._try(cancel_run, world.rules, run.id, "somebody", force=name == "force run")
        elif jobs and name == "cancel job":
            await self._try(cancel_job, world.rules, random.choice(jobs), "somebody", force=random.random() < 0.3)
        elif jobs and name == "offer":
            until = world.store.look(lambda tx: tx.now_ns()) + 60 * 10**9
            pool = random.choice((workflows.POOL, "nobody's"))
            for job in jobs:
                await self._try(offer_job, world.rules, job, pool, until)
        elif name == "withdraw":
            for job in jobs:
                await self._try(withdraw_job, world.rules, job, "the pool is ill")
        elif jobs and name == "pause":
            await self._try(order_job, world.rules, random.choice(jobs), Pause(), "somebody")
        elif run is not None and name == "rerun":
            await self._try(rerun, world.rules, run.id, "somebody", failed_only=random.random() < 0.5)

    async def help(self) -> None:
        """Approve, unlock, resume: so that nothing waits for a person."""
        world = self.world
        for run in list(world.store.tables.runs.values()):
            if "approval" in run.holds:
                await self._try(approve, world.rules, run.id, "somebody")
        for job in list(world.store.tables.jobs.values()):
            if "vault" in job.holds:
                await self._try(unlocked, world.rules, job.repository, "somebody")
        for worker in list(world.store.tables.workers.values()):
            if worker.drained:
                await self._try(resume_worker, worker.id, "somebody")

    async def _try(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        try:
            await self.world.store.transact(fn, *args, **kwargs)
        except StoreBusyError:
            return

    def _any_run(self) -> Run | None:
        runs: list[Run] = list(self.world.store.tables.runs.values())
        return self.world.random.choice(runs) if runs else None

    def _start_servers(self) -> None:
        for server in self.world.servers:
            server.start()

    def _later(self, seconds: float, deed: Callable[[], object]) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            deed()

        task = asyncio.ensure_future(wait())
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
