"""Reading a repository over smart HTTP: to the job's token, this repository alone, and never a push."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from runyard.service.server import Server
from runyard.service.variables import git_variables
from runyard.source.git import read_facts
from runyard.source.worktree import snapshot
from service.clients import run
from source.repositories import ENVIRONMENT, git

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
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


# --- git itself, through a socket


@contextlib.asynccontextmanager
async def served(house: House, git_dir: str) -> AsyncIterator[dict[str, str]]:
    """The environment of a git that reads `https://github.com/octo/tools` from there."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    base = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    client = house.client(git_dir=git_dir)
    server = Server(client.gateway)
    taken: set[asyncio.Task[None]] = set()

    async def accept() -> None:
        while True:
            connection, _ = await asyncio.get_running_loop().sock_accept(listening)
            taken.add(asyncio.create_task(server.take(connection)))

    accepting = asyncio.create_task(accept())
    try:
        yield {**ENVIRONMENT, **git_variables(base, "https://github.com", "octo/tools", client.token)}
    finally:
        for task in (accepting, *taken):
            task.cancel()
        await asyncio.gather(accepting, *taken, return_exceptions=True)
        listening.close()


async def ask_git(folder: Path, env: dict[str, str], *arguments: str) -> str:
    def work() -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], env=env, capture_output=True, text=True, check=False, timeout=20
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return await asyncio.to_thread(work)


def test_git_fetches_a_branch_a_tag_a_commit_in_part(house: House, repository: Path, tmp_path: Path) -> None:
    """What the original checkout does: names, unadvertised commits, depth, filter with a late blob."""
    old = head(repository)
    git(repository, "tag", "-a", "-m", "v", "v1")
    (repository / "a").write_text("b\n")
    git(repository, "commit", "-q", "-am", "Two")
    git(repository, "branch", "other")
    git(repository, "commit", "-q", "--amend", "-m", "Hidden")
    hidden = head(repository)
    git(repository, "reset", "-q", "--hard", old)

    async def work() -> None:
        into = tmp_path / "into"
        into.mkdir()
        async with served(house, str(repository / ".git")) as env:
            await ask_git(into, env, "init", "-q")
            await ask_git(into, env, "remote", "add", "origin", "https://github.com/octo/tools")
            listed = await ask_git(into, env, "ls-remote", "--symref", "origin", "HEAD")
            assert listed.startswith("ref: refs/heads/main\tHEAD")
            fetch = ("fetch", "-q", "--no-tags", "--depth=1")
            await ask_git(into, env, *fetch, "origin", "+refs/tags/v1:refs/tags/v1", f"+{hidden}:refs/remotes/origin/x")
            assert await ask_git(into, env, "cat-file", "-t", "v1") == "tag"
            assert await ask_git(into, env, "rev-list", "--count", "origin/x") == "1"
            await ask_git(into, env, "fetch", "-q", "--unshallow", "origin", "+refs/heads/*:refs/remotes/origin/*")
            assert await ask_git(into, env, "rev-list", "--count", "origin/other") == "2"
            partly = tmp_path / "partly"
            clone = ("clone", "-q", "--no-checkout", "--filter=blob:none", "https://github.com/octo/tools", str(partly))
            await ask_git(into, env, *clone)
            missing = await ask_git(partly, env, "rev-list", "--objects", "--missing=print", "HEAD")
            assert "?" in missing
            assert await ask_git(partly, env, "show", "HEAD:a") == "a", "what was left out comes when it is needed"

    run(work)


def test_the_working_tree_is_served_beside_the_branches(house: House, repository: Path, tmp_path: Path) -> None:
    git(repository, "branch", "other")
    git(repository, "pack-refs", "--all")
    git(repository, "tag", "loose")
    (repository / "a").write_text("edited\n")
    made = snapshot(read_facts(str(repository)), str(tmp_path))
    assert made.dirty

    async def work() -> None:
        into = tmp_path / "into"
        into.mkdir()
        async with served(house, made.git_dir) as env:
            await ask_git(into, env, "init", "-q")
            listed = await ask_git(into, env, "ls-remote", "https://github.com/octo/tools")
            names = [line.partition("\t")[2] for line in listed.splitlines()]
            assert names == ["HEAD", "refs/heads/main", "refs/heads/other", "refs/tags/loose"]
            await ask_git(into, env, "fetch", "-q", "--depth=1", "https://github.com/octo/tools", made.commit)
            assert await ask_git(into, env, "show", "FETCH_HEAD:a") == "edited"

    run(work)
