"""Template tokens: late-bound values on the wire (runner-v2 10.7).

Normal form: a literal without a position is written bare; positions stand on every token that has one; a number without
a fraction is an integer.
"""

from __future__ import annotations

import math
from typing import Any

from runyard.github.runner.normal_form import number_text
from runyard.github.runner.vss import UnreadableMessageError
from runyard.job import (
    BooleanToken,
    Entry,
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

_TEXT, _SEQUENCE, _MAPPING, _EXPRESSION, _INSERT, _BOOLEAN, _NUMBER, _NULL = range(8)
_DEEPEST = 100


def encode_token(template: Template) -> Json:
    """A Template as a token."""
    match template:
        case TextToken():
            return template.value if template.at is None else _at(template.at, _TEXT, {"lit": template.value})
        case NumberToken() if not math.isfinite(template.value):
            return encode_token(TextToken(number_text(template.value), template.at))
        case NumberToken():
            number = int(template.value) if template.value == int(template.value) else template.value
            return number if template.at is None else _at(template.at, _NUMBER, {"num": number} if number else {})
        case BooleanToken():
            if template.at is None:
                return template.value
            return _at(template.at, _BOOLEAN, {"bool": True} if template.value else {})
        case NullToken():
            return _at(template.at, _NULL, {})
        case ExpressionToken():
            return _at(template.at, _EXPRESSION, {"expr": template.text})
        case InsertToken():
            return _at(template.at, _INSERT, {"directive": "insert"})
        case SequenceToken():
            items = [encode_token(item) for item in template.items]
            return _at(template.at, _SEQUENCE, {"seq": items} if items else {})
        case MappingToken():
            pairs = [{"key": encode_token(entry.key), "value": encode_token(entry.value)} for entry in template.entries]
            return _at(template.at, _MAPPING, {"map": pairs} if pairs else {})


def _at(position: Position | None, kind: int, payload: dict[str, Json]) -> dict[str, Json]:
    place: dict[str, Json] = {}
    if position is not None:
        names = zip(("file", "line", "col"), position, strict=True)
        place = {name: number for name, number in names if number}
    return {**place, "type": kind, **payload}


def decode_token(value: Json, place: str, depth: int = 0) -> Template:
    """A token as a Template. Raises UnreadableMessageError, naming the place."""
    if depth > _DEEPEST:
        raise UnreadableMessageError("a template is nested too deeply", key=place)
    match value:
        case None:
            return NullToken()
        case bool():
            return BooleanToken(value)
        case int() | float():
            return NumberToken(float(value))
        case str():
            return TextToken(value)
        case dict():
            return _decode_object({key.lower(): item for key, item in value.items()}, place, depth)
        case _:
            raise UnreadableMessageError("a bare array can't stand in a template", key=place)


def _decode_object(members: dict[str, Any], place: str, depth: int) -> Template:
    at = _position(members)
    kind = members.get("type") or _TEXT
    match kind:
        case 0:
            return TextToken(_text(members.get("lit"), place), at)
        case 1:
            items = _list(members.get("seq"), place)
            return SequenceToken(
                tuple(decode_token(item, f"{place}[{index}]", depth + 1) for index, item in enumerate(items)), at
            )
        case 2:
            return MappingToken(tuple(_entry(pair, place, depth) for pair in _list(members.get("map"), place)), at)
        case 3:
            return ExpressionToken(_text(members.get("expr"), place), at)
        case 4:
            return InsertToken(at)
        case 5:
            return BooleanToken(bool(members.get("bool", False)), at)
        case 6:
            return NumberToken(_number(members.get("num"), place), at)
        case 7:
            return NullToken(at)
        case _:
            raise UnreadableMessageError(f"no token has the type {kind!r}", key=place)


def _entry(pair: Any, place: str, depth: int) -> Entry:
    members = {key.lower(): item for key, item in pair.items()} if isinstance(pair, dict) else {}
    key = decode_token(members.get("key"), f"{place}.key", depth + 1)
    if not isinstance(key, (TextToken, ExpressionToken, InsertToken)):
        raise UnreadableMessageError("a key of a mapping must be a text or an expression", key=place)
    name = key.value if isinstance(key, TextToken) else "key"
    return Entry(key, decode_token(members.get("value"), f"{place}.{name}", depth + 1))


def _position(members: dict[str, Any]) -> Position | None:
    numbers = [members.get(name) or 0 for name in ("file", "line", "col")]
    if not any(numbers) or not all(isinstance(number, int) for number in numbers):
        return None
    return Position(*numbers)


def _number(value: Any, place: str) -> float:
    try:
        return float(value or 0)
    except (TypeError, ValueError) as error:
        raise UnreadableMessageError("a token's number must be a number", key=place) from error


def _text(value: Any, place: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UnreadableMessageError("a token's text must be a text", key=place)
    return value


def _list(value: Any, place: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise UnreadableMessageError("a token's items must be an array", key=place)
    return value
