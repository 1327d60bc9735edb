"""A worker of the simulation: claims, confirms, beats, reports, as the protocol asks; its jobs only pass time.

It holds to the rules that a real one holds to: nothing is executed before the first sign was answered, a lease is over
when its own clock says so (counted from before the request went out), and after a refusal nothing more is done. In some
histories workers are careless about their clock: the server alone has to refuse them then.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from runyard.job import Cancel, JobFinished
from runyard.server.control import Ask, Beaten, Call, EventsTaken, HandOut, Refused, ResultTaken
from runyard.server.store.port import StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from runyard.dispatch.records import Worker
    from runyard.job import Conclusion
    from runyard.simulation.world import World

CALL_S: Final = 15.0
FAILURES: Final = (TimeoutError, ConnectionError, StoreBusyError)


class Script(NamedTuple):
    """What a job does: how long it takes, how it ends, how it answers a cancellation, whether it is given back.

    `declined`: before anything of it ran; `silent`: it tells nothing but its result.
    """

    seconds: float
    conclusion: Conclusion
    stubborn: bool
    given_back: bool
    declined: bool
    silent: bool


def script_of(seed: int, job: str, attempt: int) -> Script:
    """The same for the same seed, job and attempt."""
    random = Random(f"{seed}/{job}/{attempt}")
    return Script(
        seconds=random.choice((0.1, 5.0, 40.0, 100.0, 300.0)) * random.random() * 2,
        conclusion="success" if random.random() < 0.85 else "failure",
        stubborn=random.random() < 0.2,
        given_back=random.random() < 0.04,
        declined=random.random() < 0.03,
        silent=random.random() < 0.03,
    )


class LeaseLostError(Exception):
    """The job isn't ours any more."""


class SimWorker:
    """One worker process after the other, under one name."""

    def __init__(self, world: World, facts: Worker) -> None:
        self.world = world
        self.facts = facts
        self.frozen_until = 0.0
        self.holds = 0
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._numbers = 0
        self._freed = asyncio.Event()

    @property
    def is_up(self) -> bool:
        """Whether there is a process."""
        return bool(self._tasks)

    def start(self) -> None:
        """A new process. Safe to repeat."""
        if not self._tasks:
            self.holds = 0
            self._spawn(self._claiming())

    def crash(self) -> None:
        """It is gone, with everything it executed."""
        for task in list(self._tasks):
            task.cancel()
        self._tasks.clear()
        self.world.executing = {key: held for key, held in self.world.executing.items() if key[1] != self.facts.id}

    # --- claims

    async def _claiming(self) -> None:
        random = self.world.random
        claim_id = self._fresh()
        while True:
            if self.holds >= self.facts.slots:
                self._freed.clear()
                await self._freed.wait()
                continue
            facts = msgspec.structs.replace(self.facts, free=self.facts.slots - self.holds)
            ask = Ask(worker=facts, claim=claim_id, lease=f"l{random.getrandbits(48):x}")
            sent = self._time()
            try:
                given = await self._call("claim", ask, timeout_s=self.world.settings.poll_s + CALL_S)
            except FAILURES:
                await asyncio.sleep(0.5 + random.random() * 3)
                continue
            claim_id = self._fresh()
            if isinstance(given, HandOut):
                self.holds += 1
                self._spawn(self._job(given, sent + given.expires_in_s))
            elif given is None or isinstance(given, Refused):
                await asyncio.sleep(0.1 + random.random())

    def _fresh(self) -> str:
        self._numbers += 1
        return f"{self.facts.id}.{self._numbers}.{self.world.random.getrandbits(32):x}"

    # --- one job

    async def _job(self, given: HandOut, until: float) -> None:
        held = Held(self, given, until)
        try:
            await held.confirm()
            await held.execute()
        except LeaseLostError:
            self.world.count("lease lost")
        finally:
            held.over()
            self.holds -= 1
            self._freed.set()

    async def _call(self, name: str, *args: Any, timeout_s: float = CALL_S) -> Any:
        await self.thaw()
        answer = await self.world.network.call(self.facts.id, name, *args, timeout_s=timeout_s)
        await self.thaw()
        return answer

    async def thaw(self) -> None:
        """A frozen machine does nothing; it finds out how late it is when it wakes."""
        late = self.frozen_until - self._time()
        if late > 0:
            await asyncio.sleep(late)
            await self.thaw()

    def _time(self) -> float:
        return asyncio.get_running_loop().time()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task


class Held:
    """A job in a worker's hands."""

    def __init__(self, worker: SimWorker, given: HandOut, until: float) -> None:
        self.worker = worker
        self.world = worker.world
        self.given = given
        self.call = Call(given.job.id, given.attempt, given.lease, worker.facts.id)
        self.key = (given.job.id, worker.facts.id, given.attempt)
        self.until = until
        self.seen = 0
        self.events = 0
        self.cancelled: Cancel | None = None
        self.script = script_of(self.world.seed, given.job.id, given.attempt)

    async def confirm(self) -> None:
        """The first sign, answered."""
        await self.beat()

    async def execute(self) -> None:
        """Pass the job's time, with heartbeats between, and report."""
        loop = asyncio.get_running_loop()
        self.world.begins(self)
        if self.script.declined:
            self.over()
            await self.insist("hand_back", "the sandbox can't be had", self.script.stubborn)
            return
        if not self.script.silent:
            await self.tell("started")
        left, next_beat = self.script.seconds, loop.time() + self.world.settings.heartbeat_s
        if self.script.given_back:
            self.over()
            await self.insist("hand_back", "the disk is full", left < 10)
            return
        while left > 0:
            if self.cancelled is not None and (self.cancelled.force or not self.script.stubborn):
                break
            pause = min(left, max(next_beat - loop.time(), 0.0))
            await asyncio.sleep(pause)
            await self.worker.thaw()
            left -= pause
            self.check()
            if loop.time() >= next_beat:
                await self.beat()
                next_beat = loop.time() + self.world.settings.heartbeat_s
        self.over()
        if not self.script.silent:
            await self.tell("step")
        conclusion = "cancelled" if left > 0 else self.script.conclusion
        finished = JobFinished(conclusion, time_ns=0, outputs={"by": self.given.job.key})
        await self.insist("result", msgspec.json.encode(finished), finished)
        self.world.acknowledged(self.call, conclusion)

    def over(self) -> None:
        """Nothing of it runs here any more."""
        self.world.executing.pop(self.key, None)

    async def beat(self) -> None:
        """A heartbeat, answered; orders are carried out."""
        answer = await self.insist("heartbeat", self.seen)
        for each in answer.orders:
            if each.number > self.seen:
                self.seen = each.number
                if isinstance(each.order, Cancel):
                    self.cancelled = each.order

    async def tell(self, what: str) -> None:
        """One event more."""
        await self.insist("events", self.events, [what.encode()])
        self.events += 1
        self.world.told(self.call, self.events)

    async def insist(self, name: str, *args: Any) -> Any:
        """Ask until there is an answer or the lease is over."""
        loop = asyncio.get_running_loop()
        while True:
            self.check()
            sent = loop.time()
            try:
                answer = await self.worker._call(name, self.call, *args)  # noqa: SLF001  # one object in two parts
            except FAILURES:
                await asyncio.sleep(0.5 + self.world.random.random() * 4)
                continue
            if isinstance(answer, Refused):
                self.world.refused(self.call, name, answer)
                raise LeaseLostError
            if isinstance(answer, (Beaten, EventsTaken)):
                self.until = sent + (answer.expires_in_s if isinstance(answer, Beaten) else self._lease_s())
            assert answer is None or isinstance(answer, (Beaten, EventsTaken, ResultTaken))
            return answer

    def check(self) -> None:
        """Whether the lease is still ours, by this machine's own clock."""
        if asyncio.get_running_loop().time() >= self.until and not self.world.is_careless:
            raise LeaseLostError

    def _lease_s(self) -> float:
        return self.world.settings.dialout_lease_s
