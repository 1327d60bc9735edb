"""Reading a repository over smart HTTP: to the job's token, this repository alone, and never a push."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from service.clients import run
from source.repositories import ENVIRONMENT, git

if TYPE_CHECKING:
    from pathlib import Path

    from service.clients import House

REFS = "/info/refs?service=git-upload-pack"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "a").write_text("a\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "One")
    return folder


def head(folder: Path) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=True, env=ENVIRONMENT
    )
    return done.stdout.strip()


@pytest.mark.parametrize("protocol", ["", "version=2"])
def test_refs_are_told_in_the_protocol_that_was_asked_for(house: House, repository: Path, protocol: str) -> None:
    async def work() -> None:
        client = house.client(git_dir=str(repository / ".git"))
        headers = {"Git-Protocol": protocol} if protocol else {}
        answer = await client.ask("GET", f"/git/octo/tools{REFS}", headers=headers)
        assert (answer.status, answer.headers["content-type"]) == (200, "application/x-git-upload-pack-advertisement")
        assert (b"version 2" in answer.body) == bool(protocol)
        assert (head(repository).encode() in answer.body) != bool(protocol)
        listed = await client.ask(
            "POST",
            "/git/octo/tools.git/git-upload-pack",
            b"0014command=ls-refs\n00010009peel\n0000",
            headers={"Git-Protocol": "version=2", "Content-Type": "application/x-git-upload-pack-request"},
        )
        assert head(repository).encode() in listed.body

    run(work)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/git/octo/tools/info/refs?service=git-receive-pack", 403),
        ("GET", "/git/octo/tools/info/refs", 403),
        ("POST", "/git/octo/tools/git-receive-pack", 404),
        ("GET", "/git/octo/tools/git-upload-pack", 404),
        ("GET", "/git/octo/tools/objects/info/packs", 404),
        ("GET", "/git/octo/tools/config", 404),
        ("GET", f"/git/octo/tools-other{REFS}", 404),
        ("GET", f"/git/../../etc{REFS}", 404),
        ("GET", f"/git/octo/other{REFS}", 404),
    ],
)
def test_nothing_else_is_served(house: House, repository: Path, method: str, path: str, status: int) -> None:
    async def work() -> None:
        client = house.client(git_dir=str(repository / ".git"))
        assert (await client.ask(method, path)).status == status
        assert (await client.ask(method, path, token="x.y.z")).status == 403

    run(work)


def test_a_job_without_a_repository_has_none_to_read(house: House) -> None:
    async def work() -> None:
        assert (await house.client().ask("GET", f"/git/octo/tools{REFS}")).status == 404

    run(work)


def test_configuration_of_the_repository_starts_nothing(house: House, repository: Path, tmp_path: Path) -> None:
    async def work() -> None:
        mark = tmp_path / "ran"
        git(repository, "config", "core.fsmonitor", f"touch {mark}")
        git(repository, "config", "uploadpack.packObjectsHook", f"touch {mark}")
        git(repository, "config", "http.receivepack", "true")
        client = house.client(git_dir=str(repository / ".git"))
        assert (await client.ask("GET", f"/git/octo/tools{REFS}")).status == 200
        want = f"0032want {head(repository)}\n00000009done\n".encode()
        kind = {"Content-Type": "application/x-git-upload-pack-request"}
        answer = await client.ask("POST", "/git/octo/tools/git-upload-pack", want, headers=kind)
        assert b"PACK" in answer.body
        refused = await client.ask("GET", "/git/octo/tools/info/refs?service=git-receive-pack")
        assert refused.status == 403
        assert not mark.exists()

    run(work)
