"""Which files an event changed: what path filters look at (workflow-language 4.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runyard.source.git import NO_COMMIT, TREE_DEADLINE_S, Git, GitFailedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from runyard.job import Json
    from runyard.source.git import GitFacts

FILE_LIMIT: Final = 3_000
"""Changed files beyond this many are not looked at, as on GitHub."""


def changed_files(
    event: str, payload: Mapping[str, Json], facts: GitFacts, *, with_working_tree: bool
) -> tuple[str, ...] | None:
    """Repository-relative paths, or None where nothing can be compared (then path filters let the event pass).

    A push compares `before` with the commit (a new branch: with the parent), a pull request its base with three dots;
    with the working tree what isn't committed yet counts as well. Files that the payload's commits name are taken as
    they are.
    """
    listed = _listed(payload) if event == "push" else None
    if listed is not None:
        return listed[:FILE_LIMIT]
    git = Git(facts.root)
    try:
        if event in ("pull_request", "pull_request_target"):
            files = _since_base(git, payload, facts)
        elif event == "push":
            files = _pushed(git, payload, facts)
        else:
            return None
        if files is not None and with_working_tree:
            files += _uncommitted(git, facts)
    except GitFailedError:
        return None
    return None if files is None else tuple(dict.fromkeys(files))[:FILE_LIMIT]


def _listed(payload: Mapping[str, Json]) -> tuple[str, ...] | None:
    commits = payload.get("commits")
    if not isinstance(commits, list):
        return None
    found: list[str] = []
    named = False
    for commit in commits:
        for key in ("added", "removed", "modified"):
            paths = commit.get(key) if isinstance(commit, dict) else None
            if isinstance(paths, list):
                named = True
                found += [path for path in paths if isinstance(path, str)]
    return tuple(dict.fromkeys(found)) if named else None


def _pushed(git: Git, payload: Mapping[str, Json], facts: GitFacts) -> list[str] | None:
    if facts.commit is None:
        return []
    before = payload.get("before")
    if not isinstance(before, str) or before == NO_COMMIT or not has_commit(git, before):
        if not facts.commit.parents:
            return _split(git.run("ls-tree", "-r", "--name-only", "-z", "--full-tree", facts.sha))
        before = facts.commit.parents[0]
    return _split(git.run("diff", "--name-only", "--no-renames", "-z", "--end-of-options", before, facts.sha))


def _since_base(git: Git, payload: Mapping[str, Json], facts: GitFacts) -> list[str] | None:
    if facts.commit is None:
        return []
    pull = payload.get("pull_request")
    base = pull.get("base") if isinstance(pull, dict) else None
    names = [base.get("sha"), base.get("ref")] if isinstance(base, dict) else []
    branch = names[1] if len(names) > 1 else None
    tried: Iterable[object] = (f"refs/remotes/origin/{branch}", f"refs/heads/{branch}", *names)
    for name in tried:
        if isinstance(name, str) and name != NO_COMMIT and has_commit(git, name):
            return _split(
                git.run("diff", "--name-only", "--no-renames", "-z", "--end-of-options", f"{name}...{facts.sha}")
            )
    return None


def _uncommitted(git: Git, facts: GitFacts) -> list[str]:
    files: list[str] = []
    if facts.commit is not None:
        files = _split(git.run("diff", "--name-only", "--no-renames", "-z", "HEAD", "--", deadline_s=TREE_DEADLINE_S))
    others = git.run("ls-files", "--others", "--exclude-standard", "-z", "--full-name", deadline_s=TREE_DEADLINE_S)
    return files + _split(others)


def has_commit(git: Git, name: str) -> bool:
    """Whether git finds a commit of that name."""
    return git.maybe("rev-parse", "--verify", "-q", "--end-of-options", f"{name}^{{commit}}") is not None


def _split(output: bytes) -> list[str]:
    return [path.decode(errors="surrogateescape") for path in output.split(b"\0") if path]
