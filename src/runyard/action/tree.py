"""A tree of files written from hostile input, and its git hash: made while writing, and again from the disk.

Names that lead out are refused. A link that could lead out of the tree becomes a small file with its target in it, as
git makes one where links don't exist; a sub-module is an empty folder, as in GitHub's own archives. Rule kept: nothing
is ever written through a link, and what was written hashes to what was promised.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.job import MachineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_DEEPEST: Final = 100
_PIECE: Final = 1 << 20
FILE, PROGRAM, LINK, MODULE, FOLDER = "100644", "100755", "120000", "160000", "40000"


class TreeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one action may be: entries, and bytes of all its files together."""

    entries: int = 200_000
    bytes: int = 2 << 30


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a tree. `flattened` are links that became files, `modules` sub-modules with their commits.

    `odd_modes` are files whose mode in git is none of today's; all are by path, and needed to hash the disk again.
    """

    tree: str
    files: int = 0
    bytes: int = 0
    flattened: tuple[str, ...] = ()
    modules: dict[str, str] = {}
    odd_modes: dict[str, str] = {}


class UnsafeTreeError(MachineError):
    """A tree that is refused as a whole: a name out of it, two names for one file, too large."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="action.unsafe_tree", remedy="Use another version, or ask its owner about it.")


class TreeWriter:
    """Writes below `folder`, which exists, is empty and only ours. `finish` once, at the end."""

    def __init__(self, folder: Path, *, algorithm: str = "sha1", limits: TreeLimits | None = None) -> None:
        self._folder = folder
        self._algorithm = algorithm
        self._limits = limits or TreeLimits()
        self._root: dict[str, object] = {}
        self._bytes = 0
        self._entries = 0
        self._files = 0
        self._flattened: list[str] = []
        self._modules: dict[str, str] = {}
        self._odd_modes: dict[str, str] = {}

    def file(self, path: str, mode: str, size: int, pieces: Iterable[bytes]) -> None:
        """A file of exactly `size` bytes. `mode` as git writes it. Raises UnsafeTreeError."""
        parts, below = self._place(path)
        self._count(size)
        digest = hashlib.new(self._algorithm, b"blob %d\0" % size)
        written = 0
        with self._create(path, 0o755 if mode == PROGRAM else 0o644) as out:
            for piece in pieces:
                digest.update(piece)
                written += len(piece)
                out.write(piece)
        if written != size:
            raise UnsafeTreeError(f"{path}: {written} bytes came instead of {size}")
        if mode not in (FILE, PROGRAM):
            self._odd_modes[path] = mode
        self._files += 1
        below[parts[-1]] = (mode, digest.digest())

    def link(self, path: str, target: bytes) -> None:
        """A link, or the file that stands for it where its target could be outside."""
        parts, below = self._place(path)
        self._count(len(target))
        if stays_inside(len(parts) - 1, target):
            (self._folder / path).symlink_to(os.fsdecode(target))
        else:
            with self._create(path, 0o644) as out:
                out.write(target)
            self._flattened.append(path)
        below[parts[-1]] = (LINK, _blob(self._algorithm, target))

    def module(self, path: str, commit: str) -> None:
        """A sub-module: its folder, empty."""
        parts, below = self._place(path)
        self._count(0)
        (self._folder / path).mkdir(mode=0o755)
        self._modules[path] = commit
        below[parts[-1]] = (MODULE, bytes.fromhex(commit))

    def empty_folder(self, path: str) -> None:
        """A folder that an archive names; git knows none without files."""
        self._folder_of([*_checked(path), ""], path)

    def finish(self) -> Written:
        """The hash of everything that was written."""
        return Written(
            tree=_hash(self._algorithm, self._root).hex(),
            files=self._files,
            bytes=self._bytes,
            flattened=tuple(self._flattened),
            modules=self._modules,
            odd_modes=self._odd_modes,
        )

    def _count(self, size: int) -> None:
        self._entries += 1
        self._bytes += size
        if self._entries > self._limits.entries:
            raise UnsafeTreeError(f"it has more than {self._limits.entries} files")
        if self._bytes > self._limits.bytes:
            raise UnsafeTreeError(f"it has more than {self._limits.bytes} bytes")

    def _place(self, path: str) -> tuple[list[str], dict[str, object]]:
        parts = _checked(path)
        below = self._folder_of(parts, path)
        if parts[-1] in below:
            raise UnsafeTreeError(f"{path}: the tree has this name twice")
        return parts, below

    def _folder_of(self, parts: list[str], path: str) -> dict[str, object]:
        """The entries of the folder that a path is in, made on the way. A link on the way is never followed."""
        here, at = self._root, self._folder
        for part in parts[:-1]:
            at /= part
            inner = here.get(part)
            if inner is None:
                try:
                    at.mkdir(mode=0o755)
                except FileExistsError as error:
                    raise _one_for_two(path) from error
                inner = here[part] = {}
            if not isinstance(inner, dict):
                raise UnsafeTreeError(f"{path}: it stands below a file or a link")
            here = inner
        return here

    def _create(self, path: str, mode: int) -> _Out:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(self._folder / path, flags, mode)
        except FileExistsError as error:
            raise _one_for_two(path) from error
        os.fchmod(descriptor, mode)
        return _Out(descriptor)


class _Out:
    """An unbuffered file; Python's own costs more than the write for the many small ones."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> _Out:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]


def _one_for_two(path: str) -> UnsafeTreeError:
    return UnsafeTreeError(f"{path}: this file system takes it for another name of the tree")


def _checked(path: str) -> list[str]:
    """The parts of a path, none of which leads anywhere but down."""
    parts = path.split("/")
    if len(parts) > _DEEPEST or len(os.fsencode(path)) > 4000:
        raise UnsafeTreeError(f"{path[:200]}…: folders are nested too deep")
    for part in parts:
        if part in ("", ".", "..") or part.lower() == ".git" or "\0" in part or len(os.fsencode(part)) > 255:
            raise UnsafeTreeError(f"{path!r} is no name that an action may have")
    return parts


def stays_inside(depth: int, target: bytes) -> bool:
    """Whether a link in a folder `depth` levels below the root can't lead out, whatever other links do.

    Going up is only allowed at the start, where the folders passed are real ones.
    """
    if not target or target.startswith(b"/") or b"\0" in target:
        return False
    parts = target.rstrip(b"/").split(b"/")
    ups = 0
    while ups < len(parts) and parts[ups] == b"..":
        ups += 1
    return ups <= depth and not any(part in (b"", b"..", b".") for part in parts[ups:])


def hash_on_disk(folder: Path, written: Written, *, algorithm: str = "sha1") -> str:
    """The git hash of what is in `folder` now. Raises UnsafeTreeError for what is neither file, link nor folder."""
    flattened = set(written.flattened)

    def read(at: Path, prefix: str) -> dict[str, object]:
        found: dict[str, object] = {}
        for entry in os.scandir(at):
            path = f"{prefix}{entry.name}"
            facts = entry.stat(follow_symlinks=False)
            if stat.S_ISLNK(facts.st_mode):
                found[entry.name] = (LINK, _blob(algorithm, os.fsencode(Path(entry.path).readlink())))
            elif stat.S_ISDIR(facts.st_mode):
                inner = read(Path(entry.path), f"{path}/")
                module = written.modules.get(path)
                if module is not None and not inner:
                    found[entry.name] = (MODULE, bytes.fromhex(module))
                elif inner:
                    found[entry.name] = inner
            elif stat.S_ISREG(facts.st_mode):
                mode = LINK if path in flattened else PROGRAM if facts.st_mode & 0o100 else FILE
                mode = written.odd_modes.get(path, mode)
                found[entry.name] = (mode, _blob_of_file(algorithm, entry.path, facts.st_size))
            else:
                raise UnsafeTreeError(f"{path} is neither file, link nor folder")
        return found

    return _hash(algorithm, read(folder, "")).hex()


def _blob(algorithm: str, data: bytes) -> bytes:
    return hashlib.new(algorithm, b"blob %d\0%b" % (len(data), data)).digest()


def _blob_of_file(algorithm: str, path: str, size: int) -> bytes:
    digest = hashlib.new(algorithm, b"blob %d\0" % size)
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.digest()


def _hash(algorithm: str, entries: Mapping[str, object]) -> bytes:
    """A tree object's hash: entries in git's order, where a folder sorts as if its name ended with a slash."""
    rows: list[tuple[bytes, bytes]] = []
    for name, entry in entries.items():
        raw = os.fsencode(name)
        if isinstance(entry, dict):
            if entry:
                rows.append((raw + b"/", b"%b %b\0%b" % (FOLDER.encode(), raw, _hash(algorithm, entry))))
        elif isinstance(entry, tuple):
            mode, digest = entry
            rows.append((raw, b"%b %b\0%b" % (mode.encode(), raw, digest)))
    body = b"".join(row for _, row in sorted(rows))
    return hashlib.new(algorithm, b"tree %d\0%b" % (len(body), body)).digest()


def commit_tree(commit: str, raw: bytes) -> str:
    """The tree that a commit names, once the commit's bytes hash to its id. Raises UnsafeTreeError."""
    algorithm = algorithm_of(commit)
    if hashlib.new(algorithm, b"commit %d\0%b" % (len(raw), raw)).hexdigest() != commit:
        raise UnsafeTreeError(f"the commit that came is not {commit}")
    first = raw.partition(b"\n")[0]
    if not first.startswith(b"tree "):
        raise UnsafeTreeError(f"the commit {commit} names no tree")
    return first[5:].decode("ascii", "replace")


def algorithm_of(object_id: str) -> str:
    """The hash that ids of this length are made with."""
    return "sha256" if len(object_id) == 64 else "sha1"
