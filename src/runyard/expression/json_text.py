"""JSON as `toJSON` writes it and `fromJSON` reads it (job-semantics 1.10, 1.11).

The reader here is strict, which is Runyard's default (deviation D8); GitHub's lenient one is `json_lenient`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NoReturn

from runyard.expression.numbers import normal, number_text
from runyard.expression.ordinal import fold

if TYPE_CHECKING:
    from runyard.job.template import Json

MAX_DEPTH: Final = 100
MAX_WRITE_DEPTH: Final = 500
_encode = json.encoder.encode_basestring
_LINE_SEPARATORS: Final = {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}


class JsonError(Exception):
    """A text is not JSON or a value can't be written; the message never holds any of the text."""


def to_json_text(value: Json) -> str:
    """A value as indented JSON, exactly as `toJSON` prints it; NaN and infinities stand bare. Raises JsonError."""
    pieces: list[str] = []
    _write(value, "\n", pieces)
    return "".join(pieces)


def _write(value: Json, newline: str, pieces: list[str]) -> None:
    if isinstance(value, str):
        pieces.append(_quoted(value))
    elif value is None:
        pieces.append("null")
    elif isinstance(value, bool):
        pieces.append("true" if value else "false")
    elif isinstance(value, (int, float)):
        pieces.append(number_text(value))
    elif not value:
        pieces.append("{}" if isinstance(value, dict) else "[]")
    elif len(newline) > 2 * MAX_WRITE_DEPTH:
        raise JsonError(f"a value is nested deeper than {MAX_WRITE_DEPTH} levels")
    elif isinstance(value, dict):
        inner = newline + "  "
        lead = "{"
        for key, each in value.items():
            pieces.append(f"{lead}{inner}{_quoted(key)}: ")
            _write(each, inner, pieces)
            lead = ","
        pieces.append(f"{newline}}}")
    else:
        inner = newline + "  "
        lead = "["
        for each in value:
            pieces.append(lead + inner)
            _write(each, inner, pieces)
            lead = ","
        pieces.append(f"{newline}]")


def _quoted(text: str) -> str:
    quoted = _encode(text)
    if quoted.isascii():
        return quoted
    for character, escape in _LINE_SEPARATORS.items():
        quoted = quoted.replace(character, escape)
    return quoted


def from_json(text: str) -> Json:
    """The value of a JSON text, strictly: one value, at most 100 levels, no extensions. Raises JsonError.

    Of keys that differ only in case the first stays; all numbers are doubles.
    """
    if not text.strip(" \t\r\n"):
        raise JsonError("the text is empty")
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise JsonError(f"{error.msg} (line {error.lineno}, column {error.colno})") from None
    except RecursionError:
        raise JsonError(f"nested deeper than {MAX_DEPTH} levels") from None
    check_depth(value, MAX_DEPTH)
    return value


def check_depth(value: Json, limit: int) -> None:
    """Raise JsonError where arrays and objects nest deeper than `limit` levels."""
    level = [value]
    for _ in range(limit):
        level = [
            child
            for each in level
            if isinstance(each, (list, dict))
            for child in (each.values() if isinstance(each, dict) else each)
            if isinstance(child, (list, dict))
        ]
        if not level:
            return
    raise JsonError(f"nested deeper than {limit} levels")


def _pairs(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len({fold(key) for key in found}) == len(pairs):
        return found
    kept: dict[str, Json] = {}
    seen: set[str] = set()
    for key, value in pairs:
        folded = fold(key)
        if folded not in seen:
            seen.add(folded)
            kept[key] = value
    return kept


def _number(text: str) -> float:
    return normal(float(text))


def _constant(name: str) -> NoReturn:
    raise JsonError(f"{name} is no JSON value")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_float=_number, parse_int=_number, parse_constant=_constant
)
