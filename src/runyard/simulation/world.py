"""One history: a fleet, servers over one store, people, and everything that goes wrong, until all is mended and ended.

For a while there is chaos. Then everybody is healthy again, and every run has to end: that nothing is lost is shown by
that, and by the invariants after each commit.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.dispatch.life import TABLE, case_of
from runyard.dispatch.records import Bounds, Settings, Worker
from runyard.server.control import NewRun, NewTrigger, Rules, create_runs
from runyard.server.store.memory import MemoryStore
from runyard.server.store.port import StoreBusyError
from runyard.simulation import loop as virtual
from runyard.simulation import workflows
from runyard.simulation.invariants import Watch
from runyard.simulation.network import Disk, Network, Weather
from runyard.simulation.people import Chaos, SimVault
from runyard.simulation.server import SimServer
from runyard.simulation.worker import SimWorker

if TYPE_CHECKING:
    from runyard.dispatch.happenings import Happening, Step
    from runyard.dispatch.records import Job
    from runyard.run import Decision
    from runyard.server.control import Call, Refused
    from runyard.simulation.worker import Held

START_NS: Final = 1_900_000_000_000_000_000
MENDED_S: Final = 6 * 3600.0
"""How long a mended world may take to end every run."""

REASONS_EVERY: Final = 7


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """How one history went. `problem` is None for a good one; `history` is a digest: equal seeds, equal digests."""

    seed: int
    problem: str | None
    history: str
    seconds: float
    commits: int
    runs: int
    jobs: int
    attempts: int
    transitions: tuple[str, ...]
    conclusions: dict[str, int]
    happened: dict[str, int]


class BrokenError(Exception):
    """An invariant doesn't hold."""


class World:
    """Everything of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.skew_s = 0.0
        self.is_careless = self.random.random() < 0.25
        self.chaos_s = self.random.choice((120.0, 400.0, 900.0))
        self.settings = Settings(cancel_s=self.random.choice((60.0, 300.0)), poison_after=self.random.choice((2, 3)))
        self.vault = SimVault()
        self.rules = Rules(
            settings=self.settings, bounds=self._bounds(), vault=self.vault, hear=self._decided, witness=self._witness
        )
        self.weather = Weather.of(self.random)
        self.network = Network(self.random, self.weather)
        self.store = MemoryStore(self._clock, Disk(self.random, self.weather))
        self.watch = Watch(self.store, self.rules)
        self.servers = [
            SimServer(f"server {number}", self.store, self.rules, self.random)
            for number in range(self.random.choice((1, 1, 2)))
        ]
        self.network.servers = self.servers
        self.workers = [SimWorker(self, facts) for facts in self._fleet()]
        self.executing: dict[tuple[str, str, int], Held] = {}
        self.transitions: set[str] = set()
        self.happened: Counter[str] = Counter()
        self._history = hashlib.sha256()
        self._steps: list[str] = []
        self._acknowledged: dict[str, int] = {}
        self._events: dict[tuple[str, int], int] = {}
        self._problem: str | None = None
        self._broken = asyncio.Event()
        self._seen_commits = 0

    def _bounds(self) -> Bounds:
        random = self.random
        return Bounds(
            server=random.choice((None, None, 2, 3)),
            repositories={name: random.choice((1, 2)) for name in workflows.REPOSITORIES if random.random() < 0.2},
        )

    def _fleet(self) -> list[Worker]:
        """Somebody for every label; some emulate."""
        random = self.random
        fleet = []
        for number in range(random.choice((2, 2, 3, 4))):
            is_arm = random.random() < 0.3
            labels = {"ubuntu-latest", "self-hosted"}
            if number == 0 or random.random() < 0.3:
                labels |= {"gpu", "arm64"}
            fleet.append(
                Worker(
                    id=f"w{number}",
                    name=f"worker-{number}",
                    platform="linux/arm64" if is_arm else "linux/amd64",
                    emulates=frozenset({"linux/amd64" if is_arm else "linux/arm64"})
                    if number == 0 or random.random() < 0.3
                    else frozenset(),
                    labels=frozenset(labels),
                    pools=frozenset({workflows.POOL}) if random.random() < 0.4 else frozenset(),
                    slots=random.choice((1, 1, 2, 3)),
                )
            )
        return fleet

    def _clock(self) -> int:
        return START_NS + round((asyncio.get_running_loop().time() + self.skew_s) * 1e9)

    # --- the history

    async def main(self) -> None:
        """Chaos, then health, then the end of every run. Raises BrokenError."""
        self._broken = asyncio.Event()
        self.store.listen(lambda topics: self._look())
        self._start()
        living = [asyncio.ensure_future(Chaos(self).happen()), asyncio.ensure_future(self._broken.wait())]
        try:
            await asyncio.wait(living, return_when=asyncio.FIRST_COMPLETED)
            if not self._broken.is_set():
                await living[0]
                self.mend()
                await self._ended()
            if self._problem is not None:
                raise BrokenError(self._problem)
        finally:
            for server in self.servers:
                server.crash()
            for worker in self.workers:
                worker.crash()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def mend(self) -> None:
        """Everybody is up and heard; clocks stand right."""
        good = Weather()
        for field in ("loss", "repeat", "slow", "conflict", "busy", "commit_s", "delay_s"):
            setattr(self.weather, field, getattr(good, field))
        self.network.cut.clear()
        self.skew_s = max(self.skew_s, 0.0)
        self.vault.locked.clear()
        for worker in self.workers:
            worker.frozen_until = 0.0
        self._start()

    def _start(self) -> None:
        for server in self.servers:
            server.start()
        for worker in self.workers:
            worker.start()

    async def _ended(self) -> None:
        clock = asyncio.get_running_loop()
        until = clock.time() + MENDED_S
        helper = Chaos(self)
        while not self._broken.is_set():
            await helper.help()
            going = [run.id for run in self.store.tables.runs.values() if run.phase != "done"]
            if not going:
                return
            if clock.time() > until:
                jobs = [
                    f"{job.run_id} {job.key} {job.phase} {sorted(job.holds)}"
                    for job in self.store.tables.jobs.values()
                    if job.phase != "done"
                ]
                raise BrokenError(f"runs that never end: {going}; jobs: {jobs}")
            await asyncio.sleep(30)

    async def trigger(self, number: int) -> None:
        """A push, told once or twice."""
        random = self.random
        repository = random.choice(workflows.REPOSITORIES)
        wanted = [
            NewRun(
                plan=workflows.plan(random, number),
                context=workflows.context(repository),
                ref="refs/heads/main",
                sha="1" * 40,
                approval=random.random() < 0.1,
                priority=random.choice((0, 0, 0, 1, -1)),
            )
            for _ in range(random.choice((1, 1, 2)))
        ]
        trigger = NewTrigger(key=f"push:{number}", repository=repository, event="push")
        told = [await self._told(trigger, wanted) for _ in range(random.choice((1, 2)))]
        rows = {row for row in told if row is not None}
        if len(rows) > 1:
            self._fail(f"one trigger led to {rows}")

    async def _told(self, trigger: NewTrigger, wanted: list[NewRun]) -> tuple[str, ...] | None:
        try:
            return (await self.store.transact(create_runs, self.rules, trigger, wanted)).runs
        except StoreBusyError:
            return None

    # --- what is watched

    def count(self, what: str) -> None:
        """Something happened that the report counts."""
        self.happened[what] += 1

    def begins(self, held: Held) -> None:
        """A worker executes an attempt; while clocks are right nobody else, by its own clock, executes that job."""
        job, worker, attempt = held.key
        now = asyncio.get_running_loop().time()
        others = [key for key, other in self.executing.items() if key[0] == job and other.until > now]
        if others and not (self.is_careless or self.happened["clock jump"] or self.happened["freeze"]):
            self._fail(f"{job} is executed by {others} and {worker}, attempt {attempt}")
        self.executing[held.key] = held

    def acknowledged(self, call: Call, conclusion: str) -> None:
        """A result was answered: it is there for good."""
        job = self.store.tables.jobs[call.job]
        if job.phase != "done" or job.attempt != call.attempt or job.conclusion != conclusion:
            self._fail(f"the result of {job.key}, attempt {call.attempt}, was accepted and isn't there: {job}")
        if self._acknowledged.setdefault(call.job, call.attempt) != call.attempt:
            self._fail(f"results of two attempts of {job.key} were accepted")

    def told(self, call: Call, events: int) -> None:
        """Events were answered: they are there."""
        row = self.store.tables.attempts[call.job, call.attempt]
        if row.events < events or len(self.store.look(lambda tx: tx.events(call.job, call.attempt))) < events:
            self._fail(f"events of {call} were accepted and aren't there")

    def refused(self, call: Call, name: str, refusal: Refused) -> None:
        """Somebody was told no: it is right only when the lease is another's, or over."""
        self.count(f"refused {refusal.code}")
        job = self.store.tables.jobs[call.job]
        if job.lease is not None and (job.attempt, job.lease.id) == (call.attempt, call.lease):
            self._fail(f"{name} of the holder of {job.key} was refused: {refusal.message}")

    def _decided(self, run_id: str, decision: Decision) -> None:
        self._steps.append(f"{run_id} {type(decision).__name__}")

    def _witness(self, happening: Happening, job: Job, step: Step) -> None:
        name = str(type(happening).__struct_config__.tag)
        if step.refused is None:
            self.transitions.add(f"{job.phase}/{name}/{case_of(job, happening, self.settings)}")
            said = (getattr(happening, "attempt", job.attempt), getattr(happening, "lease", None))
            if isinstance(said[1], str) and job.lease is not None and said != (job.attempt, job.lease.id):
                self._fail(f"{name} of {said} was taken, and {job.key} is {job.lease.worker}'s, attempt {job.attempt}")
        self._steps.append(f"{job.run_id} {job.key} {job.attempt} {job.phase} {name} {step.job.phase}")

    def _look(self) -> None:
        for each in self._steps:
            self._history.update(each.encode())
        self._steps.clear()
        problems = self.watch.problems()
        self._seen_commits += 1
        if self._seen_commits % REASONS_EVERY == 0:
            problems += self.watch.reasons()
        if problems:
            self._fail("; ".join(problems[:3]))

    def _fail(self, problem: str) -> None:
        if self._problem is None:
            at = asyncio.get_running_loop().time()
            self._problem = f"at {at:.3f} s: {problem}"
        self._broken.set()

    def report(self, problem: str | None, seconds: float) -> Report:
        """What happened."""
        tables = self.store.tables
        return Report(
            seed=self.seed,
            problem=problem,
            history=self._history.hexdigest(),
            seconds=round(seconds, 3),
            commits=self.store.commits,
            runs=len(tables.runs),
            jobs=len(tables.jobs),
            attempts=len(tables.attempts),
            transitions=tuple(sorted(self.transitions)),
            conclusions=dict(Counter(str(job.conclusion) for job in tables.jobs.values())),
            happened=dict(sorted(self.happened.items())),
        )


def every_transition() -> list[str]:
    """The table's keys, as a report names them."""
    return [f"{phase}/{happening.__struct_config__.tag}/{case}" for phase, happening, case, _ in TABLE]


def simulate(seed: int) -> Report:
    """One history. Raises nothing: what went wrong stands in the report."""
    made: list[World] = []
    seconds = 0.0

    async def main() -> None:
        nonlocal seconds
        world = World(seed)
        made.append(world)
        try:
            await world.main()
        finally:
            seconds = asyncio.get_running_loop().time()

    problem: str | None = None
    try:
        virtual.run(main)
    except (BrokenError, virtual.StuckError) as error:
        problem = str(error)
    except Exception as error:  # noqa: BLE001  # a history that raises is a finding, with its seed
        problem = f"{type(error).__name__}: {error}"
    return made[0].report(problem, seconds)
