# ruff: noqa: PTH208
# Folders of many thousand marks; only their names are asked for.

"""Blocks of an upload written where they belong, so that the whole needs no second copy.

Clients of block blobs number their blocks: an id ends with the block's number, and all but the last are of one size. A
block with a number and a size is written at number × size into the row of that size:

    row-<size>              the file
    at-<size>-<number>      the place is taken; its text is "<block> <bytes>" once all of it came

A place is given once, to one block; who comes second, or comes again, is kept as a block of its own. So nothing that
came whole is ever written over, and blocks that were numbered otherwise only cost the copy.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import re
import threading
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

SMALLEST: Final = 256 << 10
"""Smaller blocks cost less as files of their own."""

_MOST: Final = 50_000
_READ: Final = 1 << 20
_NUMBER: Final = re.compile(rb"[0-9]{1,9}\Z")
_ROW: Final = re.compile(r"row-([0-9]{1,12})\Z")
_PLACE: Final = re.compile(r"at-([0-9]{1,12})-([0-9]{1,9})\Z")
_TOLD: Final = re.compile(r"(block-[0-9a-f]{40}) ([0-9]{1,12})\n\Z")


class Place(msgspec.Struct, frozen=True):
    """Where a block goes: the row's file and block size, its number in it, its own size."""

    block: str
    row: int
    number: int
    size: int

    @property
    def file(self) -> str:
        """The row's file, in the folder of the upload."""
        return f"row-{self.row}"

    @property
    def offset(self) -> int:
        """Where in it the block begins."""
        return self.row * self.number


def number_of(block: str) -> int | None:
    """The number that a block id in base64 ends with."""
    try:
        found = _NUMBER.search(base64.b64decode(block, validate=True))
    except (binascii.Error, ValueError):
        return None
    number = int(found[0]) if found else _MOST
    return number if number < _MOST else None


def claim(folder: Path, block: str, number: int, size: int) -> Place | None:
    """Take the place of a block of `size` bytes; None where it has none of its own, or not any more. Blocking."""
    row = size
    if size < SMALLEST or not (folder / f"row-{size}").exists():
        # A last block, shorter than the others, or the first of all.
        rows = [int(found[1]) for each in os.listdir(folder) if (found := _ROW.match(each))]
        row = min((each for each in rows if each > size), default=size)
    if row < SMALLEST:
        return None
    place = Place(block, row, number, size)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(folder / place.file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        mark = os.open(folder / f"at-{row}-{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return None
    os.close(mark)
    return place


def settle(folder: Path, place: Place) -> None:
    """All of a block is there. Blocking."""
    (folder / f"at-{place.row}-{place.number}").write_text(f"{place.block} {place.size}\n", encoding="ascii")


def settled(folder: Path) -> dict[str, Place]:
    """The blocks that stand whole in a row. One that is also there as a file of its own came again: that one counts."""
    found: dict[str, Place] = {}
    names = set(os.listdir(folder))
    for each in names:
        if (mark := _PLACE.match(each)) and (told := _told(folder / each)) and told[1] not in names:
            found[told[1]] = Place(told[1], int(mark[1]), int(mark[2]), int(told[2]))
    return found


def _told(mark: Path) -> re.Match[str] | None:
    return _TOLD.match(mark.read_text(encoding="ascii"))


def take_row(folder: Path, blocks: Sequence[str]) -> tuple[Path, int, int] | None:
    """The file that has exactly these blocks in this order, its bytes, and its row; None where there is none.

    The file has another name then, and nobody writes into it any more. Blocking.
    """
    places = settled(folder) if blocks else {}
    first = places.get(blocks[0]) if blocks else None
    if first is None:
        return None
    reached = 0
    for block in blocks:
        place = places.get(block)
        if place is None or place.row != first.row or place.offset != reached:
            return None
        reached += place.size
    path, taken = folder / first.file, folder / f"taken-{first.row}"
    path.rename(taken)
    # Who has a place and is not done may still hold the file open.
    prefix = f"at-{first.row}-"
    if all(_told(folder / each) for each in os.listdir(folder) if each.startswith(prefix)):
        return taken, reached, first.row
    taken.rename(path)
    return None


def pieces(folder: Path, block: str, places: Mapping[str, Place]) -> Iterator[bytes]:
    """The bytes of a block, in a file of its own or in a row. Raises FileNotFoundError. Blocking."""
    place = places.get(block)
    with open(folder / (block if place is None else place.file), "rb") as file:
        if place is None:
            while data := file.read(_READ):
                yield data
            return
        file.seek(place.offset)
        left = place.size
        while left and (data := file.read(min(_READ, left))):
            left -= len(data)
            yield data


class RowHash:
    """SHA-256 of a row's file, taken in a thread of its own while more of it comes."""

    def __init__(self, path: Path, row: int) -> None:
        self._path = path
        self._row = row
        self._digest = hashlib.sha256()
        self._reached = 0
        self._ends: dict[int, int] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, place: Place) -> None:
        """A block is whole and will not change."""
        if place.row != self._row:
            return
        with self._lock:
            self._ends[place.offset] = place.offset + place.size
            if self._thread is None and self._reached in self._ends:
                self._thread = threading.Thread(target=self._follow, name="hash of an upload", daemon=True)
                self._thread.start()

    def _follow(self) -> None:
        """Hash on until a block is missing."""
        with contextlib.suppress(OSError), open(self._path, "rb", buffering=0) as file:
            while True:
                with self._lock:
                    end = self._ends.pop(self._reached, None)
                    if end is None:
                        self._thread = None
                        return
                self._read(file.fileno(), end)
        with self._lock:
            self._thread = None

    def _read(self, descriptor: int, end: int) -> None:
        while self._reached < end and (data := os.pread(descriptor, min(_READ, end - self._reached), self._reached)):
            self._digest.update(data)
            self._reached += len(data)

    def finish(self, path: Path, size: int, row: int) -> str:
        """The digest in hex of the first `size` bytes of that row, now called `path`. Blocking; once, at the end."""
        with self._lock:
            self._ends.clear()
            thread = self._thread
        if thread is not None:
            thread.join()
        if row != self._row or self._reached > size:
            self._digest, self._reached = hashlib.sha256(), 0
        with open(path, "rb", buffering=0) as file:
            self._read(file.fileno(), size)
        return self._digest.hexdigest()
