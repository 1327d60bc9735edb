"""The picture of a tree inside a sandbox grows until `hashFiles` has its answer (job-semantics 14)."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from runyard.engine.hash_files import hash_files
from runyard.engine.hashes import _HASH, _LIST, _RESOLVE, MOST_ROUNDS, SandboxTree
from runyard.job import InputError

if TYPE_CHECKING:
    from pathlib import Path


def inside(script: str, paths: list[str]) -> bytes:
    stdin = b"".join(os.fsencode(path) + b"\0" for path in paths)
    return subprocess.run(["/bin/sh", "-c", script], input=stdin, capture_output=True, timeout=20, check=False).stdout


def answer(workspace: Path, *arguments: str) -> tuple[tuple[str, ...], str]:
    """The loop of `hash_in_sandbox` with the scripts run here."""
    tree = SandboxTree()
    for _ in range(MOST_ROUNDS):
        tree.begin()
        found = hash_files(tree, arguments, workspace=str(workspace), home=None)
        if tree.unlisted:
            tree.take_listing(sorted(tree.unlisted), inside(_LIST, sorted(tree.unlisted)))
        elif tree.unresolved:
            tree.take_targets(sorted(tree.unresolved), inside(_RESOLVE, sorted(tree.unresolved)))
        elif tree.unhashed:
            tree.take_digests(sorted(tree.unhashed), inside(_HASH, sorted(tree.unhashed)))
        else:
            return tuple(file.removeprefix(f"{workspace}/") for file in found.files), found.hash
    raise AssertionError("it did not come to an end")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "ws"
    (root / "d" / "e").mkdir(parents=True)
    (root / "f").write_text("hello\n")
    (root / "d" / "a").write_text("one\n")
    (root / "d" / "e" / "b").write_text("two\n")
    (root / "d" / "link").symlink_to("../f")
    (root / "d" / "dirlink").symlink_to("e")
    return root


def of(*contents: str) -> str:
    total = hashlib.sha256(b"".join(hashlib.sha256(each.encode()).digest() for each in contents))
    return total.hexdigest()


def test_O27_O28_O29_values(workspace: Path) -> None:
    assert answer(workspace, "none/**") == ((), "")
    assert answer(workspace, "f")[1].startswith("ecb65bb9")
    assert answer(workspace, "*.{js,ts}") == ((), "")
    assert answer(workspace, "d/a", "d/e/b")[1] == of("one\n", "two\n")


def test_links_to_folders_are_followed_only_where_asked(workspace: Path) -> None:
    assert answer(workspace, "d") == (("d/a", "d/e/b", "d/link"), of("one\n", "two\n", "hello\n"))
    followed = answer(workspace, "--follow-symbolic-links", "d")
    assert followed == (("d/a", "d/dirlink/b", "d/e/b", "d/link"), of("one\n", "two\n", "two\n", "hello\n"))


def test_a_link_that_leads_to_nothing_fails(workspace: Path) -> None:
    (workspace / "broken").symlink_to("nowhere")
    assert answer(workspace, "f")[0] == ("f",)
    with pytest.raises(InputError, match="link to nothing"):
        answer(workspace, "**")


def test_links_in_a_ring_end(workspace: Path) -> None:
    (workspace / "d" / "up").symlink_to("..")
    (workspace / "self").symlink_to("self")
    assert "d/a" in answer(workspace, "--follow-symbolic-links", "d/**")[0]


def test_odd_names(workspace: Path) -> None:
    for name in ("a b", "new\nline", "back\\slash", "-x", "é"):
        (workspace / "odd").mkdir(exist_ok=True)
        (workspace / "odd" / name).write_text(name)
    files, found = answer(workspace, "odd/*")
    assert files == ("odd/-x", "odd/a b", "odd/back\\slash", "odd/new\nline", "odd/é")
    assert found == of(*(file.removeprefix("odd/") for file in files))


def test_a_name_that_is_not_utf8_is_an_error(workspace: Path) -> None:
    (workspace / os.fsdecode(b"\xff")).write_text("x")
    with pytest.raises(InputError, match="UTF-8"):
        answer(workspace, "**")


def test_files_outside_of_the_workspace_are_ignored(workspace: Path) -> None:
    assert answer(workspace, "/etc/passwd") == ((), "")


def test_an_answer_that_is_not_whole_is_refused() -> None:
    tree = SandboxTree()
    with pytest.raises(InputError, match="in full"):
        tree.take_listing(["/w"], b"d/w\0")
    with pytest.raises(InputError, match="could not be read"):
        tree.take_targets(["/w/l"], b"e")
    with pytest.raises(InputError, match="not every file"):
        tree.take_digests(["/w/f"], b"sha256sum: /w/f: Permission denied\n")


@pytest.mark.skipif(shutil.which("busybox") is None, reason="busybox is not installed")
def test_the_scripts_run_under_busybox(workspace: Path) -> None:
    for script in (_LIST, _RESOLVE, _HASH):
        stdin = os.fsencode(str(workspace / "f")) + b"\0"
        done = subprocess.run(
            ["busybox", "sh", "-c", script], input=stdin, capture_output=True, timeout=20, check=False
        )
        assert str(workspace).encode() in done.stdout
