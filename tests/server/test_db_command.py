"""`runyard db`: check, upgrade, backup and restore of a real file, as its user runs them."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from typing import TYPE_CHECKING

import pytest

from runyard.cli import main
from runyard.server.store.schema import LATEST
from runyard.server.store.sqlite import open_store

if TYPE_CHECKING:
    from pathlib import Path


def count(path: Path) -> int:
    async def one() -> int:
        store = open_store(path)
        try:
            return await store.transact(lambda tx: tx.next_number("count"))
        finally:
            await store.close()

    return asyncio.run(one())


def runyard(*arguments: str) -> int:
    return main.run(["db", *arguments])


def test_a_copy_brings_back_what_was_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, copy = tmp_path / "runyard.db", tmp_path / "copy.db"
    assert count(path) == 1
    assert runyard("backup", "--database", f"sqlite:{path}", "--to", str(copy)) == 0
    assert count(path) == 2
    assert count(path) == 3
    assert runyard("restore", str(copy), "--database", f"sqlite:{path}") == 0
    assert count(path) == 2
    assert len(list(tmp_path.glob("runyard.db.replaced.*"))) >= 1
    assert runyard("backup", "--database", str(path), "--to", str(copy)) == 2
    assert "is there already" in capsys.readouterr().err


def test_a_backup_is_taken_while_a_server_writes(tmp_path: Path) -> None:
    path, copy = tmp_path / "runyard.db", tmp_path / "copy.db"

    async def main_() -> None:
        store = open_store(path)
        try:
            await asyncio.gather(*(store.transact(lambda tx: tx.next_number("count")) for _ in range(50)))
            assert await asyncio.to_thread(runyard, "backup", "--database", str(path), "--to", str(copy)) == 0
            assert await asyncio.to_thread(runyard, "restore", str(copy), "--database", str(path)) == 3
        finally:
            await store.close()

    asyncio.run(main_())
    assert count(copy) == 51


def test_check_tells_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runyard.db"
    assert runyard("check", "--database", str(path)) == 2
    count(path)
    capsys.readouterr()
    assert runyard("check", "--database", str(path), "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["schema"], said["whole"], said["missing"]) == (LATEST, True, 0)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM schema_steps WHERE number = ?", (LATEST,))
        connection.execute("DROP TABLE secrets")
        connection.execute("DROP TABLE vaults")
    connection.close()
    assert runyard("check", "--database", str(path)) == 1
    assert runyard("upgrade", "--database", str(path)) == 0
    assert runyard("check", "--database", str(path)) == 0
    assert len(list(tmp_path.glob("runyard.db.before-*"))) == 1
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO schema_steps VALUES (?, 'far', ?, 0)", (LATEST + 9, LATEST + 5))
    connection.close()
    assert runyard("check", "--database", str(path)) == 3


@pytest.mark.parametrize("kind", ["garbage", "foreign", "missing"])
def test_what_is_no_copy_replaces_nothing(tmp_path: Path, kind: str) -> None:
    path, copy = tmp_path / "runyard.db", tmp_path / "copy.db"
    assert count(path) == 1
    if kind == "garbage":
        copy.write_bytes(b"no database" * 1000)
    elif kind == "foreign":
        with sqlite3.connect(copy) as connection:
            connection.execute("CREATE TABLE theirs (x)")
        connection.close()
    assert runyard("restore", str(copy), "--database", str(path)) in (2, 3)
    assert count(path) == 2


def test_other_databases_are_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert runyard("check", "--database", "postgresql://localhost/runyard") == 2
    assert "postgresql is not part of this build yet" in capsys.readouterr().err
