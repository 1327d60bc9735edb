"""The lock file's grammar, the mirror's repositories, and gathering that ends and lists everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from action.origins import make_origin
from runyard.action.gather import gather
from runyard.action.lock import not_locked, read_lock, write_lock
from runyard.action.manifest import Manifest, read_manifest
from runyard.action.mirror import Mirror
from runyard.action.remotes import Remote, Remotes
from runyard.action.store import ActionStore
from runyard.job import ActionStep, InputError
from source.repositories import git

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(60)

ONE, TWO = "1" * 40, "2" * 40


def test_a_lock_reads_as_it_is_written() -> None:
    text = write_lock({"o/b@v1": ONE, "o/A@releases/v2": TWO})
    assert text.splitlines()[1:] == [
        "version = 1",
        "",
        "[actions]",
        f'"o/A@releases/v2" = "{TWO}"',
        f'"o/b@v1" = "{ONE}"',
    ]
    assert read_lock(text.encode()) == {"o/b@v1": ONE, "o/a@releases/v2": TWO}
    assert read_lock(write_lock({}).encode()) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "version is not 1"),
        ("version = 2", "version is not 1"),
        ("version = 1\nmore = 2", "unknown key 'more'"),
        ('version = 1\n[actions]\n"o/a@v1" = "v1"', "whole commit id"),
        (f'version = 1\n[actions]\n"o/a" = "{ONE}"', "whole commit id"),
        (f'version = 1\n[actions]\n"o/a@v1" = "{ONE}"\n"O/a@v1" = "{TWO}"', "twice"),
        ("version = 1\nactions = 3", "is a table"),
        ("version = [", "can't be read"),
    ],
)
def test_a_lock_that_is_wrong(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_lock(text.encode())


def test_what_a_lock_lacks() -> None:
    assert not_locked(["o/a@v1", "O/B@v2", f"o/c@{ONE}", "o/d@v1"], {"o/a@v1": ONE, "o/b@v2": TWO}) == ["o/d@v1"]


class Nothing:
    def manifest(self, path: str) -> Manifest | None:
        del path
        return None


class Everywhere:
    """Each local action is this one."""

    def __init__(self, text: str) -> None:
        self._text = text

    def manifest(self, path: str) -> Manifest | None:
        return read_manifest(self._text.encode(), path)


def remote(uses: str) -> ActionStep:
    name, _, ref = uses.partition("@")
    owner, repository, *path = name.split("/")
    return ActionStep(id="x", number=1, repository=f"{owner}/{repository}", path="/".join(path), ref=ref)


def test_a_mirror_follows_moved_tags_and_is_enough_for_a_store(tmp_path: Path) -> None:
    first = make_origin(tmp_path / "origin", "o/a", {"action.yml": "runs: {using: node20, main: m.js}"})
    mirror = Mirror(tmp_path / "m", lambda name: Remote(f"file://{tmp_path}/origin/{name}"))
    assert mirror.fill("o/a", "v1") == (first, True)
    assert mirror.fill("o/a", "v1") == (first, False)
    assert mirror.fill("o/a", first) == (first, True)
    second = make_origin(tmp_path / "origin", "o/a", {"m.js": "2"})
    assert mirror.fill("o/a", "v1") == (second, True)
    assert mirror.fill("o/a", "main") == (second, True)
    store = ActionStore(
        str(tmp_path / "c"), Remotes(url="http://127.0.0.1:1", mirror=str(tmp_path / "m")), offline=True
    )
    assert store.resolve("O/A", "v1") == second
    assert store.get("o/a", first).commit == first
    with pytest.raises(InputError, match="no branch or tag 'v7'"):
        mirror.fill("o/a", "v7")


def test_gathering_follows_composites_and_names_what_is_missing(tmp_path: Path) -> None:
    nested = "runs: {using: composite, steps: [{uses: o/leaf/sub@v1}, {uses: o/gone@v1}, {uses: actions/checkout@v4}]}"
    make_origin(tmp_path / "origin", "o/top", {"action.yml": nested})
    make_origin(tmp_path / "origin", "o/leaf", {"sub/action.yml": "runs: {using: node20, main: m.js}"})
    store = ActionStore(str(tmp_path / "c"), Remotes(url=f"file://{tmp_path}/origin"))
    found = gather([remote("o/top@v1"), remote("O/top@v1")], Nothing(), store, native=True)
    assert [each.chain for each in found.uses] == [
        ("o/top@v1",),
        ("O/top@v1",),
        ("o/top@v1", "o/leaf/sub@v1"),
        ("o/top@v1", "o/gone@v1"),
        ("o/top@v1", "actions/checkout@v4"),
    ]
    assert list(found.missing) == ["o/gone@v1"]
    assert set(found.commits) == {"o/top@v1", "o/leaf@v1"}
    assert found.commits["o/leaf@v1"] == git(tmp_path / "origin/o/leaf", "rev-parse", "HEAD")
    assert "actions/checkout@v4" in gather([remote("o/top@v1")], Nothing(), store, native=False).missing


def test_gathering_ends_for_actions_that_include_themselves() -> None:
    itself = Everywhere("runs: {using: composite, steps: [{uses: ./a}, {uses: ./a}, {uses: ./b}]}")
    steps = [ActionStep(id="x", number=1, repository=None, path="./a")]
    assert len(gather(steps, itself, None, native=True).uses) < 20


def test_a_manifest_that_is_missing_or_leads_out_is_told(tmp_path: Path) -> None:
    make_origin(tmp_path / "origin", "o/empty", {"readme": "x"})
    store = ActionStore(str(tmp_path / "c"), Remotes(url=f"file://{tmp_path}/origin"))
    found = gather([remote("o/empty@v1"), remote("o/empty/../../etc@v1")], Nothing(), store, native=True)
    assert "Can't find 'action.yml'" in found.missing["o/empty@v1"]
    assert "leads out of the repository" in found.missing["o/empty/../../etc@v1"]
