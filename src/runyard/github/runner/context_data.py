"""`contextData`: contexts as tagged JSON (runner-v2 10.6).

Rule kept: a bare array makes a document unreadable, here as in the official reader, and a bare object is an empty text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runyard.github.runner.normal_form import finite
from runyard.github.runner.vss import UnreadableMessageError

if TYPE_CHECKING:
    from runyard.job import Json

_STRING, _ARRAY, _DICTIONARY, _BOOLEAN, _NUMBER, _CASE_SENSITIVE = range(6)


def encode_context(value: Json) -> Json:
    """A JSON value in its compact form. Order of pairs is kept."""
    if isinstance(value, dict):
        pairs = [{"k": str(key), "v": encode_context(item)} for key, item in value.items()]
        return {"t": _DICTIONARY, "d": pairs} if pairs else {"t": _DICTIONARY}
    if isinstance(value, (list, tuple)):
        items = [encode_context(item) for item in value]
        return {"t": _ARRAY, "a": items} if items else {"t": _ARRAY}
    return finite(value)


def decode_context(value: Json, place: str = "contextData") -> Json:
    """The plain value. Raises UnreadableMessageError, naming the place."""
    if isinstance(value, list):
        raise UnreadableMessageError("a bare array can't stand in context data", key=place)
    if not isinstance(value, dict):
        return value
    members = {key.lower(): item for key, item in value.items()}
    kind = members.get("t") or _STRING
    if kind == _STRING:
        text = members.get("s")
        return text if text is not None else ""
    if kind == _BOOLEAN:
        return bool(members.get("b", False))
    if kind == _NUMBER:
        return members.get("n", 0)
    if kind == _ARRAY:
        return [decode_context(item, f"{place}[{at}]") for at, item in enumerate(_list(members, "a", place))]
    if kind in {_DICTIONARY, _CASE_SENSITIVE}:
        return _dictionary(_list(members, "d", place), place, ignore_case=kind == _DICTIONARY)
    raise UnreadableMessageError(f"no context value has the type {kind!r}", key=place)


def _dictionary(pairs: list[Any], place: str, *, ignore_case: bool) -> dict[str, Json]:
    found: dict[str, Json] = {}
    seen: set[str] = set()
    for pair in pairs:
        members = {key.lower(): item for key, item in pair.items()} if isinstance(pair, dict) else {}
        key = members.get("k")
        if not isinstance(key, str):
            raise UnreadableMessageError("a pair needs a text as its key", key=place)
        folded = key.lower() if ignore_case else key
        if folded in seen:
            raise UnreadableMessageError(f"the key '{key}' stands twice", key=place)
        seen.add(folded)
        found[key] = decode_context(members.get("v"), f"{place}.{key}")
    return found


def _list(members: dict[str, Any], name: str, place: str) -> list[Any]:
    items = members.get(name)
    if items is None:
        return []
    if not isinstance(items, list):
        raise UnreadableMessageError(f"'{name}' must be an array", key=place)
    return items
