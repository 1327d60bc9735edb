"""A late-bound value: GitHub's token model as a tagged union.

A field of a workflow that can't be known when it is read stays a Template until the room that owns it evaluates it
(`run` what belongs to a job before it starts, `engine` the rest). The tags are Runyard's; the codec in `github/` maps
them to the numbers of the wire (`runner-v2.md`, 10.7).
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import msgspec

Json: TypeAlias = Any
"""A JSON value: null, boolean, number, text, list, or mapping from text."""


class Position(NamedTuple):
    """A place in a file: index into the run's file table (from 1; 0 is unknown), line and column from 1."""

    file: int
    line: int
    column: int


class TextToken(msgspec.Struct, frozen=True, tag="text", omit_defaults=True):
    """A piece of text."""

    value: str
    at: Position | None = None


class NumberToken(msgspec.Struct, frozen=True, tag="number", omit_defaults=True):
    """A number; GitHub's numbers are IEEE doubles."""

    value: float
    at: Position | None = None


class BooleanToken(msgspec.Struct, frozen=True, tag="boolean", omit_defaults=True):
    """True or false."""

    value: bool
    at: Position | None = None


class NullToken(msgspec.Struct, frozen=True, tag="null", omit_defaults=True):
    """Nothing: an empty value or `null`."""

    at: Position | None = None


class ExpressionToken(msgspec.Struct, frozen=True, tag="expression", omit_defaults=True):
    """An expression without its braces, trimmed. Mixed text is already rewritten to a call of `format`."""

    text: str
    at: Position | None = None


class InsertToken(msgspec.Struct, frozen=True, tag="insert", omit_defaults=True):
    """`${{ insert }}`, which stands only as a mapping's key and merges the mapping that is its value."""

    at: Position | None = None


class SequenceToken(msgspec.Struct, frozen=True, tag="sequence", omit_defaults=True):
    """Values in order."""

    items: tuple[Template, ...] = ()
    at: Position | None = None


class MappingToken(msgspec.Struct, frozen=True, tag="mapping", omit_defaults=True):
    """Keys and values in the order they were written."""

    entries: tuple[Entry, ...] = ()
    at: Position | None = None


class Entry(NamedTuple):
    """One key of a mapping with its value; the key is a TextToken, an ExpressionToken or an InsertToken."""

    key: Template
    value: Template


Template: TypeAlias = (
    TextToken | NumberToken | BooleanToken | NullToken | ExpressionToken | InsertToken | SequenceToken | MappingToken
)
