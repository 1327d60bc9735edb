"""What a sink is: something that takes masked events of one job, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from runyard.job import JobEvent


class Sink(Protocol):
    """Takes events in order. It never raises for what an event holds and never blocks for long."""

    def take(self, event: JobEvent) -> None:
        """One event, already masked."""

    def close(self) -> None:
        """No more will come; flush. A second close is quiet."""
