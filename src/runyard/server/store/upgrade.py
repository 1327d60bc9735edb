"""Brings a schema up to date, step by step, and says when a binary and a schema don't fit.

A schema may be one release ahead of a binary (the newer one has only expanded) or behind it (the binary expands it). A
schema whose last contracting step this binary doesn't know is two releases away: nothing starts then.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from typing import TYPE_CHECKING, NamedTuple

from runyard.job import MachineError
from runyard.server.store.schema import LATEST, OLDEST_READ, STEPS, VERSION_TABLE, said_for

if TYPE_CHECKING:
    from pathlib import Path

KEPT_COPIES = 3


class State(NamedTuple):
    """What a database has: the last step applied (0: none), and the oldest step whose binary may use it."""

    applied: int
    compatible_with: int

    @property
    def problem(self) -> str | None:
        """Why this binary can't use it even after an upgrade, in words."""
        if self.compatible_with > LATEST:
            return f"its schema is at step {self.applied} and needs a newer Runyard (this one knows step {LATEST})"
        if 0 < self.applied < OLDEST_READ:
            return f"its schema is at step {self.applied}, two releases old (this Runyard reads {OLDEST_READ} on)"
        return None

    @property
    def missing(self) -> int:
        """How many steps this binary would apply."""
        return sum(step.number > self.applied for step in STEPS)


def look(connection: sqlite3.Connection) -> State:
    """The state of a SQLite schema."""
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'schema_steps'").fetchone()
    if found is None:
        others = connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table'").fetchone()[0]
        if others:
            raise MachineError(
                "this database holds tables, but none of Runyard's",
                code="store.foreign",
                remedy="Give --data or --database a place of its own.",
            )
        return State(0, 0)
    number, compatible = connection.execute(
        "SELECT coalesce(max(number), 0), coalesce(max(compatible_with), 0) FROM schema_steps"
    ).fetchone()
    return State(int(number), int(compatible))


def apply(connection: sqlite3.Connection) -> list[str]:
    """Apply every missing step, each in one transaction; their names. Safe to repeat."""
    for statement in said_for("sqlite", VERSION_TABLE):
        connection.execute(statement)
    state = look(connection)
    done: list[str] = []
    for step in STEPS:
        if step.number <= state.applied:
            continue
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in said_for("sqlite", step.script):
                connection.execute(statement)
            connection.execute(
                "INSERT INTO schema_steps (number, name, compatible_with, applied_ns) VALUES (?, ?, ?, ?)",
                (step.number, step.name, step.compatible_with, time.time_ns()),
            )
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        done.append(step.name)
    return done


def at_start(connection: sqlite3.Connection, path: Path, *, backups: bool) -> None:
    """What a server does before it serves: refuse what doesn't fit, copy the file, upgrade it. Raises MachineError."""
    try:
        state = look(connection)
        if state.problem is not None:
            raise MachineError(
                f"{path}: {state.problem}",
                code="store.schema",
                remedy=f"`runyard db check --database {path}` shows it; `runyard db restore` brings back a copy.",
            )
        if state.missing:
            if state.applied and backups:
                copy(connection, path.with_name(f"{path.name}.before-{LATEST}.{time.strftime('%Y%m%d-%H%M%S')}"))
                _forget_old(path)
            apply(connection)
    except sqlite3.DatabaseError as error:
        raise MachineError(
            f"{path}: {error}",
            code="store.damaged",
            remedy=f"`runyard db check --database {path}` says more; `runyard db restore` brings back a copy.",
        ) from error


def copy(connection: sqlite3.Connection, to: Path) -> None:
    """A whole copy of a database that may be in use, under a name that is there only when it is whole."""
    part = to.with_name(f".{to.name}.part")
    part.unlink(missing_ok=True)
    target = sqlite3.connect(part)
    try:
        connection.backup(target)
    finally:
        target.close()
    part.chmod(0o600)
    part.rename(to)


def _forget_old(path: Path) -> None:
    copies = sorted(path.parent.glob(f"{path.name}.before-*"), key=lambda each: each.stat().st_mtime)
    for old in copies[:-KEPT_COPIES]:
        with contextlib.suppress(OSError):
            old.unlink()
