"""The built-in functions (job-semantics 1.8 to 1.11).

Each takes its call unevaluated: most leave arguments alone that can't matter any more.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NoReturn

from runyard.expression.errors import ExpressionError
from runyard.expression.json_text import JsonError, from_json, to_json_text
from runyard.expression.ordinal import fold
from runyard.expression.values import equals, is_primitive, kind_of, to_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from runyard.expression.frame import Frame
    from runyard.expression.syntax import Call
    from runyard.job.template import Json

_PIECE = re.compile(r"[^{}]+|\{\{|\}\}|\{([0-9]+)(?::((?:[^}]|\}\})*))?\}")


def _fail(node: Call, message: str) -> NoReturn:
    raise ExpressionError("evaluation", message, node.position)


def _contains(node: Call, frame: Frame) -> bool:
    search = frame.value(node.arguments[0])
    if is_primitive(search):
        item = frame.value(node.arguments[1])
        return is_primitive(item) and fold(to_text(item)) in fold(to_text(search))
    if isinstance(search, dict) or not search:
        return False
    item = frame.value(node.arguments[1])
    return any(equals(each, item) for each in search)


def _starts_with(node: Call, frame: Frame) -> bool:
    texts = _two_texts(node, frame)
    return texts is not None and texts[0].startswith(texts[1])


def _ends_with(node: Call, frame: Frame) -> bool:
    texts = _two_texts(node, frame)
    return texts is not None and texts[0].endswith(texts[1])


def _two_texts(node: Call, frame: Frame) -> tuple[str, str] | None:
    left = frame.value(node.arguments[0])
    if not is_primitive(left):
        return None
    right = frame.value(node.arguments[1])
    return (fold(to_text(left)), fold(to_text(right))) if is_primitive(right) else None


def _format(node: Call, frame: Frame) -> str:
    pattern = to_text(frame.value(node.arguments[0]))
    pieces = _pieces(pattern)
    if pieces is None:
        _fail(node, f"The following format string is invalid: {pattern}")
    for piece in pieces:
        if not isinstance(piece, str) and piece[0] > len(node.arguments) - 2:
            _fail(node, f"The following format string references more arguments than were supplied: {pattern}")
    values: dict[int, Json] = {}
    made: list[str] = []
    size = 0
    for piece in pieces:
        if isinstance(piece, str):
            text = piece
        else:
            number, specifier = piece
            if number not in values:
                values[number] = frame.value(node.arguments[number + 1])
            if specifier:
                kind = kind_of(values[number])
                _fail(node, f"The format specifiers '{specifier}' are not valid for objects of type '{kind}'")
            text = to_text(values[number])
        size += len(text)
        frame.reserve(size)
        made.append(text)
    return "".join(made)


@lru_cache(maxsize=1024)
def _pieces(pattern: str) -> tuple[str | tuple[int, str], ...] | None:
    """Text and (argument, specifier) in turn; None for an invalid pattern."""
    pieces: list[str | tuple[int, str]] = []
    at = 0
    while at < len(pattern):
        found = _PIECE.match(pattern, at)
        if found is None:
            return None
        if found[1] is None:
            pieces.append(found[0][0] if found[0] in {"{{", "}}"} else found[0])
        else:
            number = int(found[1][-4:]) if not found[1][:-4].strip("0") else 256
            if number > 255:
                return None
            pieces.append((number, (found[2] or "").replace("}}", "}")))
        at = found.end()
    return tuple(pieces)


def _join(node: Call, frame: Frame) -> str:
    items = frame.value(node.arguments[0])
    if is_primitive(items):
        return to_text(items)
    if isinstance(items, dict):
        return ""
    separator = ","
    if len(items) > 1 and len(node.arguments) > 1:
        given = frame.value(node.arguments[1])
        if is_primitive(given):
            separator = to_text(given)
    texts = [to_text(item) for item in items]
    frame.reserve(sum(map(len, texts)) + len(separator) * max(len(texts) - 1, 0))
    return separator.join(texts)


def _to_json(node: Call, frame: Frame) -> str:
    value = frame.value(node.arguments[0])
    try:
        return to_json_text(value)
    except JsonError as error:
        _fail(node, f"Error writing toJSON: {error}")


def _from_json(node: Call, frame: Frame) -> Json:
    text = to_text(frame.value(node.arguments[0]))
    try:
        if frame.options.lenient_json:
            from runyard.expression.json_lenient import from_lenient_json

            return from_lenient_json(text)
        return from_json(text)
    except JsonError as error:
        raise ExpressionError("evaluation", f"Error parsing fromJSON: {error}", node.position) from None


def _case(node: Call, frame: Frame) -> Json:
    arguments = node.arguments
    for at in range(0, len(arguments) - 1, 2):
        chosen = frame.value(arguments[at])
        if not isinstance(chosen, bool):
            _fail(node, "case predicate must evaluate to a boolean value")
        if chosen:
            return frame.value(arguments[at + 1])
    return frame.value(arguments[-1])


BUILT_IN: Final[dict[str, Callable[[Call, Frame], Json]]] = {
    "case": _case,
    "contains": _contains,
    "endswith": _ends_with,
    "format": _format,
    "fromjson": _from_json,
    "join": _join,
    "startswith": _starts_with,
    "tojson": _to_json,
}
