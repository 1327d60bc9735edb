"""The working tree as a commit that nobody made: what `actions/checkout` gives in a local run (deviation D10).

A temporary index and an object folder of our own, with the repository's objects as an alternate, make a tree of what is
there now, ignored files left out. The rule it keeps: not one byte is written into the user's repository.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.job import InputError
from runyard.source.git import TREE_DEADLINE_S, Git, GitFacts, GitFailedError

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONFIG: Final = "[core]\n\trepositoryformatversion = 1\n\tfilemode = true\n\tbare = true\n"
_NAME: Final = {
    "GIT_AUTHOR_NAME": "runyard",
    "GIT_AUTHOR_EMAIL": "runyard@localhost.invalid",
    "GIT_COMMITTER_NAME": "runyard",
    "GIT_COMMITTER_EMAIL": "runyard@localhost.invalid",
}


class Snapshot(msgspec.Struct, frozen=True):
    """A commit to check out, its tree, and a git folder that has both. `dirty`: it differs from the user's commit."""

    commit: str
    tree: str
    git_dir: str
    dirty: bool


def committed(facts: GitFacts) -> Snapshot:
    """The commit itself. Raises InputError where the repository has none yet."""
    if facts.commit is None:
        raise InputError("the repository has no commit yet", code="source.no_commit", remedy="git commit")
    return Snapshot(facts.commit.sha, facts.commit.tree, facts.git_dir, False)


def snapshot(facts: GitFacts, folder: str) -> Snapshot:
    """The working tree as it is, as a commit in a bare repository made below `folder` (absolute, ours, empty).

    Where nothing differs from the commit it is that commit in the user's repository. Raises InputError for what git
    can't read. `folder` must live as long as the run; safe to repeat with another one.
    """
    git = Git(facts.root)
    bare = Path(folder) / "snapshot.git"
    env = _outside(facts, bare, Path(git.folder, git.text("rev-parse", "--git-dir")).resolve())
    try:
        git.run("add", "-A", "--ignore-errors", env=env, deadline_s=TREE_DEADLINE_S)
        tree = git.run("write-tree", env=env, deadline_s=TREE_DEADLINE_S).decode().strip()
        parents: list[str] = []
        when: dict[str, str] = {}
        if facts.commit is not None:
            if tree == facts.commit.tree:
                return Snapshot(facts.commit.sha, tree, facts.git_dir, False)
            parents = ["-p", facts.commit.sha]
            when = {"GIT_AUTHOR_DATE": facts.commit.committed, "GIT_COMMITTER_DATE": facts.commit.committed}
        made = git.run(
            "commit-tree", "--no-gpg-sign", tree, *parents, env={**env, **_NAME, **when}, stdin=b"The working tree\n"
        )
    except GitFailedError as failed:
        raise InputError(
            f"git could not read the working tree: {failed.message}",
            code="source.working_tree",
            remedy="--ref HEAD runs the commit instead",
        ) from failed
    return Snapshot(made.decode().strip(), tree, str(bare), True)


def _outside(facts: GitFacts, bare: Path, git_dir: Path) -> Mapping[str, str]:
    """A bare repository of ours beside the user's, and the environment that makes git write there."""
    objects = bare / "objects"
    (objects / "info").mkdir(parents=True, mode=0o700)
    theirs = Path(facts.git_dir) / "objects"
    # Whoever fetches from here finds the user's branches and tags; nothing writes a reference here.
    (bare / "refs").symlink_to(Path(facts.git_dir) / "refs")
    (bare / "packed-refs").symlink_to(Path(facts.git_dir) / "packed-refs")
    (bare / "HEAD").write_text(f"ref: {facts.ref if facts.ref.startswith('refs/heads/') else 'refs/heads/main'}\n")
    (bare / "config").write_text(_CONFIG + _extensions(facts))
    (objects / "info" / "alternates").write_bytes(os.fsencode(theirs) + b"\n")
    index = bare / "index"
    known = git_dir / "index"
    if known.exists():
        # With its time stamp: git tells by it which files may have changed since the index was written.
        shutil.copy2(known, index)
    return {
        "GIT_INDEX_FILE": str(index),
        "GIT_OBJECT_DIRECTORY": str(objects),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(theirs),
    }


def _extensions(facts: GitFacts) -> str:
    """A repository of SHA-256 objects needs one beside it that says so."""
    if facts.commit is None or len(facts.commit.sha) == 40:
        return ""
    return "[extensions]\n\tobjectFormat = sha256\n"
