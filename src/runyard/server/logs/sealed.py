"""A sealed log: one file an attempt, zstd frames of a mebibyte of stored bytes, and a footer that says where all is.

    magic · frames … · footer (zstd of MessagePack) · length of the footer (8 bytes) · magic

It is written under another name, fsynced and renamed, so a reader sees a whole one or none.
"""

from __future__ import annotations

import os
import struct
import sys
from typing import TYPE_CHECKING

import msgspec

from runyard.job import WorkError
from runyard.server.logs.index import Spans

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from runyard.server.logs.reading import Stored

FRAME = 1 << 20
_MAGIC = b"RYLOG001"
_TAIL = struct.Struct("<Q8s")
_LEVEL = 3
_FOOTER_LIMIT = 256 << 20


class _Step(msgspec.Struct, array_like=True):
    step: int
    received: int
    columns: tuple[bytes, bytes, bytes, bytes]
    frames: tuple[tuple[int, int], ...]
    """Where each frame lies in the file: offset and compressed size. All but the last hold FRAME bytes."""


class _Footer(msgspec.Struct, array_like=True):
    version: int
    steps: tuple[_Step, ...]


class DamagedError(WorkError):
    """A sealed log that can't be read."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path.name}: this sealed log is damaged", code="log.damaged")


def write(path: Path, logs: Iterable[tuple[Stored, int]]) -> None:
    """Seal steps, each with its number of received bytes, into `path`. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    steps: list[_Step] = []
    with draft.open("wb") as out:
        out.write(_MAGIC)
        for log, received in logs:
            frames: list[tuple[int, int]] = []
            for offset in range(0, log.stored, FRAME):
                packed = zstd.compress(log.bytes_at(offset, FRAME), level=_LEVEL)
                frames.append((out.tell(), len(packed)))
                out.write(packed)
            steps.append(_Step(log.step, received, log.spans.dump(), tuple(frames)))
        footer = zstd.compress(msgspec.msgpack.encode(_Footer(1, tuple(steps))), level=_LEVEL)
        out.write(footer)
        out.write(_TAIL.pack(len(footer), _MAGIC))
        out.flush()
        os.fsync(out.fileno())
    draft.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class SealedStep:
    """One step of a sealed log; the frame last read is kept."""

    def __init__(self, path: Path, entry: _Step) -> None:
        self.step = entry.step
        self.received = entry.received
        self.spans = Spans.load(entry.columns)
        self.stored = self.spans.stored[-1] if len(self.spans) else 0
        self._path = path
        self._frames = entry.frames
        self._last: tuple[int, bytes] = (-1, b"")

    def bytes_at(self, offset: int, limit: int) -> bytes:
        """At most `limit` bytes from `offset` on. Raises DamagedError, OSError."""
        until = min(self.stored, offset + limit)
        parts: list[bytes] = []
        while offset < until:
            data = self._frame(offset // FRAME)
            at = offset % FRAME
            part = data[at : at + until - offset]
            if not part:
                raise DamagedError(self._path)
            parts.append(part)
            offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _frame(self, number: int) -> bytes:
        last = self._last
        if last[0] == number:
            return last[1]
        begin, size = self._frames[number]
        with self._path.open("rb") as file:
            file.seek(begin)
            packed = file.read(size)
        try:
            data = zstd.ZstdDecompressor().decompress(packed, max_length=FRAME)
        except zstd.ZstdError as error:
            raise DamagedError(self._path) from error
        self._last = (number, data)
        return data


def load(path: Path) -> dict[int, SealedStep]:
    """The steps of a sealed log. Raises DamagedError, OSError (FileNotFoundError where there is none)."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        if end < len(_MAGIC) + _TAIL.size:
            raise DamagedError(path)
        file.seek(end - _TAIL.size)
        size, magic = _TAIL.unpack(file.read(_TAIL.size))
        if magic != _MAGIC or size > end - _TAIL.size - len(_MAGIC):
            raise DamagedError(path)
        file.seek(end - _TAIL.size - size)
        packed = file.read(size)
    try:
        raw = zstd.ZstdDecompressor().decompress(packed, max_length=_FOOTER_LIMIT)
        footer = msgspec.msgpack.decode(raw, type=_Footer)
        return {entry.step: SealedStep(path, entry) for entry in footer.steps}
    except (zstd.ZstdError, msgspec.DecodeError, ValueError) as error:
        raise DamagedError(path) from error
