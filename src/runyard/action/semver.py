"""Version ranges as npm's semver reads them, for finding tools: parse, compare, satisfy. Pure.

Ranges: comparators (`>=1.2`), `~`, `^`, `x`, hyphens and `||`. A pre-release satisfies only a comparator that names one
of the same numbers. Build data is ignored.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

_VERSION: Final = re.compile(
    r"[v=\s]*(\d{1,16})\.(\d{1,16})\.(\d{1,16})(?:-?([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z.-]+)?\s*\Z"
)
_PARTIAL: Final = re.compile(
    r"[v=\s]*(x|X|\*|\d{1,16})(?:\.(x|X|\*|\d{1,16})(?:\.(x|X|\*|\d{1,16})"
    r"(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z.-]+)?)?)?\Z"
)
_OPERATOR: Final = re.compile(r"(>=|<=|>|<|=|~>|~|\^)?\s*(.*)\Z")
_SPACED: Final = re.compile(r"(>=|<=|>|<|=|~>|~|\^)\s+")
_LONGEST: Final = 256


class Version(NamedTuple):
    """A version; `pre` are its pre-release parts, numbers as numbers."""

    major: int
    minor: int
    patch: int
    pre: tuple[int | str, ...] = ()

    def __str__(self) -> str:
        pre = "-" + ".".join(str(part) for part in self.pre) if self.pre else ""
        return f"{self.major}.{self.minor}.{self.patch}{pre}"

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Without the pre-release."""
        return self.major, self.minor, self.patch

    @property
    def order(self) -> tuple[tuple[int, int, int], bool, tuple[tuple[bool, int, str], ...]]:
        """What versions are sorted by: a pre-release comes before its release, numbers before words."""
        parts = tuple((isinstance(each, str), 0 if isinstance(each, str) else each, str(each)) for each in self.pre)
        return self.numbers, not self.pre, parts


class _Comparator(NamedTuple):
    operator: str
    version: Version

    def admits(self, version: Version) -> bool:
        mine, its = self.version.order, version.order
        match self.operator:
            case ">=":
                return its >= mine
            case "<=":
                return its <= mine
            case ">":
                return its > mine
            case "<":
                return its < mine
            case _:
                return its == mine


Range = tuple[tuple[_Comparator, ...], ...]
"""Alternatives; in each of them all comparators hold."""


def parse_version(text: str) -> Version | None:
    """A whole version, with a `v` or `=` before it where there is one; None for anything else."""
    found = _VERSION.match(text) if len(text) <= _LONGEST else None
    if found is None:
        return None
    return Version(int(found[1]), int(found[2]), int(found[3]), _pre(found[4]))


def parse_range(text: str) -> Range | None:
    """A range, None for one that isn't valid. "" and `*` are any version."""
    if len(text) > _LONGEST:
        return None
    alternatives: list[tuple[_Comparator, ...]] = []
    for part in text.split("||"):
        made = _alternative(part.strip())
        if made is None:
            return None
        alternatives.append(made)
    return tuple(alternatives)


def satisfies(version: Version, wanted: Range) -> bool:
    """Whether a version is in a range."""
    return any(_all_hold(version, alternative) for alternative in wanted)


def highest(versions: Iterable[Version], wanted: Range) -> Version | None:
    """The highest version in a range."""
    return max((each for each in versions if satisfies(each, wanted)), key=lambda each: each.order, default=None)


def _all_hold(version: Version, alternative: tuple[_Comparator, ...]) -> bool:
    if not all(each.admits(version) for each in alternative):
        return False
    if not version.pre:
        return True
    return any(each.version.pre and each.version.numbers == version.numbers for each in alternative)


def _pre(text: str | None) -> tuple[int | str, ...]:
    return tuple(int(part) if part.isdigit() else part for part in text.split(".")) if text else ()


def _alternative(text: str) -> tuple[_Comparator, ...] | None:
    if " - " in text:
        low, _, high = text.partition(" - ")
        return _hyphen(low.strip(), high.strip())
    found: list[_Comparator] = []
    for word in _SPACED.sub(r"\1", text).split():
        made = _comparators(word)
        if made is None:
            return None
        found += made
    return tuple(found)


def _parts(text: str) -> tuple[int | None, int | None, int | None, tuple[int | str, ...]] | None:
    """Numbers of a partial version, None from the first that is open."""
    found = _PARTIAL.match(text)
    if found is None:
        return None
    numbers: list[int | None] = []
    for part in found.groups()[:3]:
        is_open = part is None or part in "xX*" or (bool(numbers) and numbers[-1] is None)
        numbers.append(None if is_open else int(part))
    major, minor, patch = numbers
    return major, minor, patch, _pre(found[4]) if patch is not None else ()


def _low(version: Version) -> _Comparator:
    return _Comparator(">=", version)


def _below(major: int, minor: int, patch: int) -> _Comparator:
    """Below these numbers, their pre-releases included."""
    return _Comparator("<", Version(major, minor, patch, (0,)))


_NOTHING: Final = (_Comparator("<", Version(0, 0, 0, (0,))),)


def _hyphen(low: str, high: str) -> tuple[_Comparator, ...] | None:
    first, last = _parts(low), _parts(high)
    if first is None or last is None:
        return None
    found: list[_Comparator] = []
    if first[0] is not None:
        found.append(_low(Version(first[0], first[1] or 0, first[2] or 0, first[3])))
    major, minor, patch, pre = last
    if major is not None and minor is None:
        found.append(_below(major + 1, 0, 0))
    elif major is not None and minor is not None and patch is None:
        found.append(_below(major, minor + 1, 0))
    elif major is not None and minor is not None and patch is not None:
        found.append(_Comparator("<=", Version(major, minor, patch, pre)))
    return tuple(found)


def _comparators(word: str) -> tuple[_Comparator, ...] | None:
    found = _OPERATOR.match(word)
    assert found is not None
    operator, rest = found[1] or "", found[2]
    parts = _parts(rest) if rest else (None, None, None, ())
    if parts is None:
        return None
    major, minor, patch, pre = parts
    if major is None:
        return _NOTHING if operator in {"<", ">"} else ()
    low = Version(major, minor or 0, patch or 0, pre)
    if operator == "^":
        return _caret(low, minor, patch)
    if operator in {"~", "~>"}:
        return (_low(low), _below(major + 1, 0, 0) if minor is None else _below(major, minor + 1, 0))
    if patch is not None:
        return (_Comparator(operator or "=", low),)
    return _open(operator, major, minor)


def _caret(low: Version, minor: int | None, patch: int | None) -> tuple[_Comparator, ...]:
    if low.major > 0 or minor is None:
        return (_low(low), _below(low.major + 1, 0, 0))
    if low.minor > 0 or patch is None:
        return (_low(low), _below(0, low.minor + 1, 0))
    return (_low(low), _below(0, 0, low.patch + 1))


def _open(operator: str, major: int, minor: int | None) -> tuple[_Comparator, ...]:
    """A comparator whose version leaves numbers open."""
    first = Version(major, minor or 0, 0)
    after = (major + 1, 0, 0) if minor is None else (major, minor + 1, 0)
    match operator:
        case ">":
            return (_low(Version(*after)),)
        case "<":
            return (_Comparator("<", Version(*first.numbers, (0,))),)
        case ">=":
            return (_low(first),)
        case "<=":
            return (_below(*after),)
        case _:
            return (_low(first), _below(*after))
