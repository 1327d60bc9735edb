"""Finds every mask in a block of bytes, and how much of its end could still become one.

Search goes by keys: of each pattern the eight bytes least likely to stand in a log, all of them in one automaton; a
hit is then compared in full. That keeps the automaton small however long secrets are. Most blocks hold no key, and a
filter finds that out at twice the speed of the automaton. Patterns added since it was
built are looked up in a table until the time spent there would have paid for building it anew, so ten thousand masks
that come one by one, each with a line of output after it, cost no more than twice the best.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ahocorasick_rs import BytesAhoCorasick

_KEY = 8
_FULL_BUCKET = 16
"""The forms of one secret mostly share a key; so many patterns of one are compared where it stands."""
_LOOKED_AT = 64
_RARE_ENOUGH = 14
_DFA_KEYS = 4000
PADDING = (b"\x01\x00runyard", b"\x02\x00runyard", b"\x03\x00runyard", b"\x04\x00runyard")
"""Beside these, a few texts are searched for side by side; three alone would be searched for by their first letters."""
_GROUP = 64 - len(PADDING)
"""So many keys are searched for side by side, at several gigabytes a second; one more, and it is five times slower."""
_MANY_HITS = 64
_FILTERED_KEYS = 10 * _GROUP
_BUILD_COST = 100
"""Building costs about as much for a key as a look-up in the table for this many bytes."""

Range = tuple[int, int]


def _weight(byte: int) -> int:
    char = chr(byte)
    if char.isdigit() or char.isupper():
        return 3
    return 1 if char.islower() or char in " \t\r\n-_=./:" else 2


_WEIGHTS = bytes(_weight(byte) for byte in range(256))


def _rarest(pattern: bytes, taken: dict[bytes, list[tuple[bytes, int]]]) -> tuple[bytes, int]:
    """The part of `pattern` to look for, and where in it that stands."""
    if len(pattern) <= _KEY:
        return pattern, 0
    best, best_at = 0, 0
    for start in range(0, min(len(pattern), _LOOKED_AT) - _KEY + 1, _KEY // 2):
        weight = sum(pattern[start : start + _KEY].translate(_WEIGHTS))
        if weight > best:
            best, best_at = weight, start
        if weight >= _RARE_ENOUGH:
            break
    key = pattern[best_at : best_at + _KEY]
    if len(taken.get(key, ())) < _FULL_BUCKET:
        return key, best_at
    return pattern, 0


class PatternSearch:
    """Literal patterns; they are only ever added. Single bytes are the caller's: they are too many to list as hits."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()
        self._buckets: dict[bytes, list[tuple[bytes, int]]] = {}
        self._automaton: BytesAhoCorasick | None = None
        self._filters: list[BytesAhoCorasick] = []
        self._longest_key = 0
        self._built: list[list[tuple[bytes, int]]] = []
        self._young: dict[bytes, list[bytes]] = {}
        self._young_short: list[bytes] = []
        self._young_waits: list[bytes] = []
        self._spent = 0
        self._sorted: list[bytes] = []
        self._unsorted: list[bytes] = []
        self._starts: set[bytes] = set()
        self._heads: dict[bytes, list[bytes]] = {}
        self._longest = 0

    def add(self, patterns: Iterable[bytes]) -> None:
        """More patterns, each of two bytes or more; the ones known already are passed over."""
        for pattern in patterns:
            if pattern in self._known:
                continue
            self._known.add(pattern)
            self._young_waits.append(pattern)
            self._unsorted.append(pattern)
            self._longest = max(self._longest, len(pattern))
            line_end = pattern.find(b"\n") + 1
            if line_end:
                self._heads.setdefault(pattern[:line_end], []).append(pattern)

    def __len__(self) -> int:
        return len(self._known)

    def find(self, data: bytes) -> list[Range]:
        """Where patterns stand in `data`, sorted, with what overlaps or touches made one."""
        found: list[Range] = []
        if self._has_young():
            self._choose(len(data))
            if self._has_young():
                self._find_young(data, found)
        for begin_at, end_at in self._places(data) if self._built else ():
            part = data[begin_at:end_at] if begin_at or end_at < len(data) else data
            for key, start, _ in self._exact().find_matches_as_indexes(part, overlapping=True):
                for pattern, offset in self._built[key]:
                    begin = begin_at + start - offset
                    if begin >= 0 and data.startswith(pattern, begin):
                        found.append((begin, begin + len(pattern)))
        return merge(found) if len(found) > 1 else found

    def unfinished(self, data: bytes) -> int:
        """The first position from which the rest of `data` is the beginning of a pattern; its length where none is."""
        size = result = len(data)
        line = data.rfind(b"\n") + 1
        if line == size and not self._heads:
            return size
        self._sort()
        starts = self._starts
        for at in range(max(line, size - self._longest + 1), size):
            if data[at : at + 3] in starts and self._begins_one(data[at:]):
                result = at
                break
        if line and self._heads:
            result = min(result, self._unfinished_lines(data))
        return result

    def _unfinished_lines(self, data: bytes) -> int:
        """The same for patterns of several lines that begin in a line that has ended."""
        size = result = len(data)
        for head, patterns in self._heads.items():
            longest = max(map(len, patterns))
            at = data.find(head, max(0, size - longest + 1), result + len(head))
            while at >= 0 and at < result:
                rest = data[at:]
                if any(len(pattern) > len(rest) and pattern.startswith(rest) for pattern in patterns):
                    result = at
                    break
                at = data.find(head, at + 1)
        return result

    def _begins_one(self, text: bytes) -> bool:
        at = bisect_left(self._sorted, text)
        if at < len(self._sorted) and self._sorted[at] == text:
            at += 1
        return at < len(self._sorted) and self._sorted[at].startswith(text)

    def _sort(self) -> None:
        if not self._unsorted:
            return
        if len(self._unsorted) > 64:
            self._sorted = sorted([*self._sorted, *self._unsorted])
        else:
            for pattern in self._unsorted:
                insort(self._sorted, pattern)
        for pattern in self._unsorted:
            self._starts.update((pattern[:1], pattern[:2], pattern[:3]))
        self._unsorted.clear()

    def _has_young(self) -> bool:
        return bool(self._young_waits or self._young or self._young_short)

    def _choose(self, size: int) -> None:
        """Build anew, or look up in the table once more."""
        self._spent += size
        if self._spent >= _BUILD_COST * len(self._known):
            self._build()
            return
        for pattern in self._young_waits:
            if len(pattern) < 4:
                self._young_short.append(pattern)
            else:
                self._young.setdefault(pattern[:4], []).append(pattern)
        self._young_waits.clear()

    def _build(self) -> None:
        from ahocorasick_rs import BytesAhoCorasick, MatchKind

        young = [*self._young_waits, *self._young_short]
        for patterns in self._young.values():
            young.extend(patterns)
        for pattern in young:
            key, offset = _rarest(pattern, self._buckets)
            self._buckets.setdefault(key, []).append((pattern, offset))
        self._built = list(self._buckets.values())
        self._automaton = None
        keys = list(self._buckets)
        groups = [keys[at : at + _GROUP] for at in range(0, len(keys), _GROUP)] if len(keys) <= _FILTERED_KEYS else []
        self._filters = [BytesAhoCorasick([*group, *PADDING], matchkind=MatchKind.LeftmostFirst) for group in groups]
        self._longest_key = max(map(len, keys), default=0)
        self._young_waits, self._young_short, self._young, self._spent = [], [], {}, 0

    def _places(self, data: bytes) -> list[Range]:
        """The parts of `data` that hold all its keys: none, mostly, or the surroundings of what the filter found.

        The filter doesn't tell keys that overlap one it tells, so it is looked at once more around each.
        """
        if not self._filters:
            return [(0, len(data))]
        places: list[Range] = []
        for group in self._filters:
            hits = group.find_matches_as_indexes(data)
            if len(hits) > _MANY_HITS:
                return [(0, len(data))]
            places.extend((max(0, start - self._longest_key), end + self._longest_key) for _, start, end in hits)
        return merge(places) if len(places) > 1 else places

    def _exact(self) -> BytesAhoCorasick:
        """The automaton of all keys; it is built when a block has one for the first time."""
        if self._automaton is None:
            from ahocorasick_rs import BytesAhoCorasick, Implementation

            kind = Implementation.DFA if len(self._buckets) <= _DFA_KEYS else Implementation.ContiguousNFA
            self._automaton = BytesAhoCorasick(self._buckets, implementation=kind)
        return self._automaton

    def _find_young(self, data: bytes, found: list[Range]) -> None:
        for pattern in self._young_short:
            at = data.find(pattern)
            while at >= 0:
                found.append((at, at + len(pattern)))
                at = data.find(pattern, at + 1)
        young = self._young
        if not young:
            return
        for at in [place for place in range(len(data) - 3) if data[place : place + 4] in young]:
            found.extend(
                (at, at + len(pattern)) for pattern in young[data[at : at + 4]] if data.startswith(pattern, at)
            )


def merge(ranges: list[Range]) -> list[Range]:
    """Sorted, with what overlaps or touches made one."""
    ranges.sort()
    merged: list[Range] = []
    begin, end = ranges[0]
    for start, stop in ranges:
        if start <= end:
            end = max(end, stop)
        else:
            merged.append((begin, end))
            begin, end = start, stop
    merged.append((begin, end))
    return merged
