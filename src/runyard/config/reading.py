"""Holds a document against a struct and finds every problem in one reading."""

from __future__ import annotations

import difflib
import re
import types
import typing
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from runyard.config.units import Duration, Size, parse_duration, parse_size
from runyard.job import InputError

if typing.TYPE_CHECKING:
    from runyard.config.toml import Document, Path

T = TypeVar("T", bound=msgspec.Struct)


class Problem(NamedTuple):
    """One thing that is wrong; `key` is dotted, list indexes in brackets."""

    path: str
    line: int
    column: int
    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.key}: {self.message}"


class ConfigError(InputError):
    """Everything that is wrong with a configuration, in the order of the file."""

    def __init__(self, problems: list[Problem]) -> None:
        first = problems[0]
        super().__init__(
            "\n".join(map(str, problems)), path=None, line=first.line, column=first.column, key=first.key, code="config"
        )
        self.problems = problems


def decode(document: Document, shape: type[T]) -> T:
    """The document as `shape`. Raises ConfigError with every unknown key, missing key and wrong value."""
    reader = _Reader(document)
    made = reader.struct(document.value, shape, ())
    if reader.problems:
        raise ConfigError(sorted(reader.problems, key=lambda problem: (problem.line, problem.column)))
    return cast("T", made)


def convert(value: object, kind: Any) -> object:
    """One value as `kind`, durations and sizes with their units. Raises ValueError with a sentence."""
    try:
        return msgspec.convert(value, kind, strict=True, dec_hook=_units)
    except msgspec.ValidationError as error:
        raise ValueError(_sentence(str(error))) from error


def _units(kind: type, value: object) -> object:
    if kind in (Duration, Size):
        if not isinstance(value, str):
            raise ValueError(f"expected text with a unit, as in {'90s' if kind is Duration else '512MiB'}")
        return parse_duration(value) if kind is Duration else parse_size(value)
    raise NotImplementedError


_AT = re.compile(r" - at `[^`]*`$")
_WORDS = {"`str`": "text", "`int`": "a whole number", "`float`": "a number", "`bool`": "true or false"}
_WORDS |= {"`array`": "a list", "`object`": "a table", "`null`": "nothing"}


def _sentence(message: str) -> str:
    message = _AT.sub("", message)
    for word, plain in _WORDS.items():
        message = message.replace(word, plain)
    return message[:1].lower() + message[1:]


def dotted(path: Path) -> str:
    """A path as people write it."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f"{'.' if text else ''}{part}"
    return text or "(file)"


class _Reader:
    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []

    def wrong(self, path: Path, message: str) -> None:
        line, column = self.document.place(path)
        self.problems.append(Problem(self.document.path, line, column, dotted(path), message))

    def struct(self, value: object, shape: type, path: Path) -> object:
        """A table as a struct, its problems noted; None where there are some."""
        if not isinstance(value, dict):
            self.wrong(path, f"expected a table, got {_kind(value)}")
            return None
        fields = {field.encode_name: field for field in msgspec.structs.fields(shape)}
        known = len(self.problems)
        made: dict[str, object] = {}
        for key, member in value.items():
            field = fields.get(key)
            if field is None:
                self.wrong((*path, key), _unknown(key, list(fields)))
            else:
                made[field.name] = self.value(member, field.type, (*path, key))
        for name, field in fields.items():
            if field.required and name not in value:
                self.wrong(path, f"{name} is missing")
        if len(self.problems) > known:
            return None
        try:
            return shape(**made)
        except (ValueError, TypeError) as error:
            self.wrong(path, str(error))
            return None

    def value(self, value: object, kind: Any, path: Path) -> object:
        inner = _struct_of(kind)
        if inner is not None and (inner is kind or isinstance(value, dict)):
            return self.struct(value, inner, path)
        of_list, of_table = _member(kind, list), _member(kind, dict)
        if of_list is not None and isinstance(value, list):
            return tuple(self.value(member, of_list, (*path, number)) for number, member in enumerate(value))
        if of_table is not None and isinstance(value, dict):
            return {key: self.value(member, of_table, (*path, key)) for key, member in value.items()}
        try:
            return convert(value, kind)
        except ValueError as error:
            self.wrong(path, str(error))
            return None


def _unknown(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return f"no such key; did you mean {near[0]}?" if near else f"no such key; there are {', '.join(sorted(known))}"


def _kind(value: object) -> str:
    names: dict[type, str] = {
        str: "text",
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        list: "a list",
    }
    return names.get(type(value), "a table" if isinstance(value, dict) else f"a {type(value).__name__}")


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _struct_of(kind: Any) -> type | None:
    if _is_struct(kind):
        return cast("type", kind)
    inner = [each for each in _choices(kind) if _is_struct(each)]
    return inner[0] if len(inner) == 1 else None


def _choices(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)


def _member(kind: Any, of: type) -> Any | None:
    """What the members of a list or table are, where structs stand in it somewhere."""
    for each in _choices(kind):
        origin, inner = typing.get_origin(each), typing.get_args(each)
        if of is list and origin in (tuple, list) and _struct_of(inner[0]) is not None:
            return inner[0]
        if of is dict and origin is dict and _struct_of(inner[1]) is not None:
            return inner[1]
    return None
