"""The built-in checkout: its inputs, and the tree it leaves (D10 in part)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from runyard.action.checkout import CheckoutPlan, TreeCache, declares, plan_checkout
from runyard.job import Checkout, InputError

ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}


def git(folder: Path | str, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], env=ENV, capture_output=True, text=True, check=True, timeout=20
    )
    return done.stdout.strip()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    repository = tmp_path / "source"
    repository.mkdir()
    git(repository, "init", "-q", "-b", "main")
    (repository / ".gitattributes").write_text("hidden export-ignore\n*.id ident\n")
    (repository / "hidden").write_text("h\n")
    (repository / "run.sh").write_text("#!/bin/sh\n")
    (repository / "run.sh").chmod(0o755)
    (repository / "link").symlink_to("run.sh")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "one")
    git(repository, "tag", "v1")
    (repository / "second").write_text("2\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "two")
    return repository


def make(source: Path, cache: Path, plan: CheckoutPlan | None = None, ref: str = "refs/heads/main") -> Path:
    wanted = Checkout(repository="octo/demo", commit=git(source, "rev-parse", "HEAD"), git_dir=str(source / ".git"))
    made = TreeCache(str(cache)).get(wanted, plan or CheckoutPlan(), ref=ref, server_url="https://github.com")
    return Path(made.folder)


def test_a_branch_is_checked_out_shallow_clean_and_with_its_origin(source: Path, tmp_path: Path) -> None:
    tree = make(source, tmp_path / "cache")
    assert git(tree, "status", "--porcelain") == ""
    assert git(tree, "symbolic-ref", "HEAD") == "refs/heads/main"
    assert git(tree, "rev-parse", "HEAD", "refs/remotes/origin/main").split() == [git(source, "rev-parse", "HEAD")] * 2
    assert git(tree, "rev-list", "--count", "HEAD") == "1"
    assert git(tree, "remote", "get-url", "origin") == "https://github.com/octo/demo"
    assert git(tree, "rev-parse", "--abbrev-ref", "main@{upstream}") == "origin/main"
    assert {each.name for each in tree.iterdir()} == {".git", ".gitattributes", "hidden", "run.sh", "link", "second"}
    assert (tree / "run.sh").stat().st_mode & 0o111
    assert (tree / "link").is_symlink()


def test_a_tag_and_a_pull_request_are_detached(source: Path, tmp_path: Path) -> None:
    for ref in ("refs/tags/v2", "refs/pull/3/merge"):
        tree = make(source, tmp_path / "cache", ref=ref)
        with pytest.raises(subprocess.CalledProcessError):
            git(tree, "symbolic-ref", "-q", "HEAD")
        assert git(tree, "rev-parse", "HEAD") == git(source, "rev-parse", "HEAD")


def test_the_whole_history_has_branches_and_tags(source: Path, tmp_path: Path) -> None:
    git(source, "branch", "other", "HEAD~1")
    tree = make(source, tmp_path / "cache", CheckoutPlan(depth=0))
    assert git(tree, "rev-list", "--count", "HEAD") == "2"
    assert git(tree, "tag") == "v1"
    assert git(tree, "rev-parse", "origin/other") == git(source, "rev-parse", "HEAD~1")


@pytest.mark.parametrize("ref", ["v1", "refs/tags/v1", "HEAD~1-as-commit", "other"])
def test_a_ref_of_the_repository(source: Path, tmp_path: Path, ref: str) -> None:
    git(source, "branch", "other", "HEAD~1")
    wanted = git(source, "rev-parse", "HEAD~1")
    tree = make(source, tmp_path / "cache", CheckoutPlan(ref=wanted if "commit" in ref else ref))
    assert git(tree, "rev-parse", "HEAD") == wanted
    assert not (tree / "second").exists()


def test_an_unknown_ref_is_named(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nosuch"):
        make(source, tmp_path / "cache", CheckoutPlan(ref="nosuch"))
    with pytest.raises(InputError, match="--upload-pack"):
        make(source, tmp_path / "cache", CheckoutPlan(ref="--upload-pack=touch x"))


def test_the_same_tree_is_made_once_and_another_commit_anew(source: Path, tmp_path: Path) -> None:
    first = make(source, tmp_path / "cache")
    assert make(source, tmp_path / "cache") == first
    git(source, "commit", "-q", "--allow-empty", "-m", "three")
    assert make(source, tmp_path / "cache") != first


def test_the_repository_is_read_and_not_written(source: Path, tmp_path: Path) -> None:
    def state() -> dict[str, int]:
        return {str(each): each.lstat().st_mtime_ns for each in sorted(source.rglob("*"))}

    before = state()
    make(source, tmp_path / "cache", CheckoutPlan(depth=0))
    assert state() == before


def test_hooks_and_filters_of_a_repository_do_not_run_outside(source: Path, tmp_path: Path) -> None:
    evil = tmp_path / "ran"
    hook = source / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {evil}\n")
    hook.chmod(0o755)
    git(source, "config", "filter.x.smudge", f"touch {evil}; cat")
    (source / ".gitattributes").write_text("* filter=x\n")
    git(source, "add", "-A")
    git(source, "commit", "-q", "-m", "filter")
    evil.unlink(missing_ok=True)
    make(source, tmp_path / "cache")
    assert not evil.exists()


@pytest.mark.parametrize(
    ("inputs", "plan"),
    [
        ({}, CheckoutPlan()),
        ({"fetch-depth": "0", "path": "sub/x", "clean": "false"}, CheckoutPlan(depth=0, path="sub/x", clean=False)),
        ({"Ref": "main", "token": "t", "persist-credentials": "false"}, CheckoutPlan(ref="main")),
        ({"repository": "Octo/Demo", "submodules": "false", "lfs": "false", "sparse-checkout": ""}, CheckoutPlan()),
        ({"fetch-tags": "true"}, CheckoutPlan(tags=True)),
    ],
)
def test_inputs(inputs: dict[str, str], plan: CheckoutPlan) -> None:
    assert plan_checkout(inputs, "octo/demo") == plan


def test_inputs_that_it_cannot_give_are_all_named() -> None:
    with pytest.raises(InputError) as caught:
        plan_checkout({"repository": "other/repo", "submodules": "true", "lfs": "true", "nosuch": "x"}, "octo/demo")
    for name in ("other/repo", "submodules", "lfs", "nosuch"):
        assert name in str(caught.value)


@pytest.mark.parametrize("path", ["../x", "/etc", "a/../../b"])
def test_a_path_out_of_the_workspace_is_refused(path: str) -> None:
    with pytest.raises(InputError, match="not under the workspace"):
        plan_checkout({"path": path}, "octo/demo")


@pytest.mark.parametrize(
    ("path", "ref", "known"),
    [
        ("", "v4", True),
        ("", "v4.2.2", True),
        ("", "f" * 40, True),
        ("", "v1", False),
        ("sub", "v4", False),
        ("", "x", False),
    ],
)
def test_declared_versions(path: str, ref: str, known: bool) -> None:
    assert declares(path, ref) is known
