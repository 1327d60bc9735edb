"""What is wrong with a file, all of it at once, each with its place.

A reader that stops at the first problem makes people fix a file one push at a time, so every stage of the workflow room
adds to a `Problems` and goes on where it can.
"""

from __future__ import annotations

import difflib
from itertools import islice
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from runyard.job import InputError, Position

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST = 1_000
"""Problems of one file after which reading ends."""

_NAMES_COMPARED = 100
_LONGEST_NAME = 64

Severity: TypeAlias = Literal["error", "warning"]


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One finding. `key` is the place in the file (`jobs.build.steps[0].run`); line and column count from 1.

    An `error` is what GitHub refuses; a `warning` is what it takes although it is hardly meant.
    """

    message: str
    line: int | None = None
    column: int | None = None
    key: str = ""
    severity: Severity = "error"
    path: str = ""
    code: str = "workflow.invalid"

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.path or None, self.line, self.column) if part is not None)
        return f"{place}: {self.message}" if place else self.message


class WorkflowError(InputError):
    """A file that GitHub would refuse. `problems` has all of them; the message shows them one a line."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        first = next((problem for problem in problems if problem.severity == "error"), problems[0])
        super().__init__(
            first.message, path=first.path or None, line=first.line, column=first.column, key=first.key, code=first.code
        )
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems if problem.severity == "error")


class TooManyProblemsError(Exception):
    """Ends the reading of a file with more problems than anyone reads; what was found by then stands."""


class Problems:
    """Collects the problems of one file. The same finding at the same place (an alias used twice) counts once.

    A file full of them is not read to its end: one error more than it takes makes `add` raise `TooManyProblemsError`,
    which `read_workflow` and its siblings catch. Warnings beyond that are left out.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._found: dict[tuple[int | None, int | None, str], Problem] = {}
        self._keys: set[str] = set()

    def add(
        self,
        message: str,
        at: Position | tuple[int | None, int | None] | None,
        key: str = "",
        *,
        severity: Severity = "error",
        code: str = "workflow.invalid",
    ) -> None:
        """Notes one problem at a Position or a (line, column)."""
        line, column = at[-2:] if at else (None, None)
        problem = Problem(
            message=message, line=line, column=column, key=key, severity=severity, path=self.path, code=code
        )
        self._keys.add(key)
        full = len(self._found) >= MOST
        if not full:
            self._found.setdefault((line, column, message), problem)
        elif severity == "error":
            self._stop()
            raise TooManyProblemsError

    def _stop(self) -> None:
        message = f"{MOST} problems, and the rest of the file was not read"
        self._found[None, None, message] = Problem(message=message, path=self.path, code="workflow.too_many")

    def extend(self, problems: Iterable[Problem]) -> None:
        """Takes over the problems of another file or stage."""
        for problem in problems:
            self._found.setdefault((problem.line, problem.column, f"{problem.path}:{problem.message}"), problem)

    def mention(self, key: str) -> bool:
        """Whether something was said about a place already."""
        return key in self._keys

    @property
    def refused(self) -> bool:
        """Whether GitHub would refuse the file."""
        return any(problem.severity == "error" for problem in self._found.values())

    def all(self) -> tuple[Problem, ...]:
        """All problems in the order of the file, those without a place first."""
        return tuple(sorted(self._found.values(), key=lambda found: (found.line or 0, found.column or 0)))


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the valid name that is closest to `word`, or nothing."""
    folded = word.lower().replace("_", "-")
    names = {name.lower().replace("_", "-"): name for name in islice(known, _NAMES_COMPARED)}
    if len(word) > _LONGEST_NAME:
        return ""
    if folded in names:
        return f"; did you mean '{names[folded]}'?"
    close = difflib.get_close_matches(folded, names, n=1, cutoff=0.6)
    return f"; did you mean '{names[close[0]]}'?" if close else ""
