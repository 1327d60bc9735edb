"""The built-in checkout: its inputs, and the tree it leaves (D10 in part)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from runyard.action.checkout import CheckoutPlan, Reach, Repositories, TreeCache, declares, plan_checkout
from runyard.action.checkout_build import submodule_url
from runyard.action.checkout_inputs import refuse_fork
from runyard.action.remotes import Remotes
from runyard.job import Checkout, InputError, MachineError

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
        (
            {"Ref": "main", "token": "t", "persist-credentials": "false"},
            CheckoutPlan(ref="main", token="t", persist=False),
        ),
        ({"repository": "Octo/Demo", "submodules": "false", "lfs": "false", "sparse-checkout": ""}, CheckoutPlan()),
        ({"fetch-tags": "true"}, CheckoutPlan(tags=True)),
    ],
)
def test_inputs(inputs: dict[str, str], plan: CheckoutPlan) -> None:
    assert plan_checkout(inputs, "octo/demo") == plan


def test_inputs_that_it_cannot_give_are_all_named() -> None:
    with pytest.raises(InputError) as caught:
        plan_checkout({"ssh-key": "k", "lfs": "true", "nosuch": "x"}, "octo/demo")
    for name in ("ssh-key", "lfs", "nosuch"):
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


# --- what newer versions ask for


@pytest.mark.parametrize(
    ("inputs", "known"),
    [
        ({"lfs": "false", "ssh-key": ""}, True),
        ({"LFS": "true"}, False),
        ({"lfs": None}, False),
        ({"ssh-key": None}, False),
        ({"ref": None, "submodules": "recursive"}, True),
    ],
)
def test_inputs_with_which_the_original_runs(inputs: dict[str, str | None], known: bool) -> None:
    assert declares("", "v4", inputs) is known


@pytest.mark.parametrize(
    ("depth", "read"), [("", 1), ("0", 0), ("3", 3), ("2.9", 2), ("-1", 0), ("many", 0), ("nan", 0), ("inf", 0)]
)
def test_a_depth_is_read_as_the_original_reads_it(depth: str, read: int) -> None:
    assert plan_checkout({"fetch-depth": depth}, "o/r").depth == read


def test_lines_of_a_sparse_checkout_and_words_that_are_not_true() -> None:
    given = {"sparse-checkout": " docs \n\nsrc\n", "clean": "no", "submodules": "Recursive", "persist-credentials": ""}
    plan = plan_checkout(given, "o/r")
    assert (plan.sparse, plan.clean, plan.submodules, plan.recursive) == (("docs", "src"), False, True, True)
    assert plan.persist
    for wrong in ("r", "/r", "o/", "a/b/c"):
        with pytest.raises(InputError, match="owner"):
            plan_checkout({"repository": wrong}, "o/r")


FORK = {
    "repository": {"id": 1},
    "pull_request": {"head": {"sha": "a" * 40, "repo": {"id": 2, "full_name": "fork/r"}}, "merge_commit_sha": "b" * 40},
}
RUN = {
    "repository": {"id": 1},
    "workflow_run": {
        "event": "pull_request",
        "head_repository": {"id": 2, "full_name": "fork/r"},
        "head_sha": "c" * 40,
    },
}


@pytest.mark.parametrize(
    ("event_name", "event", "inputs", "refused"),
    [
        ("pull_request_target", FORK, {}, False),
        ("pull_request_target", FORK, {"ref": "A" * 40}, True),
        ("pull_request_target", FORK, {"ref": "refs/pull/3/merge"}, True),
        ("pull_request_target", FORK, {"ref": "main"}, False),
        ("pull_request_target", FORK, {"repository": "Fork/R"}, True),
        ("pull_request_target", FORK, {"ref": "a" * 40, "allow-unsafe-pr-checkout": "true"}, False),
        ("pull_request_target", {**FORK, "repository": {"id": 2}}, {"ref": "a" * 40}, False),
        ("pull_request", FORK, {"ref": "a" * 40}, False),
        ("workflow_run", RUN, {"ref": "c" * 40}, True),
        ("workflow_run", {**RUN, "workflow_run": {"event": "push"}}, {"ref": "c" * 40}, False),
    ],
)
def test_code_of_a_fork_in_a_workflow_with_the_rights_of_the_base(
    event_name: str, event: dict[str, object], inputs: dict[str, str], refused: bool
) -> None:
    plan = plan_checkout(inputs, "o/r")
    if refused:
        with pytest.raises(InputError, match="fork pull request"):
            refuse_fork(plan, event_name, event, "o/r")
    else:
        refuse_fork(plan, event_name, event, "o/r")


@pytest.mark.parametrize(
    ("url", "means"),
    [
        ("../lib.git", "https://github.com/octo/lib.git"),
        ("../../other/lib", "https://github.com/other/lib"),
        ("../../../../../etc", "https://github.com/etc"),
        ("git@github.com:o/r.git", "https://github.com/o/r.git"),
        ("https://example.org/x", "https://example.org/x"),
    ],
)
def test_what_the_address_of_a_submodule_means(url: str, means: str) -> None:
    assert submodule_url(url, "https://github.com/octo/demo") == means


@pytest.mark.parametrize(
    "url", ["file:///etc", "ext::sh -c x", "ssh://git@example.org/x", "https://u:p@github.com/o/r"]
)
def test_a_submodule_is_read_over_https_alone(url: str) -> None:
    with pytest.raises(InputError, match="not read over https"):
        Repositories(Reach()).submodule(url, "s", "a" * 40)


def test_hosts_that_are_not_on_the_list_are_not_asked() -> None:
    for url in ("https://example.org/o/r", "http://169.254.169.254/latest", "https://github.com.example.org/o/r"):
        with pytest.raises(MachineError, match="not fetched from"):
            Repositories(Reach()).submodule(url, "s", "a" * 40)
    with pytest.raises(MachineError, match=r"not fetched from example\.org"):
        Repositories(Reach(), server="https://example.org").other("o/r")
    remote = Repositories(Reach(token="tok")).submodule("https://github.com/o/r/x", "s", "a" * 40)
    assert "GIT_CONFIG_VALUE_0" in remote.env
    allowed = Reach(token="tok", remotes=Remotes(hosts=("github.com", "example.org")))
    assert "GIT_CONFIG_VALUE_0" not in Repositories(allowed).submodule("https://example.org/o/r", "s", "a" * 40).env


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", ".git/evil"])
def test_a_submodule_whose_name_leads_elsewhere(source: Path, tmp_path: Path, name: str) -> None:
    (source / ".gitmodules").write_text(f'[submodule "{name}"]\n\tpath = a\n\turl = ../x\n')
    git(source, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},a")
    git(source, "add", ".gitmodules")
    git(source, "commit", "-q", "-m", "evil")
    with pytest.raises(InputError, match="leads elsewhere"):
        make(source, tmp_path / "cache", CheckoutPlan(submodules=True))
    assert not [each for each in (tmp_path / "cache").rglob("*") if "evil" in each.name]


def test_an_annotated_tag_stays_one_and_other_plans_are_other_trees(source: Path, tmp_path: Path) -> None:
    git(source, "tag", "-a", "-m", "two", "v2")
    tree = make(source, tmp_path / "cache", CheckoutPlan(ref="v2"))
    assert git(tree, "cat-file", "-t", "v2") == "tag"
    plans = [
        CheckoutPlan(),
        CheckoutPlan(sparse=("x",)),
        CheckoutPlan(sparse=("x",), cone=False),
        CheckoutPlan(tags=True),
    ]
    made = [make(source, tmp_path / "cache", plan) for plan in plans]
    assert len(set(made)) == len(plans)
    assert {each.name for each in made[1].iterdir()} == {".git", ".gitattributes", "hidden", "run.sh", "link", "second"}
    assert {each.name for each in made[2].iterdir()} == {".git"}
