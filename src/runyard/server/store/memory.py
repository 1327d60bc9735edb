"""The store double: everything in memory, the same answers as a database, and faults on demand.

It passes the suite that every database passes. It forgets all with its object; simulation keeps the object while it
lets servers die, which is what a disk is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Concatenate, Protocol

import msgspec

from runyard.dispatch.records import LIVE, Counts
from runyard.run import Group
from runyard.server.store.memory_tables import Tables
from runyard.server.store.port import TRIES, ConflictError, P, R, StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from runyard.dispatch.records import Hold, Job, JobClass, Phase, Stride, Worker
    from runyard.server.store.port import Transaction
    from runyard.server.store.rows import (
        Attempt,
        Audit,
        EventRow,
        JobBody,
        MaskRow,
        OrderRow,
        Project,
        ResultRow,
        Run,
        SecretRow,
        Token,
        TokenKind,
        Trigger,
        VaultRow,
    )


class Faults(Protocol):
    """What a store may do to its callers; each is asked once a transaction."""

    async def before(self) -> None:
        """Wait for the turn. May raise StoreBusyError: nothing happened."""

    def conflicts(self) -> bool:
        """Whether this try meets a conflict: it is rolled back and begun anew."""

    async def after(self) -> None:
        """The commit is durable, its answer is on the way. May wait."""


class MemoryStore:
    """A Store. `clock` gives int64 nanoseconds UTC; it may jump, as clocks do."""

    def __init__(self, clock: Callable[[], int], faults: Faults | None = None) -> None:
        self.tables = Tables()
        self.faults = faults
        self.commits = 0
        self._clock = clock
        self._hearers: dict[int, Callable[[frozenset[str]], None]] = {}

    async def transact(self, fn: Callable[Concatenate[Transaction, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """See `port.Store`."""
        if self.faults is not None:
            await self.faults.before()
        value, topics = self._once(fn, *args, **kwargs)
        if topics:
            for hear in list(self._hearers.values()):
                hear(topics)
        if self.faults is not None:
            await self.faults.after()
        return value

    def _once(
        self, fn: Callable[Concatenate[Transaction, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[R, frozenset[str]]:
        for _ in range(TRIES):
            transaction = MemoryTransaction(self.tables, self._clock())
            try:
                value = fn(transaction, *args, **kwargs)
                if self.faults is not None and self.faults.conflicts():
                    raise ConflictError
            except ConflictError:
                self.tables.abort()
                continue
            except BaseException:
                self.tables.abort()
                raise
            self.tables.commit()
            self.commits += 1
            return value, frozenset(transaction.topics)
        raise StoreBusyError(f"{TRIES} transactions met a conflict")

    def look(self, fn: Callable[Concatenate[Transaction, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `fn` at once, without faults, and take back what it wrote: for tests and invariants."""
        try:
            return fn(MemoryTransaction(self.tables, self._clock()), *args, **kwargs)
        finally:
            self.tables.abort()

    def listen(self, hear: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """See `port.Store`."""
        key = max(self._hearers, default=0) + 1
        self._hearers[key] = hear

        def end() -> None:
            self._hearers.pop(key, None)

        return end

    async def close(self) -> None:
        """See `port.Store`."""
        self._hearers.clear()


class MemoryTransaction:
    """All statements of `port.Transaction`, over dictionaries. What each promises stands in the port."""

    # ruff: noqa: D102

    def __init__(self, tables: Tables, now_ns: int) -> None:
        self._tables = tables
        self._now = now_ns
        self.topics: set[str] = set()

    def wake(self, topic: str) -> None:
        self.topics.add(topic)

    # --- runs

    def now_ns(self) -> int:
        return self._now

    def next_number(self, counter: str) -> int:
        number = int(self._tables.counters.get(counter, 0)) + 1
        self._tables.put(self._tables.counters, counter, number)
        return number

    def put_blob(self, digest: str, data: bytes) -> None:
        if digest not in self._tables.blobs:
            self._tables.put(self._tables.blobs, digest, data)

    def blob(self, digest: str) -> bytes:
        return bytes(self._tables.blobs[digest])

    def save_project(self, project: Project) -> None:
        self._tables.put(self._tables.projects, project.repository, project)

    def project(self, repository: str) -> Project | None:
        return self._tables.projects.get(repository)

    def projects(self) -> list[Project]:
        return sorted(self._tables.projects.values(), key=lambda row: str(row.repository))

    def delete_project(self, repository: str) -> bool:
        return self._tables.drop(self._tables.projects, repository)

    def insert_trigger(self, trigger: Trigger) -> bool:
        if trigger.key in self._tables.triggers:
            return False
        self._tables.put(self._tables.triggers, trigger.key, trigger)
        return True

    def trigger(self, key: str) -> Trigger | None:
        return self._tables.triggers.get(key)

    def set_trigger_runs(self, key: str, runs: tuple[str, ...]) -> None:
        row = self._tables.triggers[key]
        self._tables.put(self._tables.triggers, key, msgspec.structs.replace(row, runs=runs))

    def insert_run(self, run: Run) -> None:
        self._new(self._tables.runs, run.id, run)

    def run(self, run_id: str) -> Run | None:
        return self._tables.runs.get(run_id)

    def newest_run(self, number: int) -> Run | None:
        rows: list[Run] = self._tables.scan(self._tables.runs, lambda row: row.number == number)
        return max(rows, key=lambda row: row.attempt, default=None)

    def save_run(self, before: Run, after: Run) -> Run:
        now: Run | None = self._tables.runs.get(before.id)
        if now is None or now.version != before.version:
            raise ConflictError
        saved = msgspec.structs.replace(after, version=before.version + 1)
        self._tables.put(self._tables.runs, before.id, saved)
        return saved

    def runs(self, repository: str | None = None, before: int | None = None, limit: int = 50) -> list[Run]:
        rows: list[Run] = self._tables.scan(
            self._tables.runs,
            lambda row: (
                (repository is None or row.repository == repository) and (before is None or row.number < before)
            ),
        )
        rows.sort(key=lambda row: (row.number, row.attempt), reverse=True)
        return [msgspec.structs.replace(row, state=b"") for row in rows[:limit]]

    def unfinished_runs(self, after: int = 0, limit: int = 100) -> list[Run]:
        rows: list[Run] = self._tables.scan(self._tables.runs, lambda row: row.phase != "done" and row.number > after)
        return sorted(rows, key=lambda row: (row.number, row.attempt))[:limit]

    def group(self, repository: str, name: str) -> Group:
        return self._tables.groups.get((repository, name)) or Group()

    def save_group(self, repository: str, name: str, before: Group, after: Group) -> None:
        if self.group(repository, name) != before:
            raise ConflictError
        if after.is_free:
            self._tables.drop(self._tables.groups, (repository, name))
        else:
            self._tables.put(self._tables.groups, (repository, name), after)

    # --- jobs

    def insert_job(self, job: Job, body: JobBody) -> None:
        self._new(self._tables.jobs, job.id, job)
        self._new(self._tables.bodies, job.id, body)
        if job.class_id not in self._tables.classes:
            self._tables.put(self._tables.classes, job.class_id, job.of)

    def job(self, job_id: str) -> Job | None:
        return self._tables.jobs.get(job_id)

    def save_job(self, before: Job, after: Job) -> None:
        now: Job | None = self._tables.jobs.get(before.id)
        if now is None or _fence(now) != _fence(before):
            raise ConflictError
        self._tables.put(self._tables.jobs, before.id, after)

    def body(self, job_id: str) -> JobBody | None:
        return self._tables.bodies.get(job_id)

    def save_body(self, body: JobBody) -> None:
        self._tables.put(self._tables.bodies, body.job, body)

    def job_of_key(self, run_id: str, key: str) -> Job | None:
        return next((job for job in self._jobs(lambda job: job.run_id == run_id and job.key == key)), None)

    def jobs_of_run(self, run_id: str) -> list[Job]:
        return self._jobs(lambda job: job.run_id == run_id)

    def bodies_of_run(self, run_id: str) -> list[JobBody]:
        return [self._tables.bodies[job.id] for job in self.jobs_of_run(run_id)]

    def open_classes(self, pools: Collection[str] = ()) -> list[JobClass]:
        found = {job.class_id: job.of for job in self._jobs(lambda job: _is_open(job, pools))}
        return [found[key] for key in sorted(found)]

    def heads(self, classes: Collection[str], pools: Collection[str], each: int) -> list[Job]:
        found: list[Job] = []
        for class_id in sorted(set(classes)):
            rows = self._jobs(lambda job, of=class_id: job.class_id == of and _is_open(job, pools))  # type: ignore[misc]  # a lambda's default has no type
            found += sorted(rows, key=lambda job: (job.rank, job.sequence))[:each]
        return found

    def due(self, now_ns: int, limit: int = 100) -> list[Job]:
        return sorted(self._jobs(lambda job: 0 < job.due_ns <= now_ns), key=lambda job: job.due_ns)[:limit]

    def jobs_in(self, phases: Collection[Phase], after: int = 0, limit: int = 100) -> list[Job]:
        return self._jobs(lambda job: job.phase in phases and job.sequence > after)[:limit]

    def held_jobs(self, hold: Hold, repository: str | None = None, limit: int = 1000) -> list[Job]:
        return self._jobs(
            lambda job: (
                job.phase == "waiting" and hold in job.holds and (repository is None or job.repository == repository)
            )
        )[:limit]

    def jobs_of_worker(self, worker: str) -> list[Job]:
        return self._jobs(lambda job: job.phase in LIVE and job.lease is not None and job.lease.worker == worker)

    def phases(self) -> dict[Phase, int]:
        return _counted(job.phase for job in self._tables.jobs.values() if job.phase != "done")

    def counts(self) -> Counts:
        live = self._jobs(lambda job: job.phase in LIVE)
        return Counts(
            total=len(live),
            by_repository=_counted(job.repository for job in live),
            by_group=_counted(job.of.group for job in live if job.of.group is not None),
            by_worker=_counted(job.lease.worker for job in live if job.lease is not None),
            by_pool=_counted(job.of.pool for job in live if job.of.pool is not None),
        )

    def lock_claims(self, worker: str) -> None:
        """One writes at a time here."""

    def strides(self, repositories: Collection[str]) -> dict[str, Stride]:
        return {name: self._tables.strides[name] for name in repositories if name in self._tables.strides}

    def save_stride(self, stride: Stride) -> None:
        self._tables.put(self._tables.strides, stride.repository, stride)

    def insert_attempt(self, attempt: Attempt) -> None:
        if (attempt.worker, attempt.claim) in self._tables.claims:
            raise ConflictError
        self._new(self._tables.attempts, (attempt.job, attempt.number), attempt)
        self._tables.put(self._tables.claims, (attempt.worker, attempt.claim), (attempt.job, attempt.number))

    def attempt(self, job_id: str, number: int) -> Attempt | None:
        return self._tables.attempts.get((job_id, number))

    def attempts(self, job_id: str) -> list[Attempt]:
        rows: list[Attempt] = self._tables.scan(self._tables.attempts, lambda row: row.job == job_id)
        return sorted(rows, key=lambda row: row.number)

    def attempt_of_claim(self, worker: str, claim: str) -> Attempt | None:
        key = self._tables.claims.get((worker, claim))
        return None if key is None else self._tables.attempts[key]

    def save_attempt(self, attempt: Attempt) -> None:
        self._tables.put(self._tables.attempts, (attempt.job, attempt.number), attempt)

    # --- execution

    def insert_events(self, job_id: str, attempt: int, events: Sequence[EventRow]) -> None:
        for event in events:
            self._new(self._tables.events, (job_id, attempt, event.number), event)

    def events(self, job_id: str, attempt: int, first: int = 0, limit: int = 1000) -> list[EventRow]:
        rows = [row for key, row in self._tables.events.items() if key[:2] == (job_id, attempt) and key[2] >= first]
        return sorted(rows, key=lambda row: int(row.number))[:limit]

    def insert_order(self, job_id: str, attempt: int, order: OrderRow) -> None:
        self._new(self._tables.orders, (job_id, attempt, order.number), order)

    def orders(self, job_id: str, attempt: int, after: int) -> list[OrderRow]:
        rows = [row for key, row in self._tables.orders.items() if key[:2] == (job_id, attempt) and key[2] > after]
        return sorted(rows, key=lambda row: int(row.number))

    def delete_orders(self, job_id: str, attempt: int, up_to: int) -> None:
        for key in [key for key in self._tables.orders if key[:2] == (job_id, attempt) and key[2] <= up_to]:
            self._tables.drop(self._tables.orders, key)

    def insert_result(self, result: ResultRow) -> None:
        self._new(self._tables.results, result.job, result)

    def result(self, job_id: str) -> ResultRow | None:
        return self._tables.results.get(job_id)

    def masks(self, job_id: str, attempt: int) -> MaskRow | None:
        return self._tables.masks.get((job_id, attempt))

    def save_masks(self, row: MaskRow) -> None:
        self._tables.put(self._tables.masks, (row.job, row.attempt), row)

    def delete_masks(self, job_id: str, attempt: int) -> None:
        self._tables.drop(self._tables.masks, (job_id, attempt))

    # --- people

    def save_worker(self, worker: Worker) -> None:
        self._tables.put(self._tables.workers, worker.id, worker)

    def worker(self, worker_id: str) -> Worker | None:
        return self._tables.workers.get(worker_id)

    def workers(self, since_ns: int = 0) -> list[Worker]:
        rows: list[Worker] = self._tables.scan(self._tables.workers, lambda row: row.seen_ns >= since_ns)
        return sorted(rows, key=lambda row: (row.name, row.id))

    def delete_worker(self, worker_id: str) -> bool:
        return self._tables.drop(self._tables.workers, worker_id)

    def insert_token(self, token: Token) -> None:
        if self.token_of_hash(token.hash) is not None:
            raise ConflictError
        self._new(self._tables.tokens, token.id, token)

    def token_of_hash(self, digest: str) -> Token | None:
        return next((row for row in self._tables.tokens.values() if row.hash == digest), None)

    def tokens(self, kind: TokenKind | None = None) -> list[Token]:
        rows: list[Token] = self._tables.scan(self._tables.tokens, lambda row: kind is None or row.kind == kind)
        return sorted(rows, key=lambda row: (row.created_ns, row.id))

    def save_token(self, token: Token) -> None:
        self._tables.put(self._tables.tokens, token.id, token)

    def touch_tokens(self, used: Mapping[str, int]) -> None:
        for token_id, time_ns in used.items():
            row: Token | None = self._tables.tokens.get(token_id)
            if row is not None and row.used_ns < time_ns:
                self._tables.put(self._tables.tokens, token_id, msgspec.structs.replace(row, used_ns=time_ns))

    def save_secret(self, row: SecretRow) -> None:
        self._tables.put(self._tables.secrets, (row.repository, row.environment, row.name), row)

    def delete_secret(self, repository: str, environment: str, name: str) -> bool:
        return self._tables.drop(self._tables.secrets, (repository, environment, name))

    def secrets(self, repository: str) -> list[SecretRow]:
        rows: list[SecretRow] = self._tables.scan(self._tables.secrets, lambda row: row.repository == repository)
        return sorted(rows, key=lambda row: (row.environment, row.name))

    def vault(self, repository: str) -> VaultRow | None:
        return self._tables.vaults.get(repository)

    def save_vault(self, row: VaultRow) -> None:
        self._tables.put(self._tables.vaults, row.repository, row)

    def insert_audit(self, entry: Audit) -> None:
        number = self.next_number("audit")
        self._tables.put(self._tables.audit, number, msgspec.structs.replace(entry, sequence=number))

    def audit(self, before: int | None = None, limit: int = 100) -> list[Audit]:
        rows: list[Audit] = self._tables.scan(self._tables.audit, lambda row: before is None or row.sequence < before)
        return sorted(rows, key=lambda row: -row.sequence)[:limit]

    # --- helpers

    def _new(self, table: Any, key: Any, row: Any) -> None:
        if key in table:
            raise ConflictError
        self._tables.put(table, key, row)

    def _jobs(self, wanted: Callable[[Job], bool]) -> list[Job]:
        rows: list[Job] = [job for job in self._tables.jobs.values() if wanted(job)]
        return sorted(rows, key=lambda job: job.sequence)


def _fence(job: Job) -> tuple[object, ...]:
    return job.phase, job.attempt, None if job.lease is None else job.lease.id, job.order_number


def _is_open(job: Job, pools: Collection[str]) -> bool:
    return job.phase == "queued" or (job.phase == "reserved" and job.reserved_for in pools)


def _counted(values: Iterable[Any]) -> dict[Any, int]:
    counted: dict[Any, int] = {}
    for value in values:
        counted[value] = counted.get(value, 0) + 1
    return counted
