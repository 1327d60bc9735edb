"""A store double with the flows around it, and jobs executed by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from run.drive import context, run_plan
from runyard.dispatch.records import Job, Worker
from runyard.job import JobFinished
from runyard.server.control import (
    Ask,
    Beaten,
    Call,
    Created,
    HandOut,
    LockedError,
    NewRun,
    NewTrigger,
    Refused,
    ResultTaken,
    Rules,
    accept_events,
    claim,
    create_runs,
    heartbeat,
    sweep,
    take_result,
)
from runyard.server.store.memory import MemoryStore, MemoryTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Concatenate, ParamSpec, TypeVar

    from runyard.job import Conclusion
    from runyard.run import Decision
    from runyard.server.store.port import Transaction
    from runyard.server.store.rows import Run

    P = ParamSpec("P")
    R = TypeVar("R")

SECOND = 1_000_000_000
NOW = 1_900_000_000 * SECOND
REPOSITORY = "acme/app"
replace = msgspec.structs.replace


class Stage:
    """One server in memory. `do` is a transaction; the clock moves only when told."""

    def __init__(self, **rules: Any) -> None:
        self.now = NOW
        self.store = MemoryStore(lambda: self.now)
        self.decisions: list[tuple[str, Decision]] = []
        self.rules = Rules(hear=lambda run, decision: self.decisions.append((run, decision)), **rules)
        self._numbers = 0

    def do(self, fn: Callable[Concatenate[Transaction, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        tables = self.store.tables
        try:
            value = fn(MemoryTransaction(tables, self.now), *args, **kwargs)
        except BaseException:
            tables.abort()
            raise
        tables.commit()
        return value

    def wait(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)

    def sweep(self, after_s: float = 0) -> int:
        self.wait(after_s)
        return self.do(sweep, self.rules)

    def trigger(self, jobs: Mapping[str, Mapping[str, Any]], **more: Any) -> str:
        return self.created(jobs, **more).runs[0]

    def created(self, jobs: Mapping[str, Mapping[str, Any]], **more: Any) -> Created:
        self._numbers += 1
        repository = more.pop("repository", REPOSITORY)
        key = more.pop("key", f"push:{self._numbers}")
        new = {name: more.pop(name) for name in ("trust", "approval", "priority", "options") if name in more}
        wanted = NewRun(
            plan=run_plan(jobs, **more),
            context=context(github={"repository": repository}),
            ref="refs/heads/main",
            sha="1" * 40,
            **new,
        )
        trigger = NewTrigger(key=key, repository=repository, event="push")
        return self.do(create_runs, self.rules, trigger, [wanted])

    def ask(self, worker: str = "w1", **more: Any) -> Ask:
        self._numbers += 1
        kind = {name: more.pop(name) for name in ("kind",) if name in more}
        who = Worker(
            id=worker,
            name=worker.upper(),
            platform=more.pop("platform", "linux/amd64"),
            labels=more.pop("labels", frozenset({"ubuntu-latest", "self-hosted"})),
            slots=more.pop("slots", 99),
            free=more.pop("free", 99),
            **more,
        )
        return Ask(worker=who, claim=f"claim{self._numbers}", lease=f"lease{self._numbers}", **kind)

    def claim(self, worker: str = "w1", **more: Any) -> HandOut:
        given = self.do(claim, self.rules, self.ask(worker, **more))
        assert isinstance(given, HandOut), given
        return given

    def nothing(self, worker: str = "w1", **more: Any) -> None:
        given = self.do(claim, self.rules, self.ask(worker, **more))
        assert given is None, given

    def beat(self, given: HandOut, seen: int = 0) -> Beaten | Refused:
        return self.do(heartbeat, self.rules, call_of(given), seen)

    def begin(self, given: HandOut) -> None:
        taken = self.do(accept_events, self.rules, call_of(given), 0, [b"started"])
        assert not isinstance(taken, Refused), taken

    def finish(self, given: HandOut, conclusion: Conclusion = "success", **outputs: str) -> ResultTaken | Refused:
        finished = JobFinished(conclusion=conclusion, time_ns=self.now, outputs=outputs)
        return self.do(take_result, self.rules, call_of(given), msgspec.json.encode(finished), finished)

    def run_all(self, results: Mapping[str, Conclusion] | None = None) -> list[str]:
        """Hand out and finish until the queue is empty; the keys in their order."""
        keys = []
        while isinstance(given := self.do(claim, self.rules, self.ask()), HandOut):
            keys.append(given.job.key)
            self.begin(given)
            self.finish(given, (results or {}).get(given.job.key, "success"))
        return keys

    def run(self, run_id: str) -> Run:
        row = self.do(lambda tx: tx.run(run_id))
        assert row is not None
        return row

    def job(self, run_id: str, key: str) -> Job:
        job = self.do(lambda tx: tx.job_of_key(run_id, key))
        assert job is not None, key
        return job

    def phases(self, run_id: str) -> dict[str, str]:
        return {job.key: job.phase for job in self.do(lambda tx: tx.jobs_of_run(run_id))}

    def conclusions(self, run_id: str) -> dict[str, str | None]:
        return {job.key: job.conclusion for job in self.do(lambda tx: tx.jobs_of_run(run_id))}


class Box:
    """A vault whose seal is visible: what is stored must not hold the value."""

    def __init__(self, **secrets: str) -> None:
        self.given = secrets
        self.locked = False

    def is_locked(self, tx: Transaction, repository: str) -> bool:
        del tx, repository
        return self.locked

    def secrets(self, tx: Transaction, run: Run, environment: str | None) -> dict[str, str]:
        del tx, run, environment
        if self.locked:
            raise LockedError
        return self.given

    def seal(self, data: bytes) -> bytes:
        return bytes(each ^ 0x5A for each in data)

    def unseal(self, sealed: bytes) -> bytes:
        return self.seal(sealed)


def call_of(given: HandOut) -> Call:
    assert given.job.lease is not None
    return Call(given.job.id, given.attempt, given.lease, given.job.lease.worker)
