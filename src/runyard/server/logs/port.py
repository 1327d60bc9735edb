"""What a log store promises, whatever keeps the bytes; one suite holds each of them to it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, Protocol

from runyard.job import WorkError

if TYPE_CHECKING:
    from runyard.job import LogKind
    from runyard.report.masks import Masker

ATTEMPT_LIMIT = 1 << 30
"""Stored bytes of one attempt; what comes after is counted as received, said once and not kept."""

READ_LIMIT = 4 << 20
"""The most bytes that one read gives."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


class AttemptKey(NamedTuple):
    """One attempt of one job: whose log it is."""

    job: str
    attempt: int

    def checked(self) -> AttemptKey:
        """Itself. Raises ValueError where the job's id could not be the name of a folder."""
        if not _ID.fullmatch(self.job) or self.attempt < 0:
            raise ValueError(f"not a job's id: {self.job!r}")
        return self


class StepLog(NamedTuple):
    """How much there is of one step: bytes received, bytes stored, whole lines stored."""

    step: int
    received: int
    stored: int
    lines: int
    sealed: bool


class Chunk(NamedTuple):
    """Stored bytes of one kind, with the time they came."""

    offset: int
    data: bytes
    kind: LogKind
    time_ns: int


class Line(NamedTuple):
    """One stored line without its line end. `number` counts from 1 in its step; `offset` is where it begins."""

    number: int
    offset: int
    time_ns: int
    kind: LogKind
    text: bytes


class Match(NamedTuple):
    """A line that holds the text searched for; `column` counts bytes from 0."""

    step: int
    line: int
    offset: int
    column: int
    text: bytes


class GapError(WorkError):
    """The append starts beyond what was received; `expected` is where it has to start."""

    def __init__(self, expected: int) -> None:
        super().__init__(f"bytes are missing before this offset; {expected} is the next", code="log.gap")
        self.expected = expected


class SealedError(WorkError):
    """The attempt's log is closed."""

    def __init__(self) -> None:
        super().__init__("this log is sealed: the attempt is over", code="log.sealed")


class NoLogError(WorkError):
    """There is no log of that step."""

    def __init__(self, attempt: AttemptKey, step: int) -> None:
        super().__init__(f"job {attempt.job}, attempt {attempt.attempt} has no log of step {step}", code="log.none")


class LogStore(Protocol):
    """Keeps masked bytes by attempt and step. Calls for different attempts don't wait for each other."""

    def append(
        self, attempt: AttemptKey, step: int, offset: int, data: bytes, *, kind: LogKind, time_ns: int, masker: Masker
    ) -> int:
        """Take `data`, which starts at received byte `offset`; the number of bytes received now.

        Safe to repeat. When it returns, the bytes outlive the server's process. Raises GapError, SealedError, OSError.
        """

    def finish(self, attempt: AttemptKey, step: int, masker: Masker) -> None:
        """No more bytes of this step: store what was held back. Safe to repeat."""

    def steps(self, attempt: AttemptKey) -> list[StepLog]:
        """Every step that has a log, by number; empty for an attempt nobody wrote."""

    def read(self, attempt: AttemptKey, step: int, offset: int, limit: int = READ_LIMIT) -> list[Chunk]:
        """Stored bytes from `offset` on, at most `limit` of them; empty at the end. Raises NoLogError."""

    def lines(self, attempt: AttemptKey, step: int, first: int, count: int) -> list[Line]:
        """`count` lines from line `first` on; the last may still be without its end. Raises NoLogError."""

    def tail(self, attempt: AttemptKey, step: int, count: int) -> list[Line]:
        """The last `count` lines. Raises NoLogError."""

    def search(
        self, attempt: AttemptKey, text: str, *, step: int | None = None, limit: int = 200, ignore_case: bool = True
    ) -> list[Match]:
        """The first `limit` lines that hold `text`, in the order of steps and lines."""

    def seal(self, attempt: AttemptKey, masker: Masker) -> None:
        """Close the attempt's log for good. Safe to repeat and to be interrupted."""

    def size(self, attempt: AttemptKey) -> int:
        """Bytes on disk."""

    def remove(self, attempt: AttemptKey) -> None:
        """Forget the attempt's log. Safe to repeat."""
