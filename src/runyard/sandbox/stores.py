# ruff: noqa: PTH102, PTH103, PTH104, PTH108, PTH115, PTH208
# Trees of many thousand files, and names below a folder that is ours.

"""Stores that outlive a job: what one job of a kind left, as the lowest layer of the next one's folder.

A key has a folder, named by a digest of whose it is. In it are generations, each a whole tree with a mark that says so,
and a link to the one in force. A generation is made beside the others and put in force by one rename, under the key's
lock: a reader sees the old one or the new one, never a part. Whoever uses a generation holds a lock on it, so it stays.
Nothing here follows a link of a tree, and nothing of a tree is run.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import random
import secrets
import shutil
import stat
import time
from typing import TYPE_CHECKING, Final, Self

import msgspec

from runyard.job import MachineError
from runyard.sandbox.enter import tarball
from runyard.sandbox.reflink import share

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK_SECONDS: Final = 30.0
"""How long a writer waits for the key's lock before it gives up; publishing holds it for two renames."""

_LOOK_SECONDS: Final = (0.01, 0.05)
_CURRENT: Final = "current"
_NEW: Final = "new-"
_GENERATION: Final = "gen-"


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Whose a store is. Every part must be known but `job` and `extra`: without, nothing is shared.

    `job` is "" for a store of a whole workflow, `workflow` then may be "*" for one of the repository. `place` is what
    the job runs on: platform, image, backend. `extra` is a word of the declaration's own.
    """

    repository: str
    workflow: str
    name: str
    place: str
    trust: str
    job: str = ""
    extra: str = ""

    @property
    def unknown(self) -> str | None:
        """The first part that isn't known."""
        for part in ("repository", "workflow", "name", "place", "trust"):
            if not getattr(self, part).strip():
                return part
        return None

    @property
    def digest(self) -> str:
        """The folder's name. Raises ValueError where a part isn't known: such a store must not be."""
        if (part := self.unknown) is not None:
            raise ValueError(f"a store without a {part}")
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """That a tree is whole: how many members, their bytes, and a digest of names, kinds, modes, sizes and times."""

    members: int
    size: int
    listing: str


class Generation:
    """A generation in use; `close` lets it go. `tree` is the folder to lay under a job's."""

    def __init__(self, folder: str, mark: Mark, lock: int) -> None:
        self.folder = folder
        self.mark = mark
        self._lock = lock

    @property
    def tree(self) -> str:
        """The tree itself; it must not be changed."""
        return f"{self.folder}/tree"

    def close(self) -> None:
        """Let it go. Safe to repeat."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Store:
    """One key. Every method blocks; call it in a thread."""

    def __init__(self, root: str, identity: Identity) -> None:
        self._folder = f"{root}/{identity.digest}"
        self._identity = identity

    def open(self) -> Generation | None:
        """The generation in force, checked against its mark; None where there is none, or none that is whole."""
        for _ in range(8):  # another one may be put in force between the look and the lock
            try:
                name = os.readlink(f"{self._folder}/{_CURRENT}")
                lock = os.open(f"{self._folder}/{name}/use", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError:
                return None
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if os.readlink(f"{self._folder}/{_CURRENT}") == name:
                    return self._checked(f"{self._folder}/{name}", lock)
            except OSError:
                pass
            os.close(lock)
        return None

    def _checked(self, folder: str, lock: int) -> Generation | None:
        try:
            with open(f"{folder}/complete", "rb") as file:
                mark = msgspec.json.decode(file.read(), type=Mark)
            if mark_of(f"{folder}/tree") == mark:
                return Generation(folder, mark, lock)
        except (OSError, msgspec.DecodeError):
            pass
        os.close(lock)
        return None

    @contextlib.contextmanager
    def staging(self) -> Iterator[Staging]:
        """A place for the next generation, on the same file system; what isn't published is gone with it."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        self._sweep()
        folder = f"{self._folder}/{_NEW}{os.getpid()}-{secrets.token_hex(4)}"
        os.mkdir(folder, 0o700)
        lock = os.open(f"{folder}/use", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_SH)
        try:
            yield Staging(self, folder)
        finally:
            os.close(lock)
            _remove_tree(folder)

    def publish(self, folder: str) -> None:
        """Put a whole generation in force. Raises MachineError when the key's lock isn't free in time."""
        with self._locked():
            name = f"{_GENERATION}{time.time_ns()}-{secrets.token_hex(4)}"
            os.rename(folder, f"{self._folder}/{name}")
            link = f"{self._folder}/{_CURRENT}-{secrets.token_hex(4)}"
            os.symlink(name, link)  # noqa: PTH211
            os.rename(link, f"{self._folder}/{_CURRENT}")
            _write(f"{self._folder}/identity.json", msgspec.json.encode(self._identity))
            self._prune(name)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        lock = os.open(f"{self._folder}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + LOCK_SECONDS
        try:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > deadline:
                        raise MachineError(
                            f"the store {self._identity.name} was locked for {LOCK_SECONDS:g} s", code="store.locked"
                        ) from error
                    time.sleep(random.uniform(*_LOOK_SECONDS))
            yield
        finally:
            os.close(lock)

    def _prune(self, keep: str) -> None:
        """Remove generations that nobody uses; the one in force stays."""
        for name in os.listdir(self._folder):
            if name.startswith(_GENERATION) and name != keep:
                self._remove_unused(f"{self._folder}/{name}")

    def _sweep(self) -> None:
        """Remove what killed writers left: nobody holds the lock of their staging."""
        for name in os.listdir(self._folder):
            if name.startswith(_NEW):
                self._remove_unused(f"{self._folder}/{name}")

    @staticmethod
    def _remove_unused(folder: str) -> None:
        try:
            lock = os.open(f"{folder}/use", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return  # its owner is about to make the lock, or somebody else removes it
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_tree(folder)
        except OSError:
            return
        finally:
            os.close(lock)


class Staging:
    """A generation that is being made."""

    def __init__(self, store: Store, folder: str) -> None:
        self._store = store
        self.folder = folder

    @property
    def tar(self) -> str:
        """Where its tar may lie meanwhile."""
        return f"{self.folder}/tar"

    def unpack(self, *, limit: int, before: Generation | None) -> Mark:
        """Make the tree from the tar and mark it whole. What hasn't changed since `before` shares its bytes.

        Raises MachineError for a tar that is broken or holds more than `limit` bytes.
        """
        root = f"{self.folder}/tree"
        os.mkdir(root, 0o755)
        with open(self.tar, "rb") as file:
            try:
                _fill(root, tarball.Source(file.fileno()), limit)
            except (ValueError, OSError) as error:
                raise MachineError(f"it can't be kept: {error}", code="store.unpack") from error
        os.unlink(self.tar)
        if before is not None:
            share(before.tree, root)
        mark = mark_of(root)
        _write(f"{self.folder}/complete", msgspec.json.encode(mark))
        return mark

    def publish(self) -> None:
        """Put it in force. Once, after `unpack`."""
        self._store.publish(self.folder)


def _fill(root: str, source: tarball.Source, limit: int) -> None:
    """Like an image's root: links are text, devices are left out; so are pipes, and no program keeps a special bit."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    tree = tarball.Tree(fd, owners=False, image=True)
    size = 0
    try:
        while (entry := tarball.read_entry(source)) is not None:
            entry.mode &= 0o777
            if entry.kind == b"6":
                continue
            size += entry.size
            if size > limit:
                raise ValueError(f"it has more than {limit} bytes")
            tree.put(entry, source)
        tree.finish()
    finally:
        tree.close()
        os.close(fd)


def mark_of(root: str) -> Mark:
    """Walk a tree without following a link. Raises OSError."""
    digest = hashlib.sha256()
    members = size = 0
    waiting = [""]
    while waiting:
        below = waiting.pop()
        with os.scandir(f"{root}/{below}") as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            path = f"{below}{entry.name}"
            facts = entry.stat(follow_symlinks=False)
            kind = stat.S_IFMT(facts.st_mode)
            row = [os.fsencode(path), b"%o" % facts.st_mode]
            if kind == stat.S_IFREG:
                row += [b"%d" % facts.st_size, b"%d" % int(facts.st_mtime)]
                size += facts.st_size
            elif kind == stat.S_IFLNK:
                row.append(os.fsencode(os.readlink(entry.path)))
            digest.update(b"\0".join(row) + b"\n")
            members += 1
            if kind == stat.S_IFDIR:
                waiting.append(f"{path}/")
    return Mark(members=members, size=size, listing=digest.hexdigest())


def _remove_tree(folder: str) -> None:
    """Remove a tree of ours, also one whose folders nobody may write (a module cache of Go). Follows no link."""
    shutil.rmtree(folder, ignore_errors=True)
    if not os.path.isdir(folder):  # noqa: PTH112
        return
    for here, names, _ in os.walk(folder):
        for name in names:
            path = f"{here}/{name}"
            if not os.path.islink(path):  # noqa: PTH114
                os.chmod(path, 0o700)  # noqa: PTH101
    shutil.rmtree(folder, ignore_errors=True)


def _write(path: str, data: bytes) -> None:
    """A small file, on the disk before its name is."""
    made = f"{path}.{secrets.token_hex(4)}"
    fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(made, path)
