"""Comparing text: ordinal on UTF-16 units after simple upper-casing (job-semantics 1.6).

Neither `casefold` nor `upper` will do: both map one character to several, and both map letters that GitHub keeps apart.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_KEPT: Final = frozenset("\u0131\u017f")
"""Letters without an invariant capital: dotless i and long s."""


@lru_cache(maxsize=4096)
def _upper(character: str) -> str:
    if character in _KEPT:
        return character
    upper = character.upper()
    if len(upper) == 1:
        return upper
    title = character.title()
    return title if len(title) == 1 else character


def fold(text: str) -> str:
    """The text with each character as its single capital; equal texts ignoring case have equal folds."""
    if text.isascii():
        return text.upper()
    return "".join(map(_upper, text))


def equal(left: str, right: str) -> bool:
    """Whether two texts are the same ignoring case."""
    return left == right or fold(left) == fold(right)


def before(left: str, right: str) -> bool:
    """Whether the first text sorts before the second ignoring case."""
    left, right = fold(left), fold(right)
    if left.isascii() and right.isascii():
        return left < right
    return _units(left) < _units(right)


def _units(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")
