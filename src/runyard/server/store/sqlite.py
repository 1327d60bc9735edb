"""SQLite behind the door: one writer thread, one process a file, many transactions a commit.

Functions wait in a bounded queue. The thread takes all that wait (at most BATCH), calls each within a savepoint of its
own, commits once with `synchronous=FULL`, and only then tells the callers: a value that was given out is on the disk.
A function that fails takes back its own work and nobody else's.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import queue
import sqlite3
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate

from runyard.job import MachineError
from runyard.server.store import upgrade
from runyard.server.store.port import TRIES, ConflictError, P, R, StoreBusyError
from runyard.server.store.sql import Sql, SqlTransaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from runyard.server.store.port import Transaction

BATCH = 64
QUEUED = 4096
CLOSE_S = 20.0
_CHECKPOINT_PAGES = 4000


class SqliteSql(Sql):
    """SQLite's words."""

    # ruff: noqa: D102

    def do(self, statement: str, *values: object) -> int:
        try:
            return super().do(statement, *values)
        except sqlite3.IntegrityError as error:
            raise ConflictError(str(error)) from error

    def many(self, statement: str, values: Any) -> None:
        try:
            super().many(statement, values)
        except sqlite3.IntegrityError as error:
            raise ConflictError(str(error)) from error


class _Work:
    """One function that waits for its turn."""

    __slots__ = ("done", "error", "fn", "topics", "value")

    def __init__(self, fn: Callable[[Transaction], Any]) -> None:
        self.fn = fn
        self.done: Future[Any] = Future()
        self.value: Any = None
        self.error: BaseException | None = None
        self.topics: frozenset[str] = frozenset()


class SqliteStore:
    """A Store in one file; see `open_store`."""

    def __init__(self, connection: sqlite3.Connection, path: Path, lock: int) -> None:
        self.path = path
        self.commits = 0
        self._connection = connection
        self._lock = lock
        self._work: queue.Queue[_Work | None] = queue.Queue(QUEUED)
        self._hearers: dict[int, tuple[asyncio.AbstractEventLoop, Callable[[frozenset[str]], None]]] = {}
        self._last_ns = 0
        self._closed = False
        self._thread = threading.Thread(target=self._write, name="store writer", daemon=True)
        self._thread.start()

    async def transact(self, fn: Callable[Concatenate[Transaction, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """See `port.Store`."""
        if self._closed:
            raise StoreBusyError("the store is closed")
        work = _Work(lambda transaction: fn(transaction, *args, **kwargs))
        try:
            self._work.put_nowait(work)
        except queue.Full:
            raise StoreBusyError(f"{QUEUED} transactions wait already") from None
        value: R = await asyncio.wrap_future(work.done)
        return value

    def listen(self, hear: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """See `port.Store`."""
        key = max(self._hearers, default=0) + 1
        self._hearers[key] = (asyncio.get_running_loop(), hear)

        def end() -> None:
            self._hearers.pop(key, None)

        return end

    async def close(self) -> None:
        """See `port.Store`."""
        if self._closed:
            return
        self._closed = True
        self._hearers.clear()
        with contextlib.suppress(queue.Full):
            self._work.put_nowait(None)
        await asyncio.to_thread(self._thread.join, CLOSE_S)
        os.close(self._lock)

    # --- the writer

    def _write(self) -> None:
        connection = self._connection
        over = False
        while not over:
            batch: list[_Work] = []
            first = self._work.get()
            over = first is None
            if first is not None:
                batch.append(first)
            while len(batch) < BATCH and not over:
                try:
                    more = self._work.get_nowait()
                except queue.Empty:
                    break
                over = more is None
                if more is not None:
                    batch.append(more)
            begun = [work for work in batch if work.done.set_running_or_notify_cancel()]
            if begun:
                self._commit(begun)
        while True:
            try:
                left = self._work.get_nowait()
            except queue.Empty:
                break
            if left is not None and left.done.set_running_or_notify_cancel():
                left.done.set_exception(StoreBusyError("the store is closed"))
        with contextlib.suppress(sqlite3.Error):
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()

    def _commit(self, batch: list[_Work]) -> None:
        cursor = self._connection.cursor()
        try:
            cursor.execute("BEGIN IMMEDIATE")
            self._last_ns = max(time.time_ns(), self._last_ns)
            for work in batch:
                self._call(cursor, work)
            cursor.execute("COMMIT")
            self.commits += 1
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                cursor.execute("ROLLBACK")
            failure = StoreBusyError(f"{self.path.name}: {error}")
            for work in batch:
                work.error, work.topics = failure, frozenset()
        topics = frozenset[str]().union(*(work.topics for work in batch))
        if topics:
            for loop, hear in list(self._hearers.values()):
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(hear, topics)
        for work in batch:
            if work.error is not None:
                work.done.set_exception(work.error)
            else:
                work.done.set_result(work.value)

    def _call(self, cursor: sqlite3.Cursor, work: _Work) -> None:
        for _ in range(TRIES):
            transaction = SqlTransaction(SqliteSql(cursor), self._last_ns)
            cursor.execute("SAVEPOINT one")
            try:
                work.value = work.fn(transaction)
            except ConflictError:
                cursor.execute("ROLLBACK TO one")
                cursor.execute("RELEASE one")
                continue
            except sqlite3.Error:
                # The database itself: the whole batch is in doubt.
                raise
            except BaseException as error:  # noqa: BLE001 - it goes to whoever asked
                cursor.execute("ROLLBACK TO one")
                cursor.execute("RELEASE one")
                work.error = error
                return
            cursor.execute("RELEASE one")
            work.topics = frozenset(transaction.topics)
            return
        work.error = StoreBusyError(f"{TRIES} tries met a conflict")


def connect(path: Path) -> sqlite3.Connection:
    """A connection with the settings that the store relies on. Raises MachineError for a file that is no database."""
    try:
        connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, cached_statements=512, timeout=10
        )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA cache_size = -65536")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
    except sqlite3.Error as error:
        raise MachineError(
            f"{path} can't be opened as a database: {error}",
            code="store.open",
            remedy="Look at its owner and free space; `runyard db restore` brings back a copy.",
        ) from error
    return connection


def take(path: Path) -> int:
    """Lock a database file for this process. Raises MachineError that names the process that has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.with_name(f"{path.name}.lock")
    lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = file.read_text("utf-8", "replace").strip() or "?"
        os.close(lock)
        raise MachineError(
            f"{path} is in use by another server (process {owner})",
            code="store.locked",
            remedy="One process owns a SQLite file. Stop that one, or give this one a --data folder of its own; "
            "several replicas need PostgreSQL.",
        ) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def open_store(path: Path | str, *, backups: bool = True) -> SqliteStore:
    """Open, and bring the schema up to date after a copy of the file. Raises MachineError (exit 3), OSError."""
    path = Path(path)
    lock = take(path)
    try:
        connection = connect(path)
        try:
            upgrade.at_start(connection, path, backups=backups)
        except BaseException:
            connection.close()
            raise
        path.chmod(0o600)
        return SqliteStore(connection, path, lock)
    except BaseException:
        os.close(lock)
        raise
