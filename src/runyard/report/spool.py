"""What a worker has to tell and has not told yet, on disk: it outlives a server that is away and a worker that dies.

A spool is a folder of one lease. Events go in as they come from the job process, masked, and are read in order; a
segment is removed when all of it was acknowledged, the folder when the result was. Nothing secret is in it: values to
hide are never spooled.

    FOLDER/owner.json      whose it is: enough to ask the server whether the lease still holds
    FOLDER/lock            held by the worker that fills it; a lock that can be taken is a dead worker's
    FOLDER/NNNNNNNN        frames: length, CRC-32, msgpack of (number of the event, event)

A torn frame ends what a recovered spool holds. Where the disk refuses, what comes is held in memory, as long as the
disk part isn't delivered; `is_full` says when whoever fills it has to wait. Blocking, for one loop and one thread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import shutil
import struct
import zlib
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import msgspec

from runyard.job import JobEvent, JobFinished, Log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SEGMENT: Final = 8 << 20
LIMIT: Final = 1 << 30
"""Bytes of one lease on disk; then the job's output waits."""

IN_MEMORY: Final = 4 << 20
"""Bytes that may wait in memory where the disk is full."""

_LARGEST: Final = 64 << 20
_HEAD = struct.Struct(">II")
_OWNER: Final = "owner.json"
_LOCK: Final = "lock"

_encoder = msgspec.msgpack.Encoder()


class SpoolOwner(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whose a spool is. `url` and `worker` name where it has to go; a token is not in it."""

    url: str
    worker: str
    job: str
    attempt: int
    lease: str


class Entry(NamedTuple):
    """One event with its number among those that are not log bytes; -1 for log bytes and the job's end."""

    number: int
    event: JobEvent
    size: int


class _Place(NamedTuple):
    segment: int
    end: int


class SpoolTakenError(Exception):
    """A living worker fills this spool."""


class Spool:
    """The spool of one lease. `append` at one end, `read` and `done` at the other."""

    def __init__(
        self, folder: Path, owner: SpoolOwner, lock: int, *, limit: int = LIMIT, segment: int = SEGMENT
    ) -> None:
        self.folder = folder
        self.owner = owner
        self._lock = lock
        self._limit, self._segment_size = limit, segment
        self._decoder = msgspec.msgpack.Decoder(tuple[int, JobEvent])
        self._sizes: dict[int, int] = {}
        self._writing = 0
        self._file = -1
        self._next_number = 0
        self._memory: deque[Entry] = deque()
        self._in_memory = 0
        self._cache: deque[tuple[Entry, _Place | None]] = deque()
        self._read_at = _Place(1, 0)
        self._acked = _Place(1, 0)
        self.trouble = ""
        """Why the disk refuses, in words; "" while it doesn't."""

    # Making, finding ------------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, parent: Path, owner: SpoolOwner, *, limit: int = LIMIT, segment: int = SEGMENT) -> Self:
        """A new one below `parent`, whose owner is on disk for good. Raises OSError."""
        folder = parent / f"{_safe(owner.job)}.{owner.attempt}.{_safe(owner.lease)}"
        folder.mkdir(mode=0o700, parents=True)
        lock = _locked(folder)
        made = cls(folder, owner, lock, limit=limit, segment=segment)
        path = folder / f"{_OWNER}.new"
        with path.open("wb") as file:
            file.write(msgspec.json.encode(owner))
            file.flush()
            os.fsync(file.fileno())
        path.rename(folder / _OWNER)
        _sync_folder(folder)
        made._new_segment()
        return made

    @classmethod
    def recover(cls, folder: Path) -> Self:
        """What a dead worker left. Raises SpoolTakenError where it lives, ValueError for what is no spool, OSError."""
        lock = _locked(folder)
        try:
            owner = msgspec.json.decode((folder / _OWNER).read_bytes(), type=SpoolOwner)
        except (OSError, msgspec.DecodeError) as error:
            os.close(lock)
            raise ValueError(f"{folder.name}: no owner can be read ({error})") from error
        found = cls(folder, owner, lock)
        segments = sorted(int(each.name) for each in folder.iterdir() if each.name.isdigit())
        found._sizes = {number: (folder / f"{number:08}").stat().st_size for number in segments}
        found._writing = max(segments, default=0)
        found._read_at = found._acked = _Place(min(segments, default=1), 0)
        found._cut_torn()
        found._new_segment()
        return found

    def _cut_torn(self) -> None:
        """Keep what is whole: a frame that isn't, and everything after it, was never promised to anybody."""
        torn = False
        for number in sorted(self._sizes):
            path = self.folder / f"{number:08}"
            if torn:
                path.unlink()
                del self._sizes[number]
                continue
            end = 0
            for entry, place in self._frames(number, 0):
                end = place.end
                self._next_number = max(self._next_number, entry.number + 1)
            if end < self._sizes[number]:
                torn = True
                os.truncate(path, end)
                self._sizes[number] = end

    @property
    def is_finished(self) -> bool:
        """Whether the job's end is in it."""
        last = max((number for number, size in self._sizes.items() if size), default=None)
        if last is None:
            return False
        return any(isinstance(entry.event, JobFinished) for entry, _ in self._frames(last, 0))

    @property
    def next_number(self) -> int:
        """The number that the next event gets, 0 while there was none."""
        return self._next_number

    # Filling --------------------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether whoever appends should wait until something was delivered. One event more is always taken."""
        return sum(self._sizes.values()) >= self._limit or self._in_memory >= IN_MEMORY

    def append(self, event: JobEvent) -> None:
        """Take one event, in order. Never fails: what the disk refuses is held in memory."""
        number = -1
        if not isinstance(event, Log | JobFinished):
            number, self._next_number = self._next_number, self._next_number + 1
        payload = _encoder.encode((number, event))
        entry = Entry(number, event, len(payload))
        if not self._memory and self._write(payload):
            return
        self._memory.append(entry)
        self._in_memory += entry.size

    def _write(self, payload: bytes) -> bool:
        frame = _HEAD.pack(len(payload), zlib.crc32(payload)) + payload
        try:
            if self._file < 0 or self._sizes[self._writing] >= self._segment_size:
                self._new_segment()
            size = self._sizes[self._writing]
            written = os.write(self._file, frame)
            if written < len(frame):
                os.ftruncate(self._file, size)
                os.lseek(self._file, size, os.SEEK_SET)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self.trouble = error.strerror or str(error)
            return False
        self.trouble = ""
        self._sizes[self._writing] = size + len(frame)
        return True

    def _new_segment(self) -> None:
        number = self._writing + 1
        made = os.open(
            self.folder / f"{number:08}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        if self._file >= 0:
            os.close(self._file)
        self._file, self._writing = made, number
        self._sizes[number] = 0

    def sync(self) -> None:
        """Everything taken so far is on the disk for good, or in memory where that refuses. For a thread."""
        with contextlib.suppress(OSError):
            os.fsync(self._file)
            _sync_folder(self.folder)

    # Delivering -----------------------------------------------------------------------------------------------------

    def read(self, size: int) -> list[Entry]:
        """What comes next and is not done yet, about `size` bytes of it. Safe to repeat; empty when all is done."""
        have = sum(entry.size for entry, _ in self._cache)
        if have < size:
            self._fill(size - have)
        taken: list[Entry] = []
        for entry, _ in self._cache:
            taken.append(entry)
            size -= entry.size
            if size <= 0:
                break
        return taken

    def _fill(self, wanted: int) -> None:
        segment, at = self._read_at
        while wanted > 0:
            end = self._sizes.get(segment, 0)
            if at >= end:
                later = [number for number in self._sizes if number > segment]
                if not later:
                    break
                segment, at = min(later), 0
                continue
            before = at
            for entry, place in self._frames(segment, at):
                self._cache.append((entry, place))
                at = place.end
                wanted -= entry.size
                if wanted <= 0:
                    break
            if at == before:  # what was written can't be read: told as nothing more
                break
        self._read_at = _Place(segment, at)
        if wanted > 0:
            there = sum(1 for _, place in self._cache if place is None)
            self._cache.extend((entry, None) for entry in itertools.islice(self._memory, there, None))

    def _frames(self, segment: int, at: int) -> Iterator[tuple[Entry, _Place]]:
        """Whole frames of a segment, from an offset on."""
        end = self._sizes[segment]
        with (self.folder / f"{segment:08}").open("rb") as file:
            file.seek(at)
            while at + _HEAD.size <= end:
                head = file.read(_HEAD.size)
                if len(head) < _HEAD.size:
                    return
                length, crc = _HEAD.unpack(head)
                if length > _LARGEST or at + _HEAD.size + length > end:
                    return
                payload = file.read(length)
                if len(payload) < length or zlib.crc32(payload) != crc:
                    return
                try:
                    number, event = self._decoder.decode(payload)
                except msgspec.DecodeError:
                    return
                at += _HEAD.size + length
                yield Entry(number, event, length), _Place(segment, at)

    def done(self, count: int) -> None:
        """The first `count` entries of `read` were acknowledged: whole segments of such are removed."""
        for _ in range(count):
            entry, place = self._cache.popleft()
            if place is None:
                self._memory.popleft()
                self._in_memory -= entry.size
            else:
                self._acked = place
        for number in [n for n in self._sizes if n < self._acked.segment]:
            del self._sizes[number]
            with contextlib.suppress(OSError):
                (self.folder / f"{number:08}").unlink()
        here = self._acked.segment
        if here == self._writing and self._acked.end == self._sizes[here] >= self._segment_size:
            with contextlib.suppress(OSError):
                self._new_segment()

    def rewind(self) -> None:
        """Read again from the oldest that is still there: the server wants something once more."""
        self._cache.clear()
        self._read_at = _Place(min(self._sizes, default=self._writing), 0)

    # The end --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of it and leave it on disk for the next start. Safe to repeat."""
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1

    def remove(self) -> None:
        """The result was accepted, or nobody wants it any more. Safe to repeat."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.close()


def left_behind(parent: Path) -> list[Path]:
    """Folders of spools below `parent`, oldest first; also those of workers that live."""
    try:
        folders = [each for each in parent.iterdir() if each.is_dir() and not each.is_symlink()]
    except OSError:
        return []
    return sorted(folders, key=lambda each: (each.stat().st_mtime, each.name))


def _locked(folder: Path) -> int:
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise SpoolTakenError(folder.name) from error
    return lock


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _safe(name: str) -> str:
    """A name of the server's as part of a file name."""
    return "".join(char if char.isascii() and (char.isalnum() or char in "-_") else "_" for char in name)[:80]
