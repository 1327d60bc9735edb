"""Flags first, then RUNYARD_* variables, then the file, then the default; and where each value came from."""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast

import msgspec

from runyard.config.reading import ConfigError, Problem, convert, decode
from runyard.config.units import Duration, Size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runyard.config.toml import Document

T = TypeVar("T", bound=msgspec.Struct)


class Origin(NamedTuple):
    """Where a value comes from; `name` is the flag, the variable, or file and line."""

    layer: Literal["flag", "variable", "file", "default"]
    name: str


def layered(
    shape: type[T], *, flags: Mapping[str, object], environ: Mapping[str, str], document: Document | None, prefix: str
) -> tuple[T, dict[str, Origin]]:
    """The effective configuration and the origin of each of its top-level keys.

    `flags` hold typed values by key, None or absent where a flag was not given. A variable is `prefix` and the key in
    capitals (`RUNYARD_SERVER_LISTEN`); lists are separated by commas. Raises ConfigError with every problem.
    """
    base = decode(document, shape) if document is not None else None
    values: dict[str, object] = {}
    origins: dict[str, Origin] = {}
    problems: list[Problem] = []
    for field in msgspec.structs.fields(shape):
        name, variable = field.name, f"{prefix}{field.encode_name.upper()}"
        if flags.get(name) is not None:
            values[name] = flags[name]
            origins[name] = Origin("flag", f"--{name.replace('_', '-')}")
        elif environ.get(variable):
            try:
                values[name] = _from_text(environ[variable], field.type)
            except ValueError as error:
                problems.append(Problem(variable, 1, 1, name, str(error)))
            origins[name] = Origin("variable", variable)
        elif document is not None and field.encode_name in document.value:
            values[name] = getattr(base, name)
            line, _ = document.place((field.encode_name,))
            origins[name] = Origin("file", f"{document.path}:{line}")
        else:
            origins[name] = Origin("default", "")
            if field.required:
                problems.append(Problem("configuration", 1, 1, name, f"is missing; give --{name.replace('_', '-')}"))
    if problems:
        raise ConfigError(problems)
    return shape(**values), origins


def _from_text(text: str, kind: Any) -> object:
    """The text of a variable as a value. Raises ValueError."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (tuple, list):
        return tuple(_from_text(part.strip(), inner[0]) for part in text.split(",") if part.strip())
    plain = [each for each in inner if each is not type(None)] if inner else [kind]
    if any(each in (Duration, Size, str) for each in plain):
        return convert(text, kind)
    try:
        return cast("object", msgspec.convert(text, kind, strict=False))
    except msgspec.ValidationError as error:
        raise ValueError(f"{text!r}: {error}") from error
