"""The JSON dialect of the message: names in any case, numbers and switches as text, members nobody knows.

Rule kept: what the official reader takes is taken, and what makes a whole document unreadable to it (a null for a
number, a bare array where none may stand) is refused with its place, never repaired in silence.
"""

from __future__ import annotations

import types
import typing
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from runyard.job import InputError

_Type = TypeVar("_Type")


class UnreadableMessageError(InputError):
    """A document that the official reader could not read either; `key` is the place in it."""

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message, key=key, code="github.unreadable")


def read(data: bytes, shape: type[_Type]) -> _Type:
    """A document of this shape. Raises UnreadableMessageError."""
    try:
        raw = msgspec.json.decode(data)
        return msgspec.convert(_folded(raw, shape), shape, strict=False)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at ")
        raise UnreadableMessageError(f"the message can't be read: {message}", key=place.strip("`") or None) from error
    except msgspec.DecodeError as error:
        raise UnreadableMessageError(f"the message is no JSON: {error}") from error
    except RecursionError as error:
        raise UnreadableMessageError("the message is nested too deeply") from error


def _folded(value: Any, shape: Any) -> Any:
    """`value` with the names of known members as they are declared; maps keep their keys."""
    origin = typing.get_origin(shape)
    if origin in {typing.Union, types.UnionType}:
        parts = [part for part in typing.get_args(shape) if part is not type(None)]
        return _folded(value, parts[0]) if len(parts) == 1 else value
    if origin is list and isinstance(value, list):
        (item,) = typing.get_args(shape)
        return [_folded(each, item) for each in value]
    if origin is dict and isinstance(value, dict):
        _, item = typing.get_args(shape)
        return {key: _folded(each, item) for key, each in value.items()}
    if isinstance(shape, type) and issubclass(shape, msgspec.Struct) and isinstance(value, dict):
        members = _members(shape)
        folded: dict[str, Any] = {}
        for key, each in value.items():
            known = members.get(key.lower())
            if known is not None:
                name, inner = known
                folded[name] = _folded(each, inner)
        return folded
    return value


@lru_cache(maxsize=64)
def _members(shape: type[msgspec.Struct]) -> dict[str, tuple[str, Any]]:
    return {field.encode_name.lower(): (field.encode_name, field.type) for field in msgspec.structs.fields(shape)}
