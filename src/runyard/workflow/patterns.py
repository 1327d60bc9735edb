"""The pattern language of `branches`, `tags` and `paths` (workflow-language 4.4).

It is not the shell's: `?` makes the character before it optional, `+` repeats it, `**` crosses slashes. Simple patterns
become regular expressions; those that could backtrack without end are walked state by state, so that no pattern and no
file name of a pull request can stall a server.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_RANGE = re.compile(r"[a-z]-[a-z]\Z|[A-Z]-[A-Z]\Z|[0-9]-[0-9]\Z")
_EASY_WILDCARDS = 2
_EASY_NAME = 256


class BadPatternError(ValueError):
    """A pattern that has no meaning; the text says why, for a reader to place."""


class Piece(NamedTuple):
    """One unit of a pattern: what one character of it looks like, and how many there may be.

    `skip` is how many pieces ahead matching may go on without it, 0 where it must be there.
    """

    character: str
    repeats: bool = False
    skip: int = 0


@functools.lru_cache(maxsize=1024)
def pattern_pieces(pattern: str) -> tuple[Piece, ...]:
    """The pieces of one pattern without its leading `!`; raises `BadPatternError`."""
    pieces: list[Piece] = []
    index = 0
    while index < len(pattern):
        char = pattern[index]
        if char == "*":
            end = index
            while end < len(pattern) and pattern[end] == "*":
                end += 1
            crosses = end - index >= 2
            at_start = index == 0 or pattern[index - 1] == "/"
            if crosses and at_start and pattern[end : end + 1] == "/":
                # Whole directories: any text up to a slash, or nothing at all.
                pieces.append(Piece("(?s:.)", repeats=True, skip=2))
                pieces.append(Piece("/"))
                end += 1
            else:
                pieces.append(Piece("(?s:.)" if crosses else "[^/]", repeats=True, skip=1))
            index = end
            continue
        if char in "?+":
            raise BadPatternError(f"'{char}' needs an ordinary character or a [set] before it")
        if char == "[":
            character, index = _character_set(pattern, index)
        elif char == "\\":
            if index + 1 == len(pattern):
                raise BadPatternError("a backslash at the end escapes nothing")
            character, index = re.escape(pattern[index + 1]), index + 2
        else:
            character, index = re.escape(char), index + 1
        follows = pattern[index : index + 1]
        pieces.append(Piece(character, repeats=follows == "+", skip=1 if follows == "?" else 0))
        if follows in {"?", "+"}:
            index += 1
    return tuple(pieces)


def check_pattern(pattern: str) -> None:
    """Raises `BadPatternError` where the pattern (with or without `!`) is invalid."""
    body = pattern.removeprefix("!")
    if not body:
        raise BadPatternError("an empty pattern")
    pattern_pieces(body)


def matches(pattern: str, name: str) -> bool:
    """Whether one pattern, its `!` aside, matches the whole name, letters' case included."""
    body = pattern.removeprefix("!")
    pieces = pattern_pieces(body)
    if len(name) <= _EASY_NAME and sum(piece.repeats for piece in pieces) <= _EASY_WILDCARDS:
        return _regex(body).match(name) is not None
    return _matches_in_step(pieces, name)


@functools.lru_cache(maxsize=1024)
def _regex(body: str) -> re.Pattern[str]:
    parts: list[str] = []
    pieces = iter(pattern_pieces(body))
    for piece in pieces:
        if piece.skip == 2:
            parts.append(f"(?:{piece.character}*{next(pieces).character})?")
        elif piece.repeats:
            parts.append(piece.character + ("*" if piece.skip else "+"))
        else:
            parts.append(piece.character + ("?" if piece.skip else ""))
    return re.compile("".join(parts) + r"\Z")


def _matches_in_step(pieces: tuple[Piece, ...], name: str) -> bool:
    """All ways at once, one character at a time: the time is the product of both lengths, whatever they hold.

    Bit n stands for "the first n pieces are matched", so that one step is a few operations on one number.
    """
    skips = sum(1 << at for at, piece in enumerate(pieces) if piece.skip)
    double_skips = sum(1 << at for at, piece in enumerate(pieces) if piece.skip == 2)
    repeats = sum(1 << at for at, piece in enumerate(pieces) if piece.repeats)
    characters = [re.compile(piece.character) for piece in pieces]
    taking: dict[str, int] = {}

    def reachable(states: int) -> int:
        while True:
            further = states | (states & skips) << 1 | (states & double_skips) << 2
            if further == states:
                return states
            states = further

    states = reachable(1)
    for char in name:
        if char not in taking:
            taking[char] = sum(1 << at for at, character in enumerate(characters) if character.match(char) is not None)
        moved = states & taking[char]
        states = reachable(moved << 1 | moved & repeats)
        if not states:
            return False
    return bool(states >> len(pieces) & 1)


def included(patterns: Sequence[str], name: str) -> str | None:
    """The positive pattern that lets `name` in, or None.

    Patterns are tried in order and the last one that matches decides; `!` removes, a later positive one adds again.
    A list of nothing but negative patterns lets nothing in (workflow-language 4.3).
    """
    deciding: str | None = None
    for pattern in patterns:
        if pattern.startswith("!"):
            if deciding is not None and matches(pattern, name):
                deciding = None
        elif deciding is None and matches(pattern, name):
            deciding = pattern
    return deciding


def any_included(patterns: Sequence[str], names: Iterable[str]) -> str | None:
    """The first of `names` that the patterns let in, or None."""
    return next((name for name in names if included(patterns, name) is not None), None)


def has_positive(patterns: Iterable[str]) -> bool:
    """Whether a list of patterns can let anything in at all."""
    return any(not pattern.startswith("!") for pattern in patterns)


def _character_set(pattern: str, start: int) -> tuple[str, int]:
    """One `[…]` as a regular expression, and the index after it; ranges are within a-z, A-Z or 0-9 alone."""
    end = pattern.find("]", start + 1)
    if end < 0:
        raise BadPatternError("'[' is never closed")
    body = pattern[start + 1 : end]
    if not body:
        raise BadPatternError("'[]' holds no character")
    parts: list[str] = []
    index = 0
    while index < len(body):
        chunk = body[index : index + 3]
        if len(chunk) == 3 and chunk[1] == "-":
            if _RANGE.match(chunk) is None or chunk[0] > chunk[2]:
                raise BadPatternError(f"'{chunk}' is no range of a-z, A-Z or 0-9")
            parts.append(chunk)
            index += 3
        else:
            parts.append(re.escape(body[index]))
            index += 1
    return f"[{''.join(parts)}]", end + 1
