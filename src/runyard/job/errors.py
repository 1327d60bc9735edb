"""The errors of Runyard, by what the command line answers.

RunyardError
├── WorkError      exit 1: the work was done and the answer is bad
├── InputError     exit 2: what was given is wrong; names file, line and column
└── MachineError   exit 3: this machine can't do it; names what is missing and the command that provides it

A refusal is a value, not an exception: it travels unchanged from the room that refused to the job's log.
"""

from __future__ import annotations

import msgspec


class RunyardError(Exception):
    """Something a user can act on.

    `code` is stable and dotted (`sandbox.promise`, `config.unknown_key`); `remedy` is the next step, in words or as a
    command; `retryable` says whether the same call may succeed later.
    """

    exit_code = 1

    def __init__(self, message: str, *, code: str = "", remedy: str | None = None, retryable: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.remedy = remedy
        self.retryable = retryable

    def __str__(self) -> str:
        return f"{self.message}\n{self.remedy}" if self.remedy else self.message


class WorkError(RunyardError):
    """The work was done and the answer is bad."""

    exit_code = 1


class InputError(RunyardError):
    """The input is wrong; `path`, `line` and `column` (from 1) say where, `key` which key."""

    exit_code = 2

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        line: int | None = None,
        column: int | None = None,
        key: str | None = None,
        code: str = "input.invalid",
        remedy: str | None = None,
    ) -> None:
        super().__init__(message, code=code, remedy=remedy)
        self.path = path
        self.line = line
        self.column = column
        self.key = key

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.path, self.line, self.column) if part is not None)
        return f"{place}: {super().__str__()}" if place else super().__str__()


class MachineError(RunyardError):
    """This machine can't do it; `remedy` names the command that provides what is missing."""

    exit_code = 3


class Refused(msgspec.Struct, frozen=True):
    """A promise that can't be kept, or a wish that policy forbids: what, why, and what would be accepted."""

    promise: str
    because: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.promise}: {self.because}" + (f" ({self.remedy})" if self.remedy else "")
