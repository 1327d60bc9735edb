"""SQLite passes the suite of stores; and what only a file can do: last, be locked, be copied, be too new."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from runyard.job import MachineError
from runyard.server.store import upgrade
from runyard.server.store.port import StoreBusyError, Transaction
from runyard.server.store.schema import LATEST
from runyard.server.store.sqlite import connect, open_store
from server.store.conformance import CASES, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from runyard.server.store.sqlite import SqliteStore
    from server.store.conformance import Case


@asynccontextmanager
async def opened(path: Path | None = None) -> AsyncIterator[SqliteStore]:
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(path or Path(folder) / "runyard.db")
        try:
            yield store
        finally:
            await store.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_sqlite(case: Case) -> None:
    run(case, opened)


def test_what_was_acknowledged_is_there_after_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "runyard.db"
    program = """
import asyncio, sys
from runyard.server.store.sqlite import open_store
async def main():
    store = open_store(sys.argv[1])
    def one(tx): return tx.next_number("count")
    while True:
        for number in await asyncio.gather(*(store.transact(one) for _ in range(8))):
            print(number, flush=True)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        told = 0
        for line in process.stdout:
            told = int(line)
            if told > 200:
                break
        process.send_signal(signal.SIGKILL)
        told = max([told, *(int(line) for line in process.stdout if line.endswith(b"\n"))])

    async def main() -> int:
        async with opened(path) as store:
            return await store.transact(lambda tx: tx.next_number("count"))

    assert asyncio.run(main()) > told


def test_many_transactions_share_a_commit_and_a_bad_one_takes_back_only_its_own(tmp_path: Path) -> None:
    def good(tx: Transaction, name: str) -> int:
        return tx.next_number(name)

    def bad(tx: Transaction) -> None:
        tx.next_number("bad")
        raise LookupError("mine")

    async def main() -> None:
        async with opened(tmp_path / "runyard.db") as store:
            await store.transact(good, "first")
            before = store.commits
            answers = await asyncio.gather(
                *(store.transact(good, "good") for _ in range(100)),
                store.transact(bad),
                *(store.transact(good, "good") for _ in range(100)),
                return_exceptions=True,
            )
            assert store.commits - before < 60
            assert isinstance(answers[100], LookupError)
            assert [answer for answer in answers if isinstance(answer, int)] == list(range(1, 201))
            assert await store.transact(good, "bad") == 1

    asyncio.run(main())


def test_one_process_owns_a_file(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "runyard.db"):
            with pytest.raises(MachineError, match=f"in use by another server .process {os.getpid()}"):
                open_store(tmp_path / "runyard.db")
        async with opened(tmp_path / "runyard.db"):
            assert (tmp_path / "runyard.db").stat().st_mode & 0o077 == 0

    asyncio.run(main())


def test_a_store_that_is_closed_or_full_says_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from runyard.server.store import sqlite

    monkeypatch.setattr(sqlite, "QUEUED", 2)

    async def main() -> None:
        async with opened(tmp_path / "runyard.db") as store:
            inside, go_on = asyncio.Event(), asyncio.Event()
            loop = asyncio.get_running_loop()

            def slow(tx: Transaction) -> None:
                loop.call_soon_threadsafe(inside.set)
                asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(15)

            first = asyncio.create_task(store.transact(slow))
            await inside.wait()
            waiting = [asyncio.create_task(store.transact(lambda tx: tx.now_ns())) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(StoreBusyError, match="wait already"):
                await store.transact(lambda tx: tx.now_ns())
            go_on.set()
            await asyncio.gather(first, *waiting)
        with pytest.raises(StoreBusyError, match="closed"):
            await store.transact(lambda tx: tx.now_ns())

    asyncio.run(main())


def test_an_older_schema_is_copied_before_it_is_upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from runyard.server.store import schema

    path = tmp_path / "runyard.db"
    asyncio.run(_counted(path))
    more = schema.Step(LATEST + 1, "one more", "expand", 1, "CREATE TABLE extra (id TEXT PRIMARY KEY);\n")
    monkeypatch.setattr(upgrade, "STEPS", (*schema.STEPS, more))
    monkeypatch.setattr(upgrade, "LATEST", LATEST + 1)
    assert asyncio.run(_counted(path)) == 2
    copies = list(tmp_path.glob("runyard.db.before-*"))
    assert len(copies) == 1
    with sqlite3.connect(copies[0]) as copy:
        assert copy.execute("SELECT value FROM counters").fetchone() == (1,)
        assert upgrade.look(copy).applied == LATEST
    copy.close()
    # The last release's binary on the new schema: it only expanded, so it works.
    monkeypatch.undo()
    assert asyncio.run(_counted(path)) == 3


def test_a_schema_two_releases_away_stops_the_start_with_the_command_that_helps(tmp_path: Path) -> None:
    path = tmp_path / "runyard.db"
    asyncio.run(_counted(path))
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO schema_steps VALUES (?, 'far', ?, 0)", (LATEST + 9, LATEST + 5))
    connection.close()
    with pytest.raises(MachineError, match=f"needs a newer Runyard .this one knows step {LATEST}") as error:
        open_store(path)
    assert "runyard db" in str(error.value.remedy)


@pytest.mark.parametrize("kind", ["garbage", "foreign", "folder"])
def test_a_file_that_is_no_store_of_ours_is_refused_and_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "runyard.db"
    if kind == "garbage":
        path.write_bytes(b"not a database" * 500)
    elif kind == "folder":
        path.mkdir()
    else:
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE theirs (x)")
        connection.close()
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(MachineError):
        open_store(path)
    if kind == "foreign":
        with sqlite3.connect(path) as connection:
            assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]
        connection.close()
    else:
        assert (path.read_bytes() if path.is_file() else b"") == before


def test_the_queue_is_read_by_indexes_only(tmp_path: Path) -> None:
    """No statement of the queue looks at rows that it doesn't give: the plan of each names an index."""
    from runyard.server.store.sql import SqlTransaction
    from runyard.server.store.sqlite import SqliteSql

    connection = connect(tmp_path / "runyard.db")
    upgrade.apply(connection)
    plans: list[str] = []

    class Watched(SqliteSql):
        def rows(self, statement: str, *values: object) -> list[object]:
            plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
            plans.extend(str(row[3]) for row in plan)
            return super().rows(statement, *values)

    tx = SqlTransaction(Watched(connection.cursor()), 0)
    tx.open_classes(("p",))
    tx.heads(("a", "b"), ("p",), 4)
    tx.due(5)
    tx.counts()
    tx.jobs_in(("queued", "leased"))
    tx.jobs_of_worker("w")
    scans = [plan for plan in plans if plan.startswith("SCAN jobs") and "INDEX" not in plan]
    assert scans == []
    connection.close()


async def _counted(path: Path) -> int:
    async with opened(path) as store:
        return await store.transact(lambda tx: tx.next_number("count"))


def test_rows_of_the_next_release_are_read(tmp_path: Path) -> None:
    """A field that this binary doesn't know is ignored."""
    from runyard.server.store.rows import Project

    class Newer(Project, frozen=True, kw_only=True):
        colour: str = "green"

    def write(tx: Transaction) -> None:
        tx.save_project(Newer(repository="a/b", url="u", created_ns=1))

    async def main() -> None:
        async with opened(tmp_path / "runyard.db") as store:
            await store.transact(write)
            project = await store.transact(lambda tx: tx.project("a/b"))
            assert project == Project(repository="a/b", url="u", created_ns=1)
            assert msgspec.to_builtins(project)

    asyncio.run(main())
