"""`hashFiles`: which files of a workspace match, in which order, and the hash of their hashes (job-semantics 14).

`hash_files` is a function of a Tree; who reads the files, and from which side of a sandbox, is the tree's business.
Paths are absolute and as the job sees them.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, TypeAlias

from runyard.engine.glob_patterns import DIRECTORY, FILE, Matcher, Progress, read_patterns, search_paths
from runyard.job import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

FOLLOW: Final = "--follow-symbolic-links"
TIMEOUT_S: Final = 120.0
"""How long GitHub's own may take; the caller's `check` keeps it."""

Kind: TypeAlias = Literal["file", "directory", "link", "other", "unnameable"]
"""`other` can't be hashed (a pipe, a device); `unnameable` is what has a name that isn't UTF-8."""


class Entry(NamedTuple):
    """A name in a directory and what stands there, a link being a link."""

    name: str
    kind: Kind


class Tree(Protocol):
    """Read access to files by paths as the job sees them. Links on the way to a path are followed, as by a kernel.

    Each method raises InputError for what it may not or can't read; that the path isn't there is an answer.
    """

    def kind(self, path: str) -> Kind | None:
        """What stands at a path; a link at its end is a link. None where nothing is."""

    def target(self, path: str) -> tuple[str, Kind] | None:
        """The path without any links, and what stands there. None where a link leads to nothing."""

    def entries(self, path: str) -> Sequence[Entry]:
        """What is in a directory, in the order of its names' bytes."""

    def digest(self, path: str) -> bytes:
        """SHA-256 of a regular file's content."""


class Found(NamedTuple):
    """What matched, in the order in which it is hashed, and the answer."""

    files: tuple[str, ...]
    hash: str


def hash_files(
    tree: Tree,
    arguments: Sequence[str],
    *,
    workspace: str,
    home: str | None = None,
    check: Callable[[], None] = lambda: None,
) -> Found:
    """Evaluate `hashFiles`; the hash is lower-case hex, "" where no file matches.

    `arguments` are the texts given: patterns, before them perhaps the option that follows links. `workspace` and `home`
    are absolute. `check` is called before each path looked at and may raise to end it. Raises InputError for a wrong
    pattern, a matching link that leads to nothing, and whatever the tree can't read. Changes nothing, safe to repeat.
    """
    patterns, follow = _split(arguments)
    read = read_patterns(patterns, workspace=workspace, home=home)
    matcher = Matcher(read)
    walk = _Walk(tree, matcher, workspace.rstrip("/"), follow=follow, check=check)
    total = hashlib.sha256()
    files: list[str] = []
    for start in search_paths(read):
        for path in walk.below(start):
            check()
            found = tree.target(path)
            if found is None:
                raise InputError(f"hashFiles: '{path}' is a link to nothing")
            if found[1] == "directory":
                continue
            if found[1] != "file":
                raise InputError(f"hashFiles: '{path}' is no regular file")
            total.update(tree.digest(found[0]))
            files.append(path)
    return Found(tuple(files), total.hexdigest() if files else "")


def _split(arguments: Sequence[str]) -> tuple[str, bool]:
    """The patterns, one a line, and whether links to directories are followed."""
    if arguments and arguments[0].startswith("--"):
        if arguments[0].lower() != FOLLOW:
            raise InputError(f"hashFiles: '{arguments[0]}' is no option; there is '{FOLLOW}'")
        return "\n".join(arguments[1:]), True
    return "\n".join(arguments), False


class _Item(NamedTuple):
    path: str
    kind: Kind
    progress: Progress
    level: int


class _Walk:
    """Depth first, a directory's entries in the order of their bytes, each before what is below it."""

    def __init__(
        self, tree: Tree, matcher: Matcher, workspace: str, *, follow: bool, check: Callable[[], None]
    ) -> None:
        self._tree = tree
        self._matcher = matcher
        self._workspace = workspace
        self._follow = follow
        self._check = check
        self._chain: list[str] = []

    def below(self, start: str) -> Iterator[str]:
        """The paths at and below a path that match as files, only those below the workspace."""
        first = self._first(start)
        stack = [] if first is None else [first]
        while stack:
            item = stack.pop()
            self._check()
            matched = self._matcher.matches(item.progress)
            if not matched and not self._matcher.may_match_below(item.progress):
                continue
            kind = self._settled(item) if self._follow else item.kind
            if kind == "unnameable":
                raise InputError(f"hashFiles: a name in '{item.path.rpartition('/')[0]}' isn't UTF-8")
            if kind == "directory":
                stack += self._children(item)
            elif kind is not None and matched & FILE and item.path != self._workspace:
                yield item.path

    def _first(self, start: str) -> _Item | None:
        """Where to begin: the workspace for a start above it, nowhere for one beside it."""
        level = 1
        if self._workspace != start and self._workspace.startswith(start.rstrip("/") + "/"):
            level += self._workspace.count("/") - start.rstrip("/").count("/")
            start = self._workspace
        elif start != self._workspace and not start.startswith(self._workspace + "/"):
            return None
        kind = self._tree.kind(start)
        if kind is None:
            return None
        progress = self._matcher.start()
        for name in start.split("/")[1:]:
            progress = self._matcher.step(progress, name)
        return _Item(start, kind, progress, level)

    def _children(self, item: _Item) -> list[_Item]:
        """Reversed, for a stack."""
        children = [
            _Item(
                f"{item.path}/{entry.name}", entry.kind, self._matcher.step(item.progress, entry.name), item.level + 1
            )
            for entry in self._tree.entries(item.path)
        ]
        children.reverse()
        return children

    def _settled(self, item: _Item) -> Kind | None:
        """What stands at a path when links are followed; None for a link to nothing and a directory within itself."""
        found = None if item.kind == "unnameable" else self._tree.target(item.path)
        if found is None:
            return None
        real, kind = found
        if kind == "directory":
            del self._chain[item.level - 1 :]
            if real in self._chain:
                return None
            self._chain.append(real)
        return kind


__all__ = ["DIRECTORY", "FILE", "FOLLOW", "TIMEOUT_S", "Entry", "Found", "Kind", "Tree", "hash_files"]
