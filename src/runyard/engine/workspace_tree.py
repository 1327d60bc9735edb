"""The files of a directory for `hashFiles`, read without ever leaving it.

This is where the room reads a workspace from outside, while the job may still be changing it: every step goes through
an open directory and follows no link by itself. Links are read as text and followed here, as the job would see them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from runyard.engine.hash_files import TIMEOUT_S, Entry, Kind, hash_files
from runyard.job import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MOST_LINKS: Final = 40
_BLOCK: Final = 1024 * 1024
_DIRECTORY: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def hash_directory(
    directory: str | os.PathLike[str],
    arguments: Sequence[str],
    *,
    workspace: str,
    seen_as: str | None = None,
    home: str | None = None,
    seconds: float = TIMEOUT_S,
) -> str:
    """`hashFiles` over a real directory, in hex; "" where nothing matches. Raises InputError, also after `seconds`.

    `directory` is what the job sees at `seen_as` (by default its workspace): the workspace itself, or the root of the
    job's file system with `seen_as` "/", so that links out of the workspace lead somewhere. Safe to repeat.
    """
    end = time.monotonic() + seconds

    def check() -> None:
        if time.monotonic() > end:
            raise InputError(f"hashFiles: took longer than {seconds:g} s")

    with WorkspaceTree(directory, seen_as=seen_as or workspace, check=check) as tree:
        return hash_files(tree, arguments, workspace=workspace, home=home, check=check).hash


class _Place(NamedTuple):
    """A name in an open directory, without links on the way; "" is the directory itself."""

    directory: int
    name: str
    real: str
    mode: int


class WorkspaceTree:
    """A Tree over a directory that the job sees at `seen_as`. Owns one descriptor; close it, or use it as a context."""

    def __init__(
        self, directory: str | os.PathLike[str], *, seen_as: str, check: Callable[[], None] = lambda: None
    ) -> None:
        self.seen_as = seen_as.rstrip("/")
        self._check = check
        try:
            self._root = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise InputError(f"hashFiles: the workspace can't be read: {error.strerror}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the descriptor back; safe to repeat."""
        root, self._root = self._root, -1
        if root >= 0:
            os.close(root)

    def kind(self, path: str) -> Kind | None:
        """What stands at a path."""
        with _Steps(self, path, follow=False) as place:
            return None if place is None else _kind(place.mode)

    def target(self, path: str) -> tuple[str, Kind] | None:
        """Where a path leads, and what stands there."""
        with _Steps(self, path, follow=True) as place:
            return None if place is None else (place.real, _kind(place.mode))

    def entries(self, path: str) -> Sequence[Entry]:
        """What is in a directory; a link to one is followed."""
        with _Steps(self, path, follow=True) as place:
            if place is None:
                raise InputError(f"hashFiles: '{path}' is gone")
            try:
                opened = os.open(place.name or ".", os.O_RDONLY | _DIRECTORY, dir_fd=place.directory)
                try:
                    with os.scandir(opened) as found:
                        entries = sorted((os.fsencode(entry.name), _entry_kind(entry)) for entry in found)
                finally:
                    os.close(opened)
            except OSError as error:
                raise _unreadable(path, error) from error
        return [_entry(name, kind) for name, kind in entries]

    def digest(self, path: str) -> bytes:
        """SHA-256 of a file's content; what isn't a regular file any more is refused and never waited for."""
        with _Steps(self, path, follow=True) as place:
            if place is None:
                raise InputError(f"hashFiles: '{path}' is gone")
            try:
                opened = os.open(place.name or ".", _FILE, dir_fd=place.directory)
                try:
                    if not stat.S_ISREG(os.fstat(opened).st_mode):
                        raise InputError(f"hashFiles: '{path}' is no regular file")
                    return self._digest(opened)
                finally:
                    os.close(opened)
            except OSError as error:
                raise _unreadable(path, error) from error

    def _digest(self, opened: int) -> bytes:
        made = hashlib.sha256()
        while block := os.read(opened, _BLOCK):
            made.update(block)
            self._check()
        return made.digest()

    def names(self, path: str) -> list[str] | None:
        """The names that lead from the directory to an absolute path; None where it isn't in there."""
        if path != self.seen_as and not path.startswith(self.seen_as + "/"):
            return None
        return path[len(self.seen_as) :].split("/")

    @property
    def root(self) -> int:
        """The open directory."""
        return self._root

    @property
    def is_whole(self) -> bool:
        """Whether the directory is all that the job sees, so that nothing is outside."""
        return not self.seen_as


class _Steps:
    """The way to a path, one open directory after the other; closes them at the end."""

    def __init__(self, tree: WorkspaceTree, path: str, *, follow: bool) -> None:
        self._tree = tree
        self._path = path
        self._follow = follow
        self._open: list[int] = []
        self._names: list[str] = []
        self._links = 0

    def __enter__(self) -> _Place | None:
        try:
            return self._walk()
        except OSError as error:
            self._close()
            raise _unreadable(self._path, error) from error
        except BaseException:
            self._close()
            raise

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        while self._open:
            os.close(self._open.pop())

    def _here(self) -> int:
        return self._open[-1] if self._open else self._tree.root

    def _walk(self) -> _Place | None:
        rest = list(reversed(self._inside(self._path)))
        while rest:
            name = rest.pop()
            if name in {"", "."}:
                continue
            if name == "..":
                self._up()
                continue
            last = not any(each not in {"", "."} for each in rest)
            try:
                mode = os.stat(name, dir_fd=self._here(), follow_symlinks=False).st_mode
            except FileNotFoundError:
                return None
            if stat.S_ISLNK(mode) and (self._follow or not last):
                rest += reversed(self._linked(name))
            elif last:
                return _Place(self._here(), name, self._real(name), mode)
            else:
                self._open.append(os.open(name, os.O_PATH | _DIRECTORY, dir_fd=self._here()))
                self._names.append(name)
        return _Place(self._here(), "", self._real(), os.fstat(self._here()).st_mode)

    def _real(self, *last: str) -> str:
        return "/".join([self._tree.seen_as, *self._names, *last]) or "/"

    def _inside(self, path: str) -> list[str]:
        names = self._tree.names(path)
        if names is None:
            raise InputError(f"hashFiles: '{self._path}' leads out of the workspace")
        return names

    def _up(self) -> None:
        if self._open:
            os.close(self._open.pop())
            self._names.pop()
        elif not self._tree.is_whole:
            raise InputError(f"hashFiles: '{self._path}' leads out of the workspace")

    def _linked(self, name: str) -> list[str]:
        """The names that a link stands for; an absolute one begins at the root again."""
        self._links += 1
        if self._links > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = os.readlink(name, dir_fd=self._here())
        if not target.startswith("/"):
            return target.split("/")
        names = self._inside(re.sub("/+", "/", target))
        self._close()
        self._names.clear()
        return names


def _kind(mode: int) -> Kind:
    if stat.S_ISDIR(mode):
        return "directory"
    if stat.S_ISLNK(mode):
        return "link"
    return "file" if stat.S_ISREG(mode) else "other"


def _entry_kind(entry: os.DirEntry[str]) -> Kind:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


def _entry(name: bytes, kind: Kind) -> Entry:
    try:
        return Entry(name.decode(), kind)
    except UnicodeDecodeError:
        return Entry(name.decode(errors="replace"), "unnameable")


def _unreadable(path: str, error: OSError) -> InputError:
    return InputError(f"hashFiles: '{path}' can't be read: {error.strerror}")
