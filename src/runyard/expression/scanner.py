"""Where expressions stand in a YAML scalar, and what the scalar is then (job-semantics 1.13).

Text around expressions is rewritten to one call of `format`, so a scalar is always one token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runyard.expression.errors import ExpressionError
from runyard.expression.numbers import WHITESPACE
from runyard.expression.parser import FunctionNames, parse
from runyard.expression.syntax import Constant
from runyard.job.template import ExpressionToken, InsertToken, Position, TextToken

if TYPE_CHECKING:
    from collections.abc import Collection

OPEN: Final = "${{"
_INSERT: Final = "insert"


def parse_text(
    text: str,
    *,
    at: Position | None = None,
    contexts: Collection[str] | None = None,
    functions: FunctionNames | None = None,
    is_key: bool = False,
) -> TextToken | ExpressionToken | InsertToken:
    """The token a scalar's text stands for: text, one expression, or (only where `is_key`) the insert directive.

    `contexts` and `functions` as for `parse`; where both are given and empty no expression may stand, and only a lone
    text in braces passes, as it is none any more. Raises ExpressionError; its position counts within the expression
    that is wrong. No I/O, safe to repeat.
    """
    if OPEN not in text:
        return TextToken(text, at)
    segments = _segments(text)
    for is_expression, segment in segments:
        if not is_expression:
            continue
        if _is_directive(segment):
            return _directive(segment, lone=len(segments) == 1, is_key=is_key, at=at)
        node = parse(segment, contexts=contexts, functions=functions)
        if len(segments) == 1 and segment[0] == "'" and isinstance(node, Constant) and isinstance(node.value, str):
            return TextToken(node.value, at)
    if contexts is not None and functions is not None and not contexts and not functions:
        raise ExpressionError("parsing", "A template expression is not allowed in this context")
    if len(segments) == 1:
        return ExpressionToken(segments[0][1], at)
    return ExpressionToken(_as_format(segments), at)


def _segments(text: str) -> list[tuple[bool, str]]:
    """Text and expressions in turn; expressions trimmed and without braces."""
    segments: list[tuple[bool, str]] = []
    at = 0
    while (start := text.find(OPEN, at)) >= 0:
        if start > at:
            segments.append((False, text[at:start]))
        end = _close(text, start + len(OPEN))
        if end < 0:
            raise ExpressionError(
                "parsing",
                f"The expression is not closed. An unescaped {OPEN} sequence was found, but the closing }}}} "
                f"sequence was not found: {_shortened(text[start:])}",
            )
        expression = text[start + len(OPEN) : end - 2].strip(WHITESPACE)
        if not expression:
            raise ExpressionError("parsing", "An expression was expected")
        segments.append((True, expression))
        at = end
    if at < len(text):
        segments.append((False, text[at:]))
    return segments


def _close(text: str, start: int) -> int:
    """The index after the `}}` that closes what starts here, outside of any quotes; -1 without one."""
    at = start
    while True:
        close = text.find("}}", at)
        quote = text.find("'", at)
        if close < 0 or quote < 0 or close < quote:
            return close + 2 if close >= 0 else -1
        end = text.find("'", quote + 1)
        if end < 0:
            return -1
        at = end + 1


def _is_directive(expression: str) -> bool:
    rest = expression[len(_INSERT) :]
    return expression.startswith(_INSERT) and (not rest or rest[0] in WHITESPACE or rest[0] == "(")


def _directive(expression: str, *, lone: bool, is_key: bool, at: Position | None) -> InsertToken:
    if expression != _INSERT:
        raise ExpressionError("parsing", f"No parameters were expected following the directive '{_INSERT}'")
    if not lone:
        message = (
            f"The directive '{_INSERT}' is not allowed in this context. Directives are not supported for "
            "expressions that are embedded within a string"
        )
        raise ExpressionError("parsing", message)
    if not is_key:
        raise ExpressionError("parsing", f"The directive '{_INSERT}' is only allowed as the key of a mapping")
    return InsertToken(at)


def _as_format(segments: list[tuple[bool, str]]) -> str:
    pattern: list[str] = []
    arguments: list[str] = []
    for is_expression, segment in segments:
        if is_expression:
            pattern.append(f"{{{len(arguments)}}}")
            arguments.append(segment)
        else:
            pattern.append(segment.replace("'", "''").replace("{", "{{").replace("}", "}}"))
    return f"format('{''.join(pattern)}', {', '.join(arguments)})"


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"
