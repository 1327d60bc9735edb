"""The pool of bare repositories: deltas, one fetch for many, no address and no credential, broken ones made anew."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from action.origins import GitServer, make_origin
from runyard.action import pool as pools
from runyard.action.git_call import run_git
from runyard.action.pool import RepositoryPool
from runyard.action.remotes import Remote
from runyard.job import InputError, MachineError

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "t0ken-of-a-test"


def packed(place: Path) -> int:
    """Bytes of objects."""
    return sum(each.stat().st_size for each in (place / "objects").rglob("*") if each.is_file())


def listed(place: Path, commit: str) -> list[str]:
    return run_git(["ls-tree", "-r", "--name-only", commit], git_dir=place).decode().split()


def everything_in(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in folder.rglob("*") if each.is_file())


def test_S4_71_a_second_fetch_brings_only_what_is_new(tmp_path: Path) -> None:
    noise = {f"large{n}": os.urandom(100_000).hex() for n in range(5)}
    first = make_origin(tmp_path / "o", "acme/app", {**noise, "small": "1"})
    pool, remote = RepositoryPool(tmp_path / "pool"), Remote(f"file://{tmp_path}/o/acme/app")
    place = pool.bring(remote, first)
    before = packed(place)
    assert before > 400_000
    second = make_origin(tmp_path / "o", "acme/app", {"small": "2", "new": "x"}, tag="v2")
    assert pool.bring(remote, second) == place
    assert packed(place) - before < 20_000
    assert "new" in listed(place, second)
    assert "new" not in listed(place, first)


def test_what_is_there_is_not_fetched_again_and_many_cause_one_fetch(tmp_path: Path) -> None:
    commit = make_origin(tmp_path / "o", "acme/app", {"a": "1"})
    with GitServer(tmp_path / "o") as server:
        url = f"{server.url}/acme/app"
        found: list[Path] = []

        def one() -> None:
            found.append(RepositoryPool(tmp_path / "pool").bring(Remote(url), commit))

        threads = [threading.Thread(target=one) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert len(set(found)) == 1
        assert len(found) == 8
        assert len(server.fetches) == 1
    RepositoryPool(tmp_path / "pool").bring(Remote(url), commit)  # the server is gone


def test_S4_71_no_address_and_no_credential_is_kept(tmp_path: Path) -> None:
    commit = make_origin(tmp_path / "o", "acme/app", {"a": "1"})
    with GitServer(tmp_path / "o", token=TOKEN) as server:
        url = f"{server.url}/acme/app"
        pool = RepositoryPool(tmp_path / "pool")
        pool.bring(Remote(url, TOKEN), commit, private=True)
        kept = everything_in(tmp_path / "pool")
        assert TOKEN.encode() not in kept
        assert server.url.encode() not in kept
        assert b"acme" not in kept
        with pytest.raises(MachineError, match="can't be read") as refused:
            pool.bring(Remote(url), commit)
        assert refused.value.code == "action.no_access"
        assert pool.bring(Remote(url, TOKEN), commit).is_dir()


def test_the_same_address_written_otherwise_is_the_same_pool(tmp_path: Path) -> None:
    commit = make_origin(tmp_path / "o", "acme/app", {"a": "1"})
    pool = RepositoryPool(tmp_path / "pool")
    places = {pool.bring(Remote(f"file://{tmp_path}/o/acme/app{end}"), commit) for end in ("", "/")}
    assert len(places) == 1


@pytest.mark.parametrize("harm", ["pack", "head", "half"])
def test_a_broken_pool_falls_back_to_the_origin(tmp_path: Path, harm: str) -> None:
    first = make_origin(tmp_path / "o", "acme/app", {"a": "1"})
    pool, remote = RepositoryPool(tmp_path / "pool"), Remote(f"file://{tmp_path}/o/acme/app")
    place = pool.bring(remote, first)
    second = make_origin(tmp_path / "o", "acme/app", {"a": "2"}, tag="v2")
    match harm:
        case "pack":
            for each in (place / "objects").rglob("*"):
                if each.is_file():
                    each.chmod(0o644)
                    each.write_bytes(b"harmed")
        case "head":
            (place / "HEAD").write_text("nonsense")
        case _:
            (place / "refs/pool").joinpath(first).unlink(missing_ok=True)
            (place / "packed-refs").unlink(missing_ok=True)
    for commit in (second, first):
        assert listed(pool.bring(remote, commit), commit) == ["a"]


def test_what_the_origin_does_not_have_is_said(tmp_path: Path) -> None:
    make_origin(tmp_path / "o", "acme/app", {"a": "1"})
    pool, remote = RepositoryPool(tmp_path / "pool"), Remote(f"file://{tmp_path}/o/acme/app")
    with pytest.raises(MachineError, match="does not give this commit"):
        pool.bring(remote, "f" * 40)
    with pytest.raises(InputError, match="no whole commit id"):
        pool.bring(remote, "main")
    with pytest.raises(MachineError):
        pool.bring(Remote(f"file://{tmp_path}/nowhere"), "f" * 40)


def test_old_commits_are_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "KEPT", 2)
    pool, remote = RepositoryPool(tmp_path / "pool"), Remote(f"file://{tmp_path}/o/acme/app")
    commits = [make_origin(tmp_path / "o", "acme/app", {"a": str(n)}, tag=f"v{n}") for n in range(4)]
    for commit in commits:
        place = pool.bring(remote, commit)
    kept = run_git(["for-each-ref", "--format=%(objectname)", "refs/pool"], git_dir=place).decode().split()
    assert sorted(kept) == sorted(commits[-2:])
    assert listed(pool.bring(remote, commits[0]), commits[0]) == ["a"]


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MachineError, match="can't be written"):
        RepositoryPool(tmp_path / "file/pool").bring(Remote("file:///x"), "f" * 40)
