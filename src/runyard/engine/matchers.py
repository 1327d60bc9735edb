"""Problem matchers: regular expressions that make annotations of a tool's output (job-semantics 12).

They come from the job and run over every line, so two rules: a line without a hit costs next to nothing, and a pattern
that takes too long is stopped and its matcher removed with a warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runyard.job import Annotation, AnnotationLevel

MATCH_TIMEOUT_S = 1.0
"""One pattern on one line; `GITHUB_ACTIONS_RUNNER_ISSUE_MATCHER_TIMEOUT` sets another (`parse_timespan`)."""


class MatcherError(ValueError):
    """A matcher file that is refused: the `add-matcher` command fails with this text."""


class Issue(msgspec.Struct, frozen=True):
    """What a matcher found. `line_text` is the whole original line without its end, which the log shows tagged."""

    owner: str
    level: AnnotationLevel
    message: str
    line_text: str
    file: str | None = None
    from_path: str | None = None
    line: int | None = None
    column: int | None = None
    code: str | None = None


class Removed(msgspec.Struct, frozen=True):
    """A matcher was taken out because its pattern took too long; `warning` is the text to log."""

    owner: str
    warning: str


Found: TypeAlias = bytes | Issue | Removed
"""Plain bytes unchanged; an issue in place of its line (print `issue_line(level, line_text)`); a removal."""


def parse_timespan(text: str) -> float | None:
    """Seconds of .NET's timespan text (`[d.]hh:mm:ss[.fffffff]`, or days alone); None where it is none."""


class Matchers:
    """The matchers of one job. They live until removed or the job's end, across steps and inside composites.

    `strip_ansi` takes colour codes away before matching, which GitHub doesn't do (C24).
    """

    def __init__(self, *, timeout_s: float = MATCH_TIMEOUT_S, strip_ansi: bool = False) -> None:
        raise NotImplementedError

    def add(self, config: bytes) -> tuple[str, ...]:
        """Add the matchers of a JSON file; the owners. Raises MatcherError; then none of them is added."""

    def remove(self, owner: str) -> bool:
        """Take a matcher out (names ignore case); False where there is none."""

    def remove_all_of(self, config: bytes) -> tuple[str, ...]:
        """Take out the owners that a JSON file names. Raises MatcherError."""

    @property
    def owners(self) -> tuple[str, ...]:
        """Active matchers, newest first."""

    def scan(self, data: bytes) -> Iterator[Found]:
        """Look through whole lines (an unfinished last line counts as one). Order and bytes are kept."""


def annotation_of(
    issue: Issue, *, step: int, time_ns: int, localise: Callable[[str, str | None], str | None] | None = None
) -> Annotation:
    """The annotation of an issue. `localise(file, from_path)` gives the path in the repository, or None to leave it out."""
