"""What a job was refused, counted: the same record for a proxy's answers and a packet filter's counters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

REMEMBERED: Final = 256
"""Destinations told apart in one job; what comes after them is counted together."""

OTHERS: Final = "other destinations"

OnRefused: TypeAlias = Callable[[str, str], None]
"""Called once for each destination with (`host:port` as the job named it, why). It must not block."""


class RefusedDestination(msgspec.Struct, frozen=True):
    """A destination that the job tried and didn't reach, and how often (packets or connections)."""

    destination: str
    because: str
    count: int = 1


class Refusals:
    """Counts refusals and reports the first of each destination; bounded, whatever a job tries."""

    def __init__(self, on_refused: OnRefused | None = None) -> None:
        self._on_refused = on_refused
        self._seen: dict[str, RefusedDestination] = {}

    def add(self, destination: str, because: str) -> None:
        """One more refusal of `destination`."""
        self.set(destination, because, self._count(destination) + 1)

    def set(self, destination: str, because: str, count: int) -> None:
        """`destination` was refused `count` times so far, as a counter elsewhere says."""
        if destination not in self._seen and len(self._seen) >= REMEMBERED:
            others = self._seen.get(OTHERS)
            count = (others.count if others else 0) + 1
            destination, because = OTHERS, f"more than {REMEMBERED} destinations were refused"
        is_new = destination not in self._seen
        self._seen[destination] = RefusedDestination(destination, because, count)
        if is_new and self._on_refused is not None:
            self._on_refused(destination, because)

    def _count(self, destination: str) -> int:
        seen = self._seen.get(destination)
        return seen.count if seen else 0

    def all(self) -> tuple[RefusedDestination, ...]:
        """Everything refused so far, in the order it was first tried."""
        return tuple(self._seen.values())
