"""The index of one step's log: a record for each append, so that an offset, a line or a time is found without reading.

On disk a record is a fixed head, the bytes that masking holds back (encrypted) and a checksum over both. What a crash
left half written at the end has no right checksum and is cut off; so are log bytes that no record speaks of.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from runyard.job import LogKind

KINDS: tuple[LogKind, ...] = ("output", "command", "runner")

_HEAD = struct.Struct("<QQQqiBI")
_SUM = struct.Struct("<I")


class Record(NamedTuple):
    """The state after one append: bytes received and stored, line ends stored, time, kind, and what is held back."""

    received: int
    stored: int
    lines: int
    time_ns: int
    covered: int
    kind: LogKind
    held: bytes

    def encode(self) -> bytes:
        """As it stands on disk."""
        head = _HEAD.pack(
            self.received,
            self.stored,
            self.lines,
            self.time_ns,
            self.covered,
            KINDS.index(self.kind),
            len(self.held),
        )
        body = head + self.held
        return body + _SUM.pack(zlib.crc32(body))


def decode(data: bytes) -> tuple[list[Record], int]:
    """The whole records at the start of `data`, and how many bytes they take."""
    records: list[Record] = []
    at = 0
    while at + _HEAD.size + _SUM.size <= len(data):
        received, stored, lines, time_ns, covered, kind, length = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        if end + _SUM.size > len(data) or kind >= len(KINDS):
            break
        if _SUM.unpack_from(data, end)[0] != zlib.crc32(data[at:end]):
            break
        held = data[at + _HEAD.size : end]
        records.append(Record(received, stored, lines, time_ns, covered, KINDS[kind], held))
        at = end + _SUM.size
    return records, at


class Spans:
    """Where each append's bytes ended: `stored`, `lines` and `times` side by side, 25 bytes an append in memory."""

    def __init__(self) -> None:
        self.stored = array("Q")
        self.lines = array("Q")
        self.times = array("q")
        self.kinds = bytearray()

    def add(self, record: Record) -> None:
        """One more append; one that stored nothing leaves no span."""
        if record.stored > (self.stored[-1] if self.stored else 0):
            self.stored.append(record.stored)
            self.lines.append(record.lines)
            self.times.append(record.time_ns)
            self.kinds.append(KINDS.index(record.kind))

    def __len__(self) -> int:
        return len(self.stored)

    def at(self, offset: int) -> int:
        """The number of the span that holds the stored byte `offset`."""
        return bisect_right(self.stored, offset)

    def begin(self, span: int) -> int:
        """The stored offset at which a span begins."""
        return self.stored[span - 1] if span else 0

    def of_line(self, line: int) -> int:
        """The number of the first span in which line `line` (from 1) begins or goes on."""
        # Line n begins after n - 1 line ends; the span in which end n - 1 lies may hold its beginning.
        return 0 if line <= 1 else bisect_right(self.lines, line - 2)

    def lines_before(self, span: int) -> int:
        """Line ends stored before a span."""
        return self.lines[span - 1] if span else 0

    def kind(self, span: int) -> LogKind:
        """The kind of a span's bytes."""
        return KINDS[self.kinds[span]]

    def dump(self) -> tuple[bytes, bytes, bytes, bytes]:
        """The four columns, as little-endian bytes."""
        return self.stored.tobytes(), self.lines.tobytes(), self.times.tobytes(), bytes(self.kinds)

    @classmethod
    def load(cls, columns: tuple[bytes, bytes, bytes, bytes]) -> Spans:
        """From what `dump` gave. Raises ValueError when the columns don't fit each other."""
        spans = cls()
        spans.stored.frombytes(columns[0])
        spans.lines.frombytes(columns[1])
        spans.times.frombytes(columns[2])
        spans.kinds += columns[3]
        if not len(spans.stored) == len(spans.lines) == len(spans.times) == len(spans.kinds):
            raise ValueError("an index whose columns differ in length")
        return spans
