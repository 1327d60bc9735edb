"""The index: which caches and artifacts there are, in one SQLite file.

SQLite is in the standard library, its transactions are atomic across processes, and a process that is killed in the
middle of one leaves none of it; a lock file of our own would have to get both right again. The journal is the classic
one, not WAL, so it also works where several machines' file systems meet. Every wait for another writer is bounded.

Blocking; for use in a thread. One connection a process, opened with the first call, used by one thread at a time.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from runyard.job import MachineError

if TYPE_CHECKING:
    from collections.abc import Iterator

BUSY_S: Final = 10.0
_VERSION: Final = 1

_TABLES: Final = """
CREATE TABLE uploads (
  id TEXT PRIMARY KEY, kind TEXT NOT NULL, repository TEXT NOT NULL, owner TEXT NOT NULL, scope TEXT NOT NULL,
  key TEXT NOT NULL, version TEXT NOT NULL, created REAL NOT NULL, digest TEXT, size INTEGER,
  number INTEGER UNIQUE
);
CREATE TABLE entries (
  id INTEGER PRIMARY KEY AUTOINCREMENT, repository TEXT NOT NULL, scope TEXT NOT NULL, key TEXT NOT NULL,
  version TEXT NOT NULL, digest TEXT NOT NULL, size INTEGER NOT NULL, created REAL NOT NULL, used REAL NOT NULL,
  cost REAL NOT NULL DEFAULT 0, UNIQUE (repository, scope, key, version)
);
CREATE TABLE misses (
  repository TEXT NOT NULL, owner TEXT NOT NULL, key TEXT NOT NULL, version TEXT NOT NULL, at REAL NOT NULL,
  PRIMARY KEY (repository, owner, key, version)
);
CREATE TABLE artifacts (
  id INTEGER PRIMARY KEY AUTOINCREMENT, repository TEXT NOT NULL, run TEXT NOT NULL, plan TEXT NOT NULL,
  job TEXT NOT NULL, job_name TEXT NOT NULL, attempt INTEGER NOT NULL, name TEXT NOT NULL, upload TEXT NOT NULL,
  mime TEXT NOT NULL, created REAL NOT NULL, expires REAL NOT NULL, digest TEXT, size INTEGER,
  finished INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX artifacts_by_name ON artifacts (repository, run, name);
"""


class Index:
    """Rows in a file; `read` and `write` are whole transactions."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A consistent view."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing, and nobody else writes meanwhile. Raises MachineError where that can't be had."""
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    def close(self) -> None:
        """Give the file back. Safe to repeat."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                connection = self._open()
                connection.execute(begin)
                try:
                    yield connection
                except BaseException:
                    connection.execute("ROLLBACK")
                    raise
                connection.execute("COMMIT")
            except sqlite3.OperationalError as error:
                raise MachineError(
                    f"the index {self._path} can't be used: {error}",
                    code="service.index",
                    remedy="Look whether its folder can be written and has room; --cache-dir names another one.",
                    retryable=True,
                ) from error

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None:
            return self._connection
        Path(self._path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in _TABLES.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {_VERSION}")
            connection.execute("COMMIT")
            if version > _VERSION:
                raise MachineError(
                    f"the index {self._path} was made by a newer Runyard",
                    code="service.index_version",
                    remedy="Use that version, or name another folder with --cache-dir.",
                )
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection


def fresh_id() -> str:
    """A name nobody can guess."""
    return os.urandom(16).hex()


def row_or_none(cursor: sqlite3.Cursor) -> sqlite3.Row | None:
    """The first row."""
    found: Any = cursor.fetchone()
    return found if isinstance(found, sqlite3.Row) else None
