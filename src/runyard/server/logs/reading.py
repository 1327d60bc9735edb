"""Chunks, lines, the tail and search over one step's stored bytes, live or sealed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from runyard.server.logs.port import READ_LIMIT, Chunk, Line, Match

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runyard.server.logs.index import Spans

_BLOCK = 1 << 20
LINE_LIMIT = 64 << 10
"""A longer line is shown up to here; its bytes are all there by offset."""


class Stored(Protocol):
    """The bytes of one step."""

    step: int

    @property
    def spans(self) -> Spans:
        """Where each append's bytes end."""

    @property
    def stored(self) -> int:
        """How many bytes there are."""

    def bytes_at(self, offset: int, limit: int) -> bytes:
        """At most `limit` bytes from `offset` on, fewer only at the end."""


def chunks(log: Stored, offset: int, limit: int) -> list[Chunk]:
    """Stored bytes from `offset` on, cut where kind or time change; neighbours of one kind and time are one."""
    spans = log.spans
    until = min(log.stored, offset + max(0, min(limit, READ_LIMIT)))
    if offset >= until:
        return []
    data = log.bytes_at(offset, until - offset)
    found: list[Chunk] = []
    at = offset
    span = spans.at(offset)
    while at < until and span < len(spans):
        end = min(until, spans.stored[span])
        found.append(Chunk(at, data[at - offset : end - offset], spans.kind(span), spans.times[span]))
        at = end
        span += 1
    return found


def count_lines(log: Stored) -> int:
    """Lines, the unfinished last one among them."""
    spans = log.spans
    if not log.stored:
        return 0
    ends = spans.lines[-1]
    return ends + (0 if log.bytes_at(log.stored - 1, 1) == b"\n" else 1)


def lines(log: Stored, first: int, count: int) -> list[Line]:
    """`count` lines from `first` on."""
    if count <= 0 or not len(log.spans):
        return []
    found: list[Line] = []
    first = max(1, first)
    for line in _from_line(log, first):
        found.append(line)
        if len(found) >= count:
            break
    return found


def tail(log: Stored, count: int) -> list[Line]:
    """The last `count` lines."""
    total = count_lines(log)
    return lines(log, max(1, total - count + 1), min(count, total))


def _from_line(log: Stored, first: int) -> Iterator[Line]:
    spans = log.spans
    span = spans.of_line(first)
    if span < len(spans):
        offset, number = _skip(log, spans.begin(span), spans.lines_before(span) + 1, first)
        if number == first:
            yield from _walk(log, offset, number)


def _skip(log: Stored, offset: int, number: int, until: int) -> tuple[int, int]:
    """Go over line ends from `offset`, which lies in line `number`, to where line `until` begins."""
    while number < until and offset < log.stored:
        data = log.bytes_at(offset, _BLOCK)
        at = -1
        for _ in range(until - number):
            following = data.find(b"\n", at + 1)
            if following < 0:
                break
            at = following
            number += 1
        if number == until:
            return offset + at + 1, number
        offset += len(data)
    return offset, number


def _walk(log: Stored, offset: int, number: int) -> Iterator[Line]:
    spans = log.spans
    begin = offset
    parts: list[bytes] = []
    size = 0
    while offset < log.stored:
        data = log.bytes_at(offset, _BLOCK)
        at = 0
        while at < len(data):
            end = data.find(b"\n", at)
            piece = data[at:] if end < 0 else data[at:end]
            if size < LINE_LIMIT:
                parts.append(piece[: LINE_LIMIT - size])
            size += len(piece)
            if end < 0:
                break
            yield _line(spans, number, begin, parts)
            number += 1
            at = end + 1
            begin = offset + at
            parts, size = [], 0
        offset += len(data)
    if size:
        yield _line(spans, number, begin, parts)


def _line(spans: Spans, number: int, begin: int, parts: list[bytes]) -> Line:
    span = min(spans.at(begin), len(spans) - 1)
    return Line(number, begin, spans.times[span], spans.kind(span), b"".join(parts).removesuffix(b"\r"))


def search(log: Stored, text: str, *, limit: int, ignore_case: bool) -> list[Match]:
    """Lines that hold `text`, first to last; one match a line."""
    wanted = text.encode("utf-8", "surrogateescape").splitlines()
    if not wanted or not wanted[0] or limit <= 0:
        return []
    finder = _Finder(log.step, wanted[0], limit, ignore_case=ignore_case)
    offset = 0
    carry = b""
    while offset < log.stored and not finder.is_full:
        data = log.bytes_at(offset, _BLOCK)
        block = carry + data
        block_at = offset - len(carry)
        offset += len(data)
        # Whole lines only, except at the end or where a line is longer than a few blocks.
        cut = len(block) if offset >= log.stored else block.rfind(b"\n") + 1
        if not cut and len(block) >= 4 * _BLOCK:
            cut = len(block)
        finder.look(block, cut, block_at)
        carry = block[cut:]
    return finder.found


class _Finder:
    """Goes through blocks of whole lines and counts them. Without case means without that of ASCII letters."""

    def __init__(self, step: int, wanted: bytes, limit: int, *, ignore_case: bool) -> None:
        self.found: list[Match] = []
        self._step = step
        self._wanted = wanted.lower() if ignore_case else wanted
        self._ignore_case = ignore_case
        self._limit = limit
        self._number = 1

    @property
    def is_full(self) -> bool:
        return len(self.found) >= self._limit

    def look(self, block: bytes, cut: int, at: int) -> None:
        """Matches among the first `cut` bytes of `block`, which stands at stored offset `at`."""
        counted = 0
        place = 0
        text = block.lower() if self._ignore_case else block
        while not self.is_full and (hit := text.find(self._wanted, place, cut)) >= 0:
            begin = block.rfind(b"\n", 0, hit) + 1
            end = block.find(b"\n", hit, cut)
            end = cut if end < 0 else end
            self._number += block.count(b"\n", counted, begin)
            counted = begin
            line = block[begin : min(end, begin + LINE_LIMIT)].removesuffix(b"\r")
            self.found.append(Match(self._step, self._number, at + begin, hit - begin, line))
            place = end + 1
        self._number += block.count(b"\n", counted, cut)
