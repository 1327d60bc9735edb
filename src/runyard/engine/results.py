"""How results combine (job-semantics 4.2). Pure."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runyard.job import Conclusion


class Result(enum.IntEnum):
    """The result of a step while it is being made up; the order decides which one wins a merge."""

    SUCCESS = 0
    FAILURE = 2
    CANCELLED = 3
    SKIPPED = 4

    @property
    def conclusion(self) -> Conclusion:
        """The word that contexts, events and people see."""
        return _WORDS[self]


_WORDS: dict[Result, Conclusion] = {
    Result.SUCCESS: "success",
    Result.FAILURE: "failure",
    Result.CANCELLED: "cancelled",
    Result.SKIPPED: "skipped",
}


def merge(current: Result | None, new: Result) -> Result:
    """Nothing yet takes the new value; a value above failure stays; else the larger of both."""
    if current is None:
        return new
    if current > Result.FAILURE:
        return current
    return max(current, new)
