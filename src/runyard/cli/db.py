"""`runyard db`: the schema of a server's database, and its copies. SQLite so far."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

_DATABASE = click.option(
    "--database", metavar="URL", help="sqlite:PATH (default: runyard.db in the data folder of `runyard serve`)."
)


@click.group(epilog="Example: runyard db backup --to runyard-backup.db")
def command() -> None:
    """The schema of a server's database, and its copies."""


@command.command("check", epilog="Example: runyard db check --json")
@_DATABASE
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def check(database: str | None, as_json: bool) -> int:
    """Whether this build can use the database, and whether the file is whole.

    Ends with 1 where it needs an upgrade or is damaged, with 3 where this build can't use it.
    """
    import json

    from runyard.job.errors import MachineError
    from runyard.server.store import upgrade
    from runyard.server.store.schema import LATEST

    path = _path(database)
    with _opened(path) as connection:
        try:
            state = upgrade.look(connection)
            found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(20)")]
        except sqlite3.DatabaseError as error:
            raise MachineError(f"{path}: {error}", code="store.damaged", remedy="runyard db restore FILE") from error
    whole = found == ["ok"]
    said: dict[str, Any] = {
        "database": str(path),
        "schema": state.applied,
        "known": LATEST,
        "missing": state.missing,
        "whole": whole,
        "problems": [] if whole else found,
        "usable": state.problem is None,
    }
    if as_json:
        click.echo(json.dumps(said, indent=2))
    else:
        click.echo(
            f"{path}: schema at step {state.applied}, this build knows {LATEST}; " + ("whole" if whole else "damaged")
        )
        for line in said["problems"]:
            click.echo(f"  {line}")
    if state.problem is not None:
        raise MachineError(
            f"{path}: {state.problem}", code="store.schema", remedy="runyard db restore FILE, or another build"
        )
    return 1 if state.missing or not whole else 0


@command.command("upgrade", epilog="Example: runyard db upgrade")
@_DATABASE
def upgrade(database: str | None) -> int:
    """Bring the schema up to date, after a copy of the file. A server does it at its start too."""
    from runyard.server.store import upgrade as steps
    from runyard.server.store.sqlite import connect, take

    path = _path(database)
    lock = take(path)
    try:
        connection = connect(path)
        try:
            before = steps.look(connection).applied
            steps.at_start(connection, path, backups=True)
            after = steps.look(connection).applied
        finally:
            connection.close()
    finally:
        os.close(lock)
    click.echo(f"{path}: schema at step {after}" + ("" if after != before else ", nothing to do"))
    return 0


@command.command("backup", epilog="Example: runyard db backup --to runyard-backup.db")
@_DATABASE
@click.option("--to", metavar="F", required=True, help="The copy; a file that exists is not written over.")
def backup(database: str | None, to: str) -> int:
    """Copy the database while a server uses it. Logs, artifacts, mirrors and the server's key are files beside it."""
    from runyard.job.errors import InputError, MachineError
    from runyard.server.store import upgrade as steps

    path, target = _path(database), Path(to).absolute()
    if target.exists():
        raise InputError(f"{target} is there already", key="--to", code="db.exists")
    with _opened(path) as connection:
        try:
            steps.copy(connection, target)
        except sqlite3.DatabaseError as error:
            raise MachineError(f"{path} can't be copied: {error}", code="store.damaged") from error
    click.echo(f"{target}: {target.stat().st_size} bytes")
    return 0


@command.command("restore", epilog="Example: runyard db restore runyard-backup.db")
@click.argument("copy")
@_DATABASE
def restore(copy: str, database: str | None) -> int:
    """Put COPY in the place of the database, which is kept beside it. No server may be running."""
    import shutil
    import time

    from runyard.job.errors import InputError, MachineError
    from runyard.server.store import upgrade as steps
    from runyard.server.store.sqlite import take

    source, path = Path(copy).absolute(), _path(database, must_exist=False)
    with _opened(source) as connection:
        try:
            state = steps.look(connection)
            whole = [row[0] for row in connection.execute("PRAGMA integrity_check(1)")] == ["ok"]
        except sqlite3.DatabaseError as error:
            raise InputError(f"{source} is no copy of a database: {error}", code="db.copy") from error
    if not state.applied or not whole:
        raise InputError(f"{source} is no whole copy of a server's database", code="db.copy")
    if state.problem is not None:
        raise MachineError(f"{source}: {state.problem}", code="store.schema")
    lock = take(path)
    try:
        if path.exists():
            kept = path.with_name(f"{path.name}.replaced.{time.strftime('%Y%m%d-%H%M%S')}")
            path.rename(kept)
            for suffix in ("-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    path.with_name(path.name + suffix).rename(kept.with_name(kept.name + suffix))
            click.echo(f"what was there is kept as {kept}")
        part = path.with_name(f".{path.name}.part")
        shutil.copyfile(source, part)
        part.chmod(0o600)
        part.rename(path)
    finally:
        os.close(lock)
    click.echo(f"{path}: restored, schema at step {state.applied}")
    return 0


def _path(database: str | None, *, must_exist: bool = True) -> Path:
    from runyard.cli.serve import ServerFile, database_path, default_data
    from runyard.job.errors import InputError

    data = Path(os.environ.get("RUNYARD_SERVER_DATA") or default_data()).absolute()
    path = database_path(ServerFile(database=database or os.environ.get("RUNYARD_SERVER_DATABASE")), data)
    if must_exist and not path.is_file():
        raise InputError(f"there is no database {path}", key="--database", code="db.none")
    return path


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """For reading only: a check changes nothing."""
    from runyard.job.errors import InputError

    if not path.is_file():
        raise InputError(f"there is no file {path}", code="db.none")
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=10)
    try:
        yield connection
    finally:
        connection.close()
