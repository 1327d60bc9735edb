"""One measured figure of a row, with its baseline from the same run, and the verdict on its target.

A row is a module `bench/<row with _>.py` with `measure() -> Iterator[Figure]`; `bench/run.py` finds and prints all.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Figure:
    """`value` and `baseline` share `unit`; `target` is what `value` (or value / baseline if `of_ratio`) must keep to.

    `at_least` turns the comparison round: for rates, more is better.
    """

    row: str
    name: str
    value: float
    unit: str
    baseline: float
    baseline_name: str
    target: float | None
    at_least: bool = False
    of_ratio: bool = False

    @property
    def ratio(self) -> float:
        """Value over baseline."""
        return self.value / self.baseline if self.baseline else float("inf")

    @property
    def judged(self) -> float:
        """The number that the target is about."""
        return self.ratio if self.of_ratio else self.value

    @property
    def is_met(self) -> bool | None:
        """None where the row has no target."""
        if self.target is None:
            return None
        return self.judged >= self.target if self.at_least else self.judged <= self.target


def median(values: Sequence[float]) -> float:
    """The median of at least one value."""
    return statistics.median(values)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0 to 1) of the values don't exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered)) - 1))]
