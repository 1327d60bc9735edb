"""Why an expression can't be read or has no value, in a form that names the place.

Rule kept here: a message holds the expression as written and at most the one value that was refused, as GitHub's do;
what prints it masks it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from runyard.job.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

ErrorKind: TypeAlias = Literal["lexing", "parsing", "evaluation"]
"""A malformed token; tokens in an order that has no meaning, or unknown names; no value."""


class ExpressionError(InputError):
    """An expression that is wrong or has no value.

    `kind` says at which stage; `position` counts UTF-16 units from 1 in the expression without its braces (None where
    nothing of it is to blame). `path`, `line` and `column` are set once the expression is known to stand in a file.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        position: int | None = None,
        *,
        path: str | None = None,
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        super().__init__(message, path=path, line=line, column=column, code=f"expression.{kind}")
        self.kind: ErrorKind = kind
        self.position = position

    def placed(self, path: str | None, line: int | None, column: int | None) -> ExpressionError:
        """The same error with the place of the scalar it stands in."""
        return ExpressionError(self.kind, self.message, self.position, path=path, line=line, column=column)

    def __str__(self) -> str:
        if self.line is None:
            return self.message if self.path is None else f"{self.path}: {self.message}"
        place = f"(Line: {self.line}, Col: {self.column}): {self.message}"
        return place if self.path is None else f"{self.path} {place}"


class TemplateError(ExpressionError):
    """All that is wrong with one template; `errors` has at most ten, in the order they were found.

    It is itself the first of them, so `kind`, `position` and the place are that one's.
    """

    def __init__(self, errors: Sequence[ExpressionError]) -> None:
        first = errors[0]
        super().__init__(
            first.kind, first.message, first.position, path=first.path, line=first.line, column=first.column
        )
        self.errors = tuple(errors)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


def utf16_length(text: str) -> int:
    """How many UTF-16 units a text has: what GitHub's limits and positions count."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def position_of(text: str, index: int) -> int:
    """The position, from 1 in UTF-16 units, of a character's index."""
    return utf16_length(text[:index]) + 1
