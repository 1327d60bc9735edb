"""The run's use of the expression language: which contexts exist, what a field takes, what a condition saw.

The only place of this room that evaluates. A failure is an `UnevaluableError` with the place it came from; the caller
turns it into a job that failed, never into an exception of `advance`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runyard.expression import (
    STRICT_GITHUB,
    TEMPLATE,
    ExpressionError,
    FoldedObject,
    Looked,
    coerce,
    equals,
    evaluate_condition,
    evaluate_template,
    job_status_functions,
    parse,
    source,
    to_text,
)
from runyard.expression.syntax import Call, Constant
from runyard.job import Conclusion, ExpressionToken, Position, TextToken

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runyard.expression import Want
    from runyard.job import Json, RunContext, Template

_SECRET_PATHS = ("github.token", "secrets")


class UnevaluableError(Exception):
    """A field has no value, or one of the wrong kind; `message` says why, `at` where."""

    def __init__(self, message: str, at: Position | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.at = at


class Status(msgspec.Struct, frozen=True):
    """What a job's status functions answer: whether its run is cancelled, results of all ancestors by job id."""

    cancelled: bool
    results: dict[str, Conclusion]


class Evaluator:
    """Evaluates with the contexts of one run; what belongs to a job comes with each call."""

    def __init__(self, context: RunContext, *, strict: bool = False) -> None:
        self._options = STRICT_GITHUB if strict else TEMPLATE
        self._files = context.files
        self._of_run: dict[str, Json] = {
            "github": FoldedObject({**context.github, "event": context.event}),
            "vars": FoldedObject(context.vars),
        }

    def value(self, template: Template, contexts: Mapping[str, Json]) -> Json:
        """The value of a template. Raises UnevaluableError."""
        if isinstance(template, TextToken):
            return template.value
        try:
            return evaluate_template(template, {**self._of_run, **contexts}, options=self._options)
        except ExpressionError as error:
            raise UnevaluableError(error.message, _place(error, template.at)) from error

    def condition(self, condition: str, contexts: Mapping[str, Json], status: Status) -> tuple[bool, dict[str, Json]]:
        """Whether a wrapped condition holds, and each value it looked at, in order. Raises UnevaluableError."""
        trace: list[Looked] = []
        try:
            holds = evaluate_condition(
                condition,
                {**self._of_run, **contexts},
                job_status_functions(status.results, cancelled=status.cancelled),
                self._options,
                trace=trace,
            )
        except ExpressionError as error:
            raise UnevaluableError(error.message) from error
        return holds, {text: _shown(text, value) for text, value in trace}

    def equal(self, left: Json, right: Json) -> bool:
        """The `==` of expressions."""
        return equals(left, right)

    def text(self, value: Json) -> str:
        """The text of a scalar, as expressions write it."""
        return to_text(value)


def _place(error: ExpressionError, at: Position | None) -> Position | None:
    if error.line is not None and error.column is not None:
        return Position(at.file if at is not None else 0, error.line, error.column)
    return at


def _shown(path: str, value: Json) -> Json:
    return None if path.lower().startswith(_SECRET_PATHS) else value


def _of_kind(value: Json, want: Want, template: Template, what: str) -> Json:
    try:
        return coerce(value, want)
    except ExpressionError as error:
        raise UnevaluableError(f"{what}: {error.message}" if what else error.message, template.at) from error


def text(value: Json, template: Template, what: str = "") -> str:
    """The value as text, as job-semantics 1.15 takes it. Raises UnevaluableError for a mapping or sequence."""
    return str(_of_kind(value, "string", template, what))


def boolean(value: Json, template: Template, what: str = "") -> bool:
    """The value if it is a boolean; the text `true` is not."""
    return bool(_of_kind(value, "boolean", template, what))


def number(value: Json, template: Template, what: str = "") -> float:
    """The value if it is a number; the text `10` is not. Whole numbers come as int."""
    found = _of_kind(value, "number", template, what)
    assert isinstance(found, (int, float))
    return found


def written(template: Template) -> str:
    """A text field as it was written, expressions in their braces."""
    if isinstance(template, TextToken):
        return template.value
    if not isinstance(template, ExpressionToken):
        return ""
    try:
        node = parse(template.text)
    except ExpressionError:
        return f"${{{{ {template.text} }}}}"
    if isinstance(node, Call) and node.key == "format" and isinstance(node.arguments[0], Constant):
        pattern = node.arguments[0].value
        braced = [f"${{{{ {source(argument)} }}}}" for argument in node.arguments[1:]]
        if isinstance(pattern, str) and braced:
            return _filled(pattern, braced)
    return f"${{{{ {template.text} }}}}"


def _filled(pattern: str, values: list[str]) -> str:
    parts = []
    at = 0
    while at < len(pattern):
        if pattern.startswith(("{{", "}}"), at):
            parts.append(pattern[at])
            at += 2
            continue
        end = pattern.find("}", at)
        if pattern[at] == "{" and end > at and pattern[at + 1 : end].isdecimal():
            index = int(pattern[at + 1 : end])
            parts.append(values[index] if index < len(values) else pattern[at : end + 1])
            at = end + 1
            continue
        parts.append(pattern[at])
        at += 1
    return "".join(parts)
