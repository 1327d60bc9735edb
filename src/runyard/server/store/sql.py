"""All statements of the port in SQL, for SQLite and PostgreSQL alike; what differs is in `Sql`.

What each promises stands in the port. A row is encoded and decoded here, once, at the edge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from runyard.dispatch.records import LIVE, Counts, Job, JobClass, Stride, Worker
from runyard.run import Group
from runyard.server.store.port import ConflictError
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
    Trigger,
    VaultRow,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from runyard.dispatch.records import Hold, Phase
    from runyard.server.store.rows import TokenKind

T = TypeVar("T")

_encode: Final = msgspec.msgpack.Encoder().encode
_decoders: Final[dict[Any, Any]] = {
    kind: msgspec.msgpack.Decoder(kind).decode
    for kind in (
        Attempt, Audit, Group, Job, JobBody, JobClass, MaskRow, OrderRow, Project, ResultRow, Run, SecretRow,
        Stride, Token, Trigger, VaultRow, Worker,
    )
}  # fmt: skip
_LIVE: Final = "phase IN ('leased', 'running', 'cancelling')"
_IN_AT_ONCE: Final = 500
assert frozenset({"leased", "running", "cancelling"}) == LIVE


class Sql:
    """One connection's cursor: `?` stands for a value. `locks` ends a SELECT that locks, `skips` one that skips."""

    locks = ""
    skips = ""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def rows(self, statement: str, *values: object) -> list[Any]:
        """Every row of a SELECT."""
        self._cursor.execute(self.said(statement), values)
        found: list[Any] = self._cursor.fetchall()
        return found

    def row(self, statement: str, *values: object) -> Any | None:
        """The first row, or None."""
        self._cursor.execute(self.said(statement), values)
        return self._cursor.fetchone()

    def do(self, statement: str, *values: object) -> int:
        """How many rows a statement changed. Raises ConflictError where a unique key is there already."""
        self._cursor.execute(self.said(statement), values)
        return int(self._cursor.rowcount)

    def many(self, statement: str, values: Sequence[tuple[object, ...]]) -> None:
        """One statement for many rows."""
        self._cursor.executemany(self.said(statement), values)

    def said(self, statement: str) -> str:
        """The statement in the words of this database."""
        return statement

    def wait_for(self, name: str) -> None:
        """Hold a lock of that name until the end of the transaction; nothing where one writes."""


class SqlTransaction:
    """All statements of `port.Transaction`."""

    # ruff: noqa: D102

    def __init__(self, sql: Sql, now_ns: int) -> None:
        self._sql = sql
        self._now = now_ns
        self.topics: set[str] = set()

    def wake(self, topic: str) -> None:
        self.topics.add(topic)

    def _one(self, kind: type[T], statement: str, *values: object) -> T | None:
        found = self._sql.row(statement, *values)
        return None if found is None else _decoders[kind](found[0])

    def _all(self, kind: type[T], statement: str, *values: object) -> list[T]:
        decode = _decoders[kind]
        return [decode(found[0]) for found in self._sql.rows(statement, *values)]

    # --- runs

    def now_ns(self) -> int:
        return self._now

    def next_number(self, counter: str) -> int:
        found = self._sql.row(
            "INSERT INTO counters (name, value) VALUES (?, 1)"
            " ON CONFLICT (name) DO UPDATE SET value = counters.value + 1 RETURNING value",
            counter,
        )
        assert found is not None
        return int(found[0])

    def put_blob(self, digest: str, data: bytes) -> None:
        self._sql.do("INSERT INTO blobs (digest, data) VALUES (?, ?) ON CONFLICT (digest) DO NOTHING", digest, data)

    def blob(self, digest: str) -> bytes:
        found = self._sql.row("SELECT data FROM blobs WHERE digest = ?", digest)
        if found is None:
            raise KeyError(digest)
        return bytes(found[0])

    def save_project(self, project: Project) -> None:
        self._sql.do(
            "INSERT INTO projects (repository, row) VALUES (?, ?) ON CONFLICT (repository) DO UPDATE SET row ="
            " excluded.row",
            project.repository,
            _encode(project),
        )

    def project(self, repository: str) -> Project | None:
        return self._one(Project, "SELECT row FROM projects WHERE repository = ?", repository)

    def projects(self) -> list[Project]:
        return self._all(Project, "SELECT row FROM projects ORDER BY repository")

    def delete_project(self, repository: str) -> bool:
        return self._sql.do("DELETE FROM projects WHERE repository = ?", repository) > 0

    def insert_trigger(self, trigger: Trigger) -> bool:
        statement = "INSERT INTO triggers (key, row) VALUES (?, ?) ON CONFLICT (key) DO NOTHING"
        return self._sql.do(statement, trigger.key, _encode(trigger)) > 0

    def trigger(self, key: str) -> Trigger | None:
        return self._one(Trigger, "SELECT row FROM triggers WHERE key = ?", key)

    def set_trigger_runs(self, key: str, runs: tuple[str, ...]) -> None:
        trigger = self.trigger(key)
        if trigger is None:
            raise KeyError(key)
        changed = msgspec.structs.replace(trigger, runs=runs)
        self._sql.do("UPDATE triggers SET row = ? WHERE key = ?", _encode(changed), key)

    def insert_run(self, run: Run) -> None:
        self._sql.do(
            "INSERT INTO runs (id, number, attempt, repository, phase, version, state, row)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            run.id,
            run.number,
            run.attempt,
            run.repository,
            run.phase,
            run.version,
            run.state,
            _encode(msgspec.structs.replace(run, state=b"")),
        )

    def run(self, run_id: str) -> Run | None:
        return self._run("SELECT row, state FROM runs WHERE id = ?", run_id)

    def newest_run(self, number: int) -> Run | None:
        return self._run("SELECT row, state FROM runs WHERE number = ? ORDER BY attempt DESC LIMIT 1", number)

    def _run(self, statement: str, *values: object) -> Run | None:
        found = self._sql.row(statement, *values)
        if found is None:
            return None
        run: Run = _decoders[Run](found[0])
        return msgspec.structs.replace(run, state=bytes(found[1]))

    def save_run(self, before: Run, after: Run) -> Run:
        saved = msgspec.structs.replace(after, version=before.version + 1)
        changed = self._sql.do(
            "UPDATE runs SET phase = ?, version = ?, state = ?, row = ? WHERE id = ? AND version = ?",
            saved.phase,
            saved.version,
            saved.state,
            _encode(msgspec.structs.replace(saved, state=b"")),
            before.id,
            before.version,
        )
        if not changed:
            raise ConflictError
        return saved

    def runs(self, repository: str | None = None, before: int | None = None, limit: int = 50) -> list[Run]:
        where, values = [], list[object]()
        if repository is not None:
            where.append("repository = ?")
            values.append(repository)
        if before is not None:
            where.append("number < ?")
            values.append(before)
        condition = f" WHERE {' AND '.join(where)}" if where else ""
        return self._all(
            Run, f"SELECT row FROM runs{condition} ORDER BY number DESC, attempt DESC LIMIT ?", *values, limit
        )

    def unfinished_runs(self, after: int = 0, limit: int = 100) -> list[Run]:
        found = self._sql.rows(
            "SELECT row, state FROM runs WHERE phase <> 'done' AND number > ? ORDER BY number, attempt LIMIT ?",
            after,
            limit,
        )
        return [msgspec.structs.replace(_decoders[Run](row), state=bytes(state)) for row, state in found]

    def group(self, repository: str, name: str) -> Group:
        statement = f"SELECT row FROM run_groups WHERE repository = ? AND name = ?{self._sql.locks}"
        return self._one(Group, statement, repository, name) or Group()

    def save_group(self, repository: str, name: str, before: Group, after: Group) -> None:
        place = (repository, name)
        if before.is_free:
            if self.group(*place) != before:
                raise ConflictError
            if not after.is_free:
                self._sql.do("INSERT INTO run_groups (repository, name, row) VALUES (?, ?, ?)", *place, _encode(after))
            return
        where = "WHERE repository = ? AND name = ? AND row = ?"
        if after.is_free:
            changed = self._sql.do(f"DELETE FROM run_groups {where}", *place, _encode(before))
        else:
            changed = self._sql.do(f"UPDATE run_groups SET row = ? {where}", _encode(after), *place, _encode(before))
        if not changed:
            raise ConflictError

    # --- jobs

    def insert_job(self, job: Job, body: JobBody) -> None:
        self._sql.do(
            "INSERT INTO jobs (id, run_id, key, sequence, repository, pool, bound, class_id, rank, phase, holds,"
            " due_ns, attempt, lease, order_number, worker, reserved_for, row)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            job.id,
            job.run_id,
            job.key,
            job.sequence,
            job.repository,
            job.of.pool or "",
            job.of.group or "",
            *_columns(job),
        )
        self._sql.do("INSERT INTO job_bodies (job, row) VALUES (?, ?)", body.job, _encode(body))
        statement = "INSERT INTO job_classes (id, row) VALUES (?, ?) ON CONFLICT (id) DO NOTHING"
        self._sql.do(statement, job.class_id, _encode(job.of))

    def job(self, job_id: str) -> Job | None:
        return self._one(Job, f"SELECT row FROM jobs WHERE id = ?{self._sql.locks}", job_id)

    def save_job(self, before: Job, after: Job) -> None:
        changed = self._sql.do(
            "UPDATE jobs SET class_id = ?, rank = ?, phase = ?, holds = ?, due_ns = ?, attempt = ?, lease = ?,"
            " order_number = ?, worker = ?, reserved_for = ?, row = ?"
            " WHERE id = ? AND phase = ? AND attempt = ? AND lease = ? AND order_number = ?",
            *_columns(after),
            before.id,
            before.phase,
            before.attempt,
            before.lease.id if before.lease is not None else "",
            before.order_number,
        )
        if not changed:
            raise ConflictError

    def body(self, job_id: str) -> JobBody | None:
        return self._one(JobBody, "SELECT row FROM job_bodies WHERE job = ?", job_id)

    def save_body(self, body: JobBody) -> None:
        statement = "INSERT INTO job_bodies (job, row) VALUES (?, ?) ON CONFLICT (job) DO UPDATE SET row = excluded.row"
        self._sql.do(statement, body.job, _encode(body))

    def job_of_key(self, run_id: str, key: str) -> Job | None:
        return self._one(Job, "SELECT row FROM jobs WHERE run_id = ? AND key = ?", run_id, key)

    def jobs_of_run(self, run_id: str) -> list[Job]:
        return self._all(Job, "SELECT row FROM jobs WHERE run_id = ? ORDER BY sequence", run_id)

    def bodies_of_run(self, run_id: str) -> list[JobBody]:
        return self._all(
            JobBody,
            "SELECT job_bodies.row FROM jobs JOIN job_bodies ON job_bodies.job = jobs.id WHERE run_id = ?"
            " ORDER BY sequence",
            run_id,
        )

    def open_classes(self, pools: Collection[str] = ()) -> list[JobClass]:
        # From class to class by the index: as many steps as there are classes, however many jobs wait.
        first = "SELECT class_id FROM jobs WHERE phase = 'queued'"
        found = {
            row[0]
            for row in self._sql.rows(
                f"WITH RECURSIVE seen(class_id) AS (SELECT * FROM ({first} ORDER BY class_id LIMIT 1) AS beginning"
                " UNION ALL"
                f" SELECT ({first} AND jobs.class_id > seen.class_id ORDER BY class_id LIMIT 1)"
                " FROM seen WHERE seen.class_id IS NOT NULL)"
                " SELECT class_id FROM seen WHERE class_id IS NOT NULL"
            )
        }
        for some in _batches(pools):
            statement = (
                f"SELECT DISTINCT class_id FROM jobs WHERE phase = 'reserved' AND reserved_for IN ({_marks(some)})"
            )
            found.update(row[0] for row in self._sql.rows(statement, *some))
        classes: dict[str, JobClass] = {}
        for some in _batches(found):
            statement = f"SELECT id, row FROM job_classes WHERE id IN ({_marks(some)})"
            classes.update((row[0], _decoders[JobClass](row[1])) for row in self._sql.rows(statement, *some))
        return [classes[key] for key in sorted(classes)]

    def heads(self, classes: Collection[str], pools: Collection[str], each: int) -> list[Job]:
        found: list[Job] = []
        order = f"ORDER BY rank, sequence LIMIT ?{self._sql.skips}"
        for class_id in sorted(set(classes)):
            rows = self._all(
                Job, f"SELECT row FROM jobs WHERE class_id = ? AND phase = 'queued' {order}", class_id, each
            )
            if pools:
                statement = (
                    "SELECT row FROM jobs WHERE class_id = ? AND phase = 'reserved' AND reserved_for IN"
                    f" ({_marks(pools)}) {order}"
                )
                rows += self._all(Job, statement, class_id, *pools, each)
                rows.sort(key=lambda job: (job.rank, job.sequence))
            found += rows[:each]
        return found

    def due(self, now_ns: int, limit: int = 100) -> list[Job]:
        statement = f"SELECT row FROM jobs WHERE due_ns > 0 AND due_ns <= ? ORDER BY due_ns LIMIT ?{self._sql.skips}"
        return self._all(Job, statement, now_ns, limit)

    def jobs_in(self, phases: Collection[Phase], after: int = 0, limit: int = 100) -> list[Job]:
        wanted = [phase for phase in phases if phase != "done"]
        if not wanted:
            return []
        return self._all(
            Job,
            f"SELECT row FROM jobs WHERE phase <> 'done' AND phase IN ({_marks(wanted)}) AND sequence > ?"
            " ORDER BY sequence LIMIT ?",
            *wanted,
            after,
            limit,
        )

    def held_jobs(self, hold: Hold, repository: str | None = None, limit: int = 1000) -> list[Job]:
        more, values = ("", ()) if repository is None else (" AND repository = ?", (repository,))
        return self._all(
            Job,
            f"SELECT row FROM jobs WHERE phase = 'waiting' AND holds LIKE ?{more} ORDER BY sequence LIMIT ?",
            f"%,{hold},%",
            *values,
            limit,
        )

    def jobs_of_worker(self, worker: str) -> list[Job]:
        return self._all(Job, f"SELECT row FROM jobs WHERE {_LIVE} AND worker = ? ORDER BY sequence", worker)

    def phases(self) -> dict[Phase, int]:
        found = self._sql.rows("SELECT phase, count(*) FROM jobs WHERE phase <> 'done' GROUP BY phase")
        return {phase: int(count) for phase, count in found}

    def counts(self) -> Counts:
        by: tuple[dict[str, int], ...] = ({}, {}, {}, {})
        total = 0
        for *names, counted in self._sql.rows(
            f"SELECT repository, bound, worker, pool, count(*) FROM jobs WHERE {_LIVE}"
            " GROUP BY repository, bound, worker, pool"
        ):
            total += int(counted)
            for name, table in zip(names, by, strict=True):
                if name:
                    table[name] = table.get(name, 0) + int(counted)
        return Counts(total, by_repository=by[0], by_group=by[1], by_worker=by[2], by_pool=by[3])

    def lock_claims(self, worker: str) -> None:
        self._sql.wait_for("claims")

    def strides(self, repositories: Collection[str]) -> dict[str, Stride]:
        found: dict[str, Stride] = {}
        for some in _batches(repositories):
            statement = f"SELECT row FROM strides WHERE repository IN ({_marks(some)})"
            found.update((stride.repository, stride) for stride in self._all(Stride, statement, *some))
        return found

    def save_stride(self, stride: Stride) -> None:
        self._sql.do(
            "INSERT INTO strides (repository, row) VALUES (?, ?)"
            " ON CONFLICT (repository) DO UPDATE SET row = excluded.row",
            stride.repository,
            _encode(stride),
        )

    def insert_attempt(self, attempt: Attempt) -> None:
        self._sql.do(
            "INSERT INTO attempts (job, number, worker, claim, row) VALUES (?, ?, ?, ?, ?)",
            attempt.job,
            attempt.number,
            attempt.worker,
            attempt.claim,
            _encode(attempt),
        )

    def attempt(self, job_id: str, number: int) -> Attempt | None:
        return self._one(Attempt, "SELECT row FROM attempts WHERE job = ? AND number = ?", job_id, number)

    def attempts(self, job_id: str) -> list[Attempt]:
        return self._all(Attempt, "SELECT row FROM attempts WHERE job = ? ORDER BY number", job_id)

    def attempt_of_claim(self, worker: str, claim: str) -> Attempt | None:
        return self._one(Attempt, "SELECT row FROM attempts WHERE worker = ? AND claim = ?", worker, claim)

    def save_attempt(self, attempt: Attempt) -> None:
        statement = "UPDATE attempts SET row = ? WHERE job = ? AND number = ?"
        self._sql.do(statement, _encode(attempt), attempt.job, attempt.number)

    # --- execution

    def insert_events(self, job_id: str, attempt: int, events: Sequence[EventRow]) -> None:
        self._sql.many(
            "INSERT INTO events (job, attempt, number, event) VALUES (?, ?, ?, ?)",
            [(job_id, attempt, event.number, event.event) for event in events],
        )

    def events(self, job_id: str, attempt: int, first: int = 0, limit: int = 1000) -> list[EventRow]:
        found = self._sql.rows(
            "SELECT number, event FROM events WHERE job = ? AND attempt = ? AND number >= ? ORDER BY number LIMIT ?",
            job_id,
            attempt,
            first,
            limit,
        )
        return [EventRow(int(number), bytes(event)) for number, event in found]

    def insert_order(self, job_id: str, attempt: int, order: OrderRow) -> None:
        statement = "INSERT INTO orders (job, attempt, number, row) VALUES (?, ?, ?, ?)"
        self._sql.do(statement, job_id, attempt, order.number, _encode(order))

    def orders(self, job_id: str, attempt: int, after: int) -> list[OrderRow]:
        statement = "SELECT row FROM orders WHERE job = ? AND attempt = ? AND number > ? ORDER BY number"
        return self._all(OrderRow, statement, job_id, attempt, after)

    def delete_orders(self, job_id: str, attempt: int, up_to: int) -> None:
        self._sql.do("DELETE FROM orders WHERE job = ? AND attempt = ? AND number <= ?", job_id, attempt, up_to)

    def insert_result(self, result: ResultRow) -> None:
        self._sql.do("INSERT INTO results (job, row) VALUES (?, ?)", result.job, _encode(result))

    def result(self, job_id: str) -> ResultRow | None:
        return self._one(ResultRow, "SELECT row FROM results WHERE job = ?", job_id)

    def masks(self, job_id: str, attempt: int) -> MaskRow | None:
        return self._one(MaskRow, "SELECT row FROM masks WHERE job = ? AND attempt = ?", job_id, attempt)

    def save_masks(self, row: MaskRow) -> None:
        self._sql.do(
            "INSERT INTO masks (job, attempt, row) VALUES (?, ?, ?)"
            " ON CONFLICT (job, attempt) DO UPDATE SET row = excluded.row",
            row.job,
            row.attempt,
            _encode(row),
        )

    def delete_masks(self, job_id: str, attempt: int) -> None:
        self._sql.do("DELETE FROM masks WHERE job = ? AND attempt = ?", job_id, attempt)

    # --- people

    def save_worker(self, worker: Worker) -> None:
        self._sql.do(
            "INSERT INTO workers (id, name, seen_ns, row) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
            " name = excluded.name, seen_ns = excluded.seen_ns, row = excluded.row",
            worker.id,
            worker.name,
            worker.seen_ns,
            _encode(worker),
        )

    def worker(self, worker_id: str) -> Worker | None:
        return self._one(Worker, "SELECT row FROM workers WHERE id = ?", worker_id)

    def workers(self, since_ns: int = 0) -> list[Worker]:
        return self._all(Worker, "SELECT row FROM workers WHERE seen_ns >= ? ORDER BY name, id", since_ns)

    def delete_worker(self, worker_id: str) -> bool:
        return self._sql.do("DELETE FROM workers WHERE id = ?", worker_id) > 0

    def insert_token(self, token: Token) -> None:
        self._sql.do(
            "INSERT INTO tokens (id, hash, kind, created_ns, used_ns, row) VALUES (?, ?, ?, ?, ?, ?)",
            token.id,
            token.hash,
            token.kind,
            token.created_ns,
            token.used_ns,
            _encode(token),
        )

    def token_of_hash(self, digest: str) -> Token | None:
        return self._token("SELECT row, used_ns FROM tokens WHERE hash = ?", digest)

    def tokens(self, kind: TokenKind | None = None) -> list[Token]:
        where, values = ("", ()) if kind is None else (" WHERE kind = ?", (kind,))
        found = self._sql.rows(f"SELECT row, used_ns FROM tokens{where} ORDER BY created_ns, id", *values)
        return [_used(*row) for row in found]

    def _token(self, statement: str, *values: object) -> Token | None:
        found = self._sql.row(statement, *values)
        return None if found is None else _used(*found)

    def save_token(self, token: Token) -> None:
        self._sql.do(
            "UPDATE tokens SET hash = ?, kind = ?, used_ns = ?, row = ? WHERE id = ?",
            token.hash,
            token.kind,
            token.used_ns,
            _encode(token),
            token.id,
        )

    def touch_tokens(self, used: Mapping[str, int]) -> None:
        self._sql.many(
            "UPDATE tokens SET used_ns = ? WHERE id = ? AND used_ns < ?",
            [(time_ns, token_id, time_ns) for token_id, time_ns in used.items()],
        )

    def save_secret(self, row: SecretRow) -> None:
        self._sql.do(
            "INSERT INTO secrets (repository, environment, name, row) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (repository, environment, name) DO UPDATE SET row = excluded.row",
            row.repository,
            row.environment,
            row.name,
            _encode(row),
        )

    def delete_secret(self, repository: str, environment: str, name: str) -> bool:
        statement = "DELETE FROM secrets WHERE repository = ? AND environment = ? AND name = ?"
        return self._sql.do(statement, repository, environment, name) > 0

    def secrets(self, repository: str) -> list[SecretRow]:
        statement = "SELECT row FROM secrets WHERE repository = ? ORDER BY environment, name"
        return self._all(SecretRow, statement, repository)

    def vault(self, repository: str) -> VaultRow | None:
        return self._one(VaultRow, f"SELECT row FROM vaults WHERE repository = ?{self._sql.locks}", repository)

    def save_vault(self, row: VaultRow) -> None:
        self._sql.do(
            "INSERT INTO vaults (repository, row) VALUES (?, ?)"
            " ON CONFLICT (repository) DO UPDATE SET row = excluded.row",
            row.repository,
            _encode(row),
        )

    def insert_audit(self, entry: Audit) -> None:
        number = self.next_number("audit")
        row = _encode(msgspec.structs.replace(entry, sequence=number))
        self._sql.do("INSERT INTO audit (sequence, row) VALUES (?, ?)", number, row)

    def audit(self, before: int | None = None, limit: int = 100) -> list[Audit]:
        where, values = ("", ()) if before is None else (" WHERE sequence < ?", (before,))
        return self._all(Audit, f"SELECT row FROM audit{where} ORDER BY sequence DESC LIMIT ?", *values, limit)


def _columns(job: Job) -> tuple[object, ...]:
    """What of a job changes and is looked for, in the order of the statements, its row last."""
    return (
        job.class_id,
        job.rank,
        job.phase,
        f",{','.join(sorted(job.holds))}," if job.holds else "",
        job.due_ns,
        job.attempt,
        job.lease.id if job.lease is not None else "",
        job.order_number,
        job.lease.worker if job.lease is not None else "",
        job.reserved_for or "",
        _encode(job),
    )


def _used(row: bytes, used_ns: int) -> Token:
    token: Token = _decoders[Token](row)
    return msgspec.structs.replace(token, used_ns=int(used_ns))


def _marks(values: Collection[object]) -> str:
    return ", ".join("?" * len(values))


def _batches(values: Collection[str]) -> list[list[str]]:
    some = sorted(values)
    return [some[at : at + _IN_AT_ONCE] for at in range(0, len(some), _IN_AT_ONCE)]
