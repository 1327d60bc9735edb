"""A Template to JSON: expressions evaluated, mappings merged, sequences spliced, kinds checked.

Source: job-semantics 1.13 to 1.15. All errors of a template are gathered, each with its place, before one
TemplateError names them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias, assert_never

from runyard.expression.errors import ExpressionError, TemplateError, utf16_length
from runyard.expression.evaluator import evaluate
from runyard.expression.frame import TEMPLATE, Functions, Looked, Options
from runyard.expression.numbers import normal
from runyard.expression.ordinal import fold
from runyard.expression.parser import parse
from runyard.expression.values import is_primitive, to_text
from runyard.job.template import (
    BooleanToken,
    ExpressionToken,
    InsertToken,
    Json,
    MappingToken,
    NullToken,
    NumberToken,
    Position,
    SequenceToken,
    Template,
    TextToken,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Want: TypeAlias = Literal["any", "string", "boolean", "number", "sequence", "mapping", "strings", "texts"]
"""What a place takes; `strings` is a mapping whose values are text, `texts` a sequence of text."""

MAX_DEPTH: Final = 50
MANIFEST_DEPTH: Final = 100
MAX_EVENTS: Final = 1_000_000
MAX_ERRORS: Final = 10
_ERROR_LENGTH: Final = 500


def evaluate_template(
    template: Template | None,
    contexts: Mapping[str, Json],
    functions: Functions | None = None,
    *,
    want: Want = "any",
    options: Options = TEMPLATE,
    files: Sequence[str] = (),
    max_depth: int = MAX_DEPTH,
    trace: list[Looked] | None = None,
) -> Json:
    """The value of a template as JSON of the kind that `want` says; None for no template.

    Only the contexts and functions given exist. `files` names the files that positions index. Raises TemplateError. The
    answer may share parts of the contexts: neither is to be changed.
    """
    if template is None:
        return None
    if isinstance(template, TextToken) and want in {"any", "string"}:
        return template.value
    if isinstance(template, ExpressionToken) and trace is None:
        try:
            value = evaluate(
                parse(template.text, contexts=contexts, functions=functions or ()), contexts, functions, options
            )
            if is_primitive(value):
                return coerce(value, want)
        except ExpressionError:
            pass  # Done again below, where the error gets its place. It is the usual case that must be quick.
    evaluation = _Evaluation(contexts, functions, options=options, files=files, max_depth=max_depth, trace=trace)
    value = evaluation.wanted(template, want)
    if evaluation.errors:
        raise TemplateError(evaluation.errors)
    return value


class _Stop(Exception):  # noqa: N818 - ends one evaluation and never leaves this file
    """A limit is reached; the error is recorded."""


class _Evaluation:
    def __init__(
        self,
        contexts: Mapping[str, Json],
        functions: Functions | None,
        *,
        options: Options,
        files: Sequence[str],
        max_depth: int,
        trace: list[Looked] | None,
    ) -> None:
        self._contexts = contexts
        self._functions = functions or {}
        self._options = options
        self._files = files
        self._max_depth = max_depth
        self._trace = trace
        self._events = 0
        self._memory = 0
        self.errors: list[ExpressionError] = []

    def wanted(self, template: Template, want: Want) -> Json:
        """The value of the whole template in the kind it must have."""
        try:
            if want == "strings" and isinstance(template, MappingToken):
                return dict(self._entries(template, 1, want="string"))
            if want == "texts" and isinstance(template, SequenceToken):
                return [self._coerced(value, "string", at) for value, at in self._items(template, 1)]
            return self._coerced(self._value(template, 0), want, template.at)
        except _Stop:
            return None

    def _value(self, token: Template, depth: int) -> Json:
        if isinstance(token, ExpressionToken):
            return self._expression(token, depth)
        self._count(1, depth, token.at)
        match token:
            case TextToken() | BooleanToken():
                return token.value
            case NumberToken():
                return normal(token.value)
            case NullToken():
                return None
            case SequenceToken():
                return [value for value, _ in self._items(token, depth + 1)]
            case MappingToken():
                return dict(self._entries(token, depth + 1))
            case InsertToken():
                self._error(token.at, "The directive 'insert' is not allowed in this context")
                return None
            case _:
                assert_never(token)

    def _expression(self, token: ExpressionToken, depth: int) -> Json:
        try:
            node = parse(token.text, contexts=self._contexts, functions=self._functions)
            value = evaluate(node, self._contexts, self._functions, self._options, trace=self._trace)
        except ExpressionError as error:
            self._error(token.at, error.message, error)
            return None
        self._measure(value, depth, token.at)
        return value

    def _items(self, token: SequenceToken, depth: int) -> Iterable[tuple[Json, Position | None]]:
        """The items with their places; an item that is an expression giving a sequence stands for its items."""
        self._count(1, depth, token.at)
        for each in token.items:
            value = self._value(each, depth)
            if isinstance(each, ExpressionToken) and isinstance(value, (list, tuple)):
                yield from ((item, each.at) for item in value)
            else:
                yield value, each.at

    def _entries(self, token: MappingToken, depth: int, want: Want = "any") -> Iterable[tuple[str, Json]]:
        """The entries in order, merged mappings in place; a key that is there already is an error."""
        self._count(1, depth, token.at)
        seen: set[str] = set()
        for key_token, value_token in token.entries:
            if isinstance(key_token, InsertToken):
                value = self._value(value_token, depth)
                if not isinstance(value, dict):
                    if value is not None or not self.errors:
                        self._error(value_token.at, f"A mapping was expected, {_article(value)} was given")
                    continue
                entries: Iterable[tuple[str, Json]] = value.items()
            else:
                key = self._coerced(self._value(key_token, depth), "string", key_token.at)
                entries = ((key, self._value(value_token, depth)),)
            for key, value in entries:
                if key is None:  # an error, noted already
                    continue
                folded = fold(key)
                if folded in seen:
                    self._error(key_token.at, f"'{key}' is already defined")
                    continue
                seen.add(folded)
                yield key, self._coerced(value, want, value_token.at)

    def _coerced(self, value: Json, want: Want, at: Position | None) -> Json:
        try:
            return coerce(value, want)
        except ExpressionError as error:
            if value is not None or not self.errors:
                self._error(at, error.message)
            return None

    def _measure(self, value: Json, depth: int, at: Position | None) -> None:
        """Count what an expression gave: its values, its depth, its bytes."""
        if is_primitive(value):
            self._count(1, depth, at)
            self._memory += 26 + 2 * len(value) if isinstance(value, str) else 24
            if self._memory <= self._options.max_memory:
                return
        level, deep = [value], depth
        while level:
            self._count(len(level), deep, at)
            self._memory += sum(26 + 2 * utf16_length(each) if isinstance(each, str) else 24 for each in level)
            if self._memory > self._options.max_memory:
                self._error(at, "The maximum allowed memory size was exceeded")
                raise _Stop
            deep += 1
            level = [child for each in level for child in _children(each)]

    def _count(self, events: int, depth: int, at: Position | None) -> None:
        self._events += events
        if self._events > MAX_EVENTS:
            self._error(at, f"The template has more than {MAX_EVENTS} values")
            raise _Stop
        if depth > self._max_depth:
            self._error(at, f"The template is nested deeper than {self._max_depth} levels")
            raise _Stop

    def _error(self, at: Position | None, message: str, cause: ExpressionError | None = None) -> None:
        path = self._files[at.file - 1] if at is not None and 0 < at.file <= len(self._files) else None
        kind = cause.kind if cause is not None else "evaluation"
        position = cause.position if cause is not None else None
        error = ExpressionError(kind, message[:_ERROR_LENGTH], position)
        self.errors.append(error.placed(path, at.line if at else None, at.column if at else None))
        if len(self.errors) >= MAX_ERRORS:
            raise _Stop


def coerce(value: Json, want: Want) -> Json:
    """A value in the kind that a place takes (job-semantics 1.15); ExpressionError, without a place, where it isn't."""
    match want:
        case "any":
            return value
        case "string":
            if is_primitive(value):
                return to_text(value)
        case "boolean":
            if isinstance(value, bool):
                return value
        case "number":
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return value
        case "sequence":
            if isinstance(value, (list, tuple)):
                return value
        case "mapping":
            if isinstance(value, dict):
                return value
        case "strings":
            if isinstance(value, dict):
                return {key: coerce(each, "string") for key, each in value.items()}
        case "texts":
            if isinstance(value, (list, tuple)):
                return [coerce(each, "string") for each in value]
        case _:
            assert_never(want)
    raise ExpressionError("evaluation", _unexpected(value))


def _unexpected(value: Json) -> str:
    if isinstance(value, dict):
        return "A mapping was not expected"
    if is_primitive(value):
        return f"Unexpected value '{to_text(value)}'"
    return "A sequence was not expected"


def _article(value: Json) -> str:
    return "a single value" if is_primitive(value) else "a sequence"


def _children(value: Json) -> Iterable[Json]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()
