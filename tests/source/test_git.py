"""Facts of a repository, and the working tree as a commit that leaves the repository alone (D10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runyard.job import InputError
from runyard.source import Git, committed, read_facts, server_of, snapshot
from runyard.source.git import NO_COMMIT, FactsUnderWay, repository_of
from source.repositories import commit, everything_in, git, make_repository

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "my app", {"a.txt": "a\n", "src/b.txt": "b\n", ".gitignore": "*.log\n"})


def test_facts_of_a_branch(repository: Path) -> None:
    git(repository, "remote", "add", "origin", "git@git.example.com:acme/app.git")
    facts = read_facts(str(repository / "src"))
    assert facts.root == str(repository)
    assert facts.ref == "refs/heads/main"
    assert facts.sha == git(repository, "rev-parse", "HEAD")
    assert facts.repository == "acme/app"
    assert facts.default_branch == "main"
    assert facts.commit is not None
    assert facts.commit.message == "The first commit\n\nWith a body."
    assert (facts.commit.author_name, facts.commit.committer_email) == ("A", "c@example.invalid")
    assert facts.commit.committed == "2030-01-02T03:04:05+00:00"


def test_the_default_branch_is_the_remotes_then_main_then_the_one_that_is_checked_out(repository: Path) -> None:
    git(repository, "checkout", "-q", "-b", "topic")
    assert read_facts(str(repository)).default_branch == "main"
    git(repository, "update-ref", "refs/remotes/origin/trunk", "HEAD")
    git(repository, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/trunk")
    assert read_facts(str(repository)).default_branch == "trunk"
    git(repository, "symbolic-ref", "-d", "refs/remotes/origin/HEAD")
    git(repository, "branch", "-q", "-D", "main")
    assert read_facts(str(repository)).default_branch == "topic"


def test_a_tag_called_HEAD_hides_nothing(repository: Path) -> None:
    git(repository, "update-ref", "refs/tags/HEAD", "HEAD")
    facts = read_facts(str(repository))
    assert facts.ref == "refs/heads/main"
    assert facts.sha == git(repository, "rev-parse", "refs/heads/main")


def test_questions_that_nobody_waits_for_are_ended(repository: Path) -> None:
    asked = FactsUnderWay(str(repository))
    asked.give_up()
    asked.give_up()
    assert read_facts(str(repository), under_way=FactsUnderWay(str(repository))) == read_facts(str(repository))


def test_a_repository_whose_objects_are_gone_is_wrong_input(repository: Path) -> None:
    for path in sorted((repository / ".git" / "objects").glob("??/*")):
        path.unlink()
    with pytest.raises(InputError, match="the commit of this repository can't be read"):
        read_facts(str(repository))


def test_facts_without_remote_and_without_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "dev")
    facts = read_facts(str(tmp_path))
    assert (facts.commit, facts.sha, facts.ref) == (None, NO_COMMIT, "refs/heads/dev")
    assert facts.repository == f"local/{tmp_path.name}"
    (tmp_path / "f").write_text("x")
    work = tmp_path.parent / f"{tmp_path.name}-work"
    work.mkdir()
    made = snapshot(facts, str(work))
    assert made.dirty
    assert Git(made.git_dir).text("show", f"{made.commit}:f") == "x"
    with pytest.raises(InputError, match="no commit yet"):
        committed(facts)


def test_a_detached_head_is_the_tag_it_stands_on(repository: Path) -> None:
    git(repository, "tag", "v1")
    git(repository, "checkout", "-q", "--detach")
    assert read_facts(str(repository)).ref == "refs/tags/v1"


@pytest.mark.parametrize(
    ("name", "ref"), [("v1", "refs/tags/v1"), ("old", "refs/heads/old"), ("HEAD~1", "refs/heads/main")]
)
def test_facts_at_a_ref(repository: Path, name: str, ref: str) -> None:
    first = git(repository, "rev-parse", "HEAD")
    git(repository, "tag", "v1")
    git(repository, "branch", "old")
    commit(repository, {"c": "c"}, "Two")
    facts = read_facts(str(repository), ref=name)
    assert (facts.sha, facts.ref) == (first, ref)
    assert committed(facts).commit == first


def test_an_unknown_ref_and_a_folder_without_repository(repository: Path, tmp_path: Path) -> None:
    git(repository, "branch", "feature")
    with pytest.raises(InputError, match="did you mean 'feature'"):
        read_facts(str(repository), ref="featur")
    with pytest.raises(InputError, match="no commit '--upload-pack"):
        read_facts(str(repository), ref="--upload-pack=x")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match="is in no git repository"):
        read_facts(str(empty))
    with pytest.raises(InputError, match="there is no folder"):
        read_facts(str(tmp_path / "nowhere"))


def test_D10_a_clean_tree_is_the_commit_itself(repository: Path, tmp_path: Path) -> None:
    facts = read_facts(str(repository))
    before = everything_in(repository)
    made = snapshot(facts, str(tmp_path))
    assert (made.commit, made.git_dir, made.dirty) == (facts.sha, facts.git_dir, False)
    assert everything_in(repository) == before


def test_D10_the_working_tree_is_taken_and_the_repository_left_alone(repository: Path, tmp_path: Path) -> None:
    (repository / "a.txt").write_text("changed\n")
    (repository / "new file").write_text("new\n")
    (repository / "out.log").write_text("ignored\n")
    (repository / "src" / "b.txt").unlink()
    (repository / "run.sh").write_text("#!/bin/sh\n")
    (repository / "run.sh").chmod(0o755)
    (repository / "link").symlink_to("a.txt")
    facts = read_facts(str(repository))
    before = everything_in(repository)
    made = snapshot(facts, str(tmp_path))
    assert everything_in(repository) == before
    assert made.dirty
    assert made.commit != facts.sha
    listed = Git(made.git_dir).text("ls-tree", "-r", "--format=%(objectmode) %(path)", made.commit).split("\n")
    assert listed == ["100644 .gitignore", "100644 a.txt", "120000 link", "100644 new file", "100755 run.sh"]
    assert Git(made.git_dir).text("show", f"{made.commit}:a.txt") == "changed"
    assert Git(made.git_dir).text("rev-parse", f"{made.commit}^") == facts.sha
    other = tmp_path / "again"
    other.mkdir()
    assert snapshot(facts, str(other)).commit == made.commit, "the same tree is the same commit"


def test_D10_what_is_staged_stays_staged(repository: Path, tmp_path: Path) -> None:
    (repository / "staged").write_text("1")
    git(repository, "add", "staged")
    (repository / "staged").write_text("2")
    made = snapshot(read_facts(str(repository)), str(tmp_path))
    assert Git(made.git_dir).text("show", f"{made.commit}:staged") == "2"
    assert git(repository, "diff", "--cached", "--name-only") == "staged"
    assert git(repository, "show", ":staged") == "1"


def test_D10_in_a_second_work_tree(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "-q", str(tmp_path / "tree"), "-b", "side")
    (tmp_path / "tree" / "extra").write_text("x")
    facts = read_facts(str(tmp_path / "tree"))
    assert facts.ref == "refs/heads/side"
    work = tmp_path / "w"
    work.mkdir()
    made = snapshot(facts, str(work))
    assert Git(made.git_dir).text("show", f"{made.commit}:extra") == "x"


@pytest.mark.parametrize(
    ("url", "repository", "server"),
    [
        ("git@github.com:acme/app.git", "acme/app", "https://github.com"),
        ("https://github.com/acme/app", "acme/app", "https://github.com"),
        ("https://token@git.example.com:8443/a/b/c.git/", "b/c", "https://git.example.com"),
        ("ssh://git@host.example/o/r", "o/r", "https://host.example"),
        ("http://forge.example/o/r.git", "o/r", "http://forge.example"),
        ("/srv/git/x/y.git", "", "https://github.com"),
        ("", "", "https://github.com"),
    ],
)
def test_names_of_remotes(url: str, repository: str, server: str) -> None:
    assert repository_of(url) == repository
    assert server_of(url) == server
