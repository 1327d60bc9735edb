"""The vault: what is kept, who opens it, and that nothing of it stands on the disk in clear."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
import pytest

from runyard.job import InputError, WorkError
from runyard.server import vault as module
from runyard.server.control import LockedError
from runyard.server.store.memory import MemoryStore
from runyard.server.store.rows import Run
from runyard.server.vault import StoredVault, check_name, new_salt, stretched

if TYPE_CHECKING:
    from runyard.server.store.port import Transaction

NOW = 1_900_000_000_000_000_000
HOUR = 3_600_000_000_000
REPOSITORY = "acme/app"


class World:
    """A store with a clock that is set by hand, and a server's vault."""

    def __init__(self) -> None:
        self.now = NOW
        self.store = MemoryStore(lambda: self.now)
        self.vault = StoredVault(bytes(32))

    def do(self, fn: object, *args: object) -> object:
        import asyncio

        return asyncio.run(self.store.transact(fn, *args))  # type: ignore[arg-type]  # any function of a transaction

    def set(self, name: str, value: str, environment: str = "") -> None:
        self.do(lambda tx: self.vault.set(tx, REPOSITORY, environment, name, value))

    def secrets(self, environment: str | None = None, vault: StoredVault | None = None) -> object:
        return self.do(lambda tx: (vault or self.vault).secrets(tx, run(), environment))

    def is_locked(self) -> object:
        return self.do(lambda tx: self.vault.is_locked(tx, REPOSITORY))


def run() -> Run:
    return Run(
        id="1.1",
        number=1,
        attempt=1,
        run_number=1,
        repository=REPOSITORY,
        workflow="w",
        name="n",
        event="push",
        ref="r",
        sha="s",
        trust="trusted",
        trigger="t",
        created_ns=NOW,
        plan_digest="",
        context_digest="",
        state=b"",
    )


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MEMORY_KIB", 64)
    monkeypatch.setattr(module, "_PASSES", 1)


def test_secrets_come_back_those_of_the_environment_over_the_others() -> None:
    world = World()
    assert world.secrets() == {}
    world.set("token", "general")
    world.set("OTHER", "ü\nline")
    world.set("TOKEN", "of production", "production")
    assert world.secrets() == {"TOKEN": "general", "OTHER": "ü\nline"}
    assert world.secrets("production") == {"TOKEN": "of production", "OTHER": "ü\nline"}
    assert world.secrets("staging") == {"TOKEN": "general", "OTHER": "ü\nline"}
    assert world.is_locked() is False


def test_nothing_that_is_stored_shows_a_value_a_passphrase_or_a_key() -> None:
    world = World()
    world.set("TOKEN", "very-secret-value")
    lock(world, "correct horse")
    rows = b"".join(
        msgspec.msgpack.encode(row)
        for table in vars(world.store.tables).values()
        if isinstance(table, dict)
        for row in table.values()
    )
    assert b"TOKEN" in rows
    assert b"very-secret-value" not in rows
    assert b"correct horse" not in rows


def lock(world: World, passphrase: str | None) -> None:
    salt = new_salt()
    key = stretched(passphrase, salt) if passphrase else None
    world.do(lambda tx: world.vault.lock(tx, REPOSITORY, key, salt))


def unlock(world: World, passphrase: str, until: int = 0) -> None:
    def opened(tx: Transaction) -> None:
        row = tx.vault(REPOSITORY)
        assert row is not None
        world.vault.unlock(tx, REPOSITORY, stretched(passphrase, row.salt), until)

    world.do(opened)


def test_a_locked_vault_gives_nothing_until_its_passphrase_opens_it() -> None:
    world = World()
    world.set("TOKEN", "value")
    lock(world, "right")
    assert world.is_locked() is True
    with pytest.raises(LockedError):
        world.secrets()
    with pytest.raises(LockedError):
        world.set("MORE", "x")
    with pytest.raises(WorkError, match="not the passphrase"):
        unlock(world, "wrong")
    assert world.is_locked() is True
    unlock(world, "right")
    assert world.secrets() == {"TOKEN": "value"}
    world.set("MORE", "x")
    lock(world, None)
    unlock(world, "right")
    assert world.secrets() == {"TOKEN": "value", "MORE": "x"}


def test_an_unlock_ends_by_itself() -> None:
    world = World()
    world.set("TOKEN", "value")
    lock(world, "right")
    unlock(world, "right", NOW + HOUR)
    assert world.secrets() == {"TOKEN": "value"}
    world.now = NOW + HOUR
    assert world.is_locked() is True


def test_a_vault_without_a_passphrase_is_not_locked_for_ever_by_accident() -> None:
    world = World()
    with pytest.raises(WorkError, match="no secrets yet"):
        lock(world, "right")
    world.set("TOKEN", "value")
    with pytest.raises(WorkError, match="no passphrase"):
        lock(world, None)
    assert world.secrets() == {"TOKEN": "value"}


def test_another_servers_key_opens_nothing() -> None:
    world = World()
    world.set("TOKEN", "value")
    other = StoredVault(os.urandom(32))
    with pytest.raises(LockedError):
        world.secrets(vault=other)
    with pytest.raises(LockedError):
        other.unseal(world.vault.seal(b"masks"))
    assert world.vault.unseal(world.vault.seal(b"masks")) == b"masks"


def test_a_row_that_was_moved_does_not_open() -> None:
    world = World()
    world.set("TOKEN", "value")

    def move(tx: Transaction) -> None:
        row = tx.secrets(REPOSITORY)[0]
        tx.save_secret(msgspec.structs.replace(row, name="OTHER"))

    world.do(move)
    with pytest.raises(LockedError, match="another key"):
        world.secrets()


def test_rotation_seals_everything_anew() -> None:
    world = World()
    world.set("A", "1")
    world.set("B", "2", "prod")
    before = world.do(lambda tx: tx.secrets(REPOSITORY))
    assert world.do(lambda tx: world.vault.rotate(tx, REPOSITORY)) == 2
    assert world.secrets("prod") == {"A": "1", "B": "2"}
    assert world.do(lambda tx: tx.secrets(REPOSITORY)) != before


@pytest.mark.parametrize("name", ["", "1A", "A-B", "GITHUB_TOKEN", "github_x", "A B", "Ä", "A" * 300])
def test_names_that_github_refuses(name: str) -> None:
    with pytest.raises(InputError):
        check_name(name)


def test_bounds() -> None:
    world = World()
    with pytest.raises(InputError, match="at most"):
        world.set("BIG", "x" * 70_000)
