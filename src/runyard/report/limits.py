"""What GitHub takes of annotations and summaries, where Runyard keeps all (deviations D1, D2).

Rule kept: what is left out is said in one line with its number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runyard.job import Annotation, Summary

if TYPE_CHECKING:
    from runyard.job import AnnotationLevel, JobEvent

ANNOTATIONS_A_STEP = 10
"""Of each level."""

SUMMARIES_A_JOB = 20


class GitHubLimits:
    """Decides event by event of one job what is shown or sent."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, AnnotationLevel], int] = {}
        self._summaries = 0

    def admits(self, event: JobEvent) -> bool:
        """Whether this event is within what GitHub takes."""
        if isinstance(event, Annotation):
            key = (event.step, event.level)
            self._counts[key] = self._counts.get(key, 0) + 1
            return self._counts[key] <= ANNOTATIONS_A_STEP
        if isinstance(event, Summary):
            self._summaries += 1
            return self._summaries <= SUMMARIES_A_JOB and event.truncated_from is None
        return True

    def left_out(self, step: int) -> str | None:
        """The line that says how many annotations of a step are only in its log, or None."""
        parts = []
        for level in ("error", "warning", "notice"):
            more = self._counts.get((step, level), 0) - ANNOTATIONS_A_STEP
            if more > 0:
                parts.append(f"{more} {level}{'s' if more > 1 else ''}")
        return f"{' and '.join(parts)} more in the log than annotations" if parts else None
