"""Expands a matrix into its combinations, in GitHub's order, with the names and ids that come of them.

It works on the evaluated value of `strategy.matrix` (workflow-language 6.2 and 6.4) and keeps one rule: the same value
gives the same combinations with the same ids, so a re-plan names the same jobs.
"""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from runyard.job import Json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Equal: TypeAlias = "Callable[[Json, Json], bool]"
"""The `==` of expressions: loose, ignoring case (job-semantics 1.6)."""

COMBINATION_LIMIT: Final = 256
PRODUCT_LIMIT: Final = 65_536
"""Combinations looked at before excludes; more is refused rather than walked through."""
NAME_LIMIT: Final = 100
ID_LIMIT: Final = 100
NESTING_LIMIT: Final = 50

_Path: TypeAlias = tuple[str | int, ...]
_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9_-]")


class MatrixError(Exception):
    """The value is no matrix that GitHub would expand; the message says why."""


class Combination(msgspec.Struct, frozen=True):
    """One leg's values. `shown` are the values its name is made of: without what a matching include added."""

    values: dict[str, Json]
    shown: dict[str, Json]


class _Item:
    """One include or exclude item: its part below vector keys as leaves to compare, and the rest."""

    __slots__ = ("extras", "leaves", "used", "vectors")

    def __init__(self, item: Mapping[str, Json], vectors: Mapping[str, str]) -> None:
        self.vectors: dict[str, Json] = {}
        self.extras: dict[str, Json] = {}
        for key, value in item.items():
            vector = vectors.get(key.casefold())
            if vector is None:
                self.extras[key] = value
            else:
                self.vectors[vector] = value
        self.leaves = [leaf for key, value in self.vectors.items() for leaf in _leaves(value, (key,))]
        self.used = False

    def matches(self, combination: Mapping[str, Json], equal: Equal) -> bool:
        """Whether every leaf equals what stands at its place in the combination."""
        for path, wanted in self.leaves:
            found, value = _at(combination, path)
            if not found or not equal(wanted, value):
                return False
        return True


def expand(matrix: Json, equal: Equal) -> list[Combination]:
    """All combinations in order; an empty list when everything was excluded and nothing included (then: one plain job).

    Raises MatrixError for an empty vector, an exclude key that is no vector, an empty item, a matrix without vector and
    include, more than 256 combinations (workflow-language 6.2).
    """
    if not isinstance(matrix, dict):
        raise MatrixError(f"a matrix must be a mapping, not {_kind(matrix)}")
    vectors, include, exclude = _parts(matrix)
    known = {key.casefold(): key for key in vectors}
    dropped = [_Item(item, known) for item in exclude]
    added = [_Item(item, known) for item in include]
    for item in dropped:
        for key in item.extras:
            raise MatrixError(f"Matrix exclude key '{key}' does not match any key within the matrix")
    combinations: list[Combination] = []
    for combination in _product(vectors):
        if any(item.matches(combination, equal) for item in dropped):
            continue
        extras: dict[str, Json] = {}
        for item in added:
            if item.matches(combination, equal):
                item.used = True
                extras.update(item.extras)
        combinations.append(Combination({**combination, **extras}, combination))
        _check_limit(combinations)
    for item in added:
        if not item.used:
            ordered = {key: item.vectors[key] for key in vectors if key in item.vectors}
            values = {**ordered, **item.extras}
            combinations.append(Combination(values, values))
            _check_limit(combinations)
    return combinations


def _check_limit(combinations: Sequence[Combination]) -> None:
    if len(combinations) > COMBINATION_LIMIT:
        raise MatrixError(f"the matrix makes more than {COMBINATION_LIMIT} jobs; GitHub takes {COMBINATION_LIMIT}")


def _parts(matrix: dict[str, Json]) -> tuple[dict[str, list[Json]], list[dict[str, Json]], list[dict[str, Json]]]:
    vectors: dict[str, list[Json]] = {}
    include: list[dict[str, Json]] = []
    exclude: list[dict[str, Json]] = []
    for key, value in matrix.items():
        if _depth_exceeds(value, NESTING_LIMIT):
            raise MatrixError(f"Matrix '{key}' is nested deeper than {NESTING_LIMIT} levels")
        word = key.casefold()
        if word == "include":
            include = _items(value, "include")
        elif word == "exclude":
            exclude = _items(value, "exclude")
        elif not isinstance(value, list):
            raise MatrixError(f"Matrix vector '{key}' must be a sequence, not {_kind(value)}")
        elif not value:
            raise MatrixError(f"Matrix vector '{key}' does not contain any values")
        else:
            vectors[key] = value
    if not vectors and not include:
        raise MatrixError("Matrix must define at least one vector")
    return vectors, include, exclude


def _items(value: Json, what: str) -> list[dict[str, Json]]:
    if not isinstance(value, list):
        raise MatrixError(f"Matrix {what} must be a sequence, not {_kind(value)}")
    for item in value:
        if not isinstance(item, dict):
            raise MatrixError(f"an item of matrix {what} must be a mapping, not {_kind(item)}")
        if not item:
            raise MatrixError(f"an item of matrix {what} must not be empty")
    return value


def _product(vectors: Mapping[str, list[Json]]) -> Iterator[dict[str, Json]]:
    if not vectors:
        return
    size = math.prod(len(values) for values in vectors.values())
    if size > PRODUCT_LIMIT:
        raise MatrixError(f"the matrix has {size} combinations before excludes; GitHub takes {COMBINATION_LIMIT} jobs")
    for values in itertools.product(*vectors.values()):
        yield dict(zip(vectors, values, strict=True))


def _leaves(value: Json, path: _Path) -> Iterator[tuple[_Path, Json]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    else:
        yield path, value


def _at(value: Json, path: _Path) -> tuple[bool, Json]:
    for step in path:
        if isinstance(step, int):
            if not isinstance(value, list) or step >= len(value):
                return False, None
            value = value[step]
        elif not isinstance(value, dict):
            return False, None
        elif step in value:
            value = value[step]
        else:
            lowered = step.casefold()
            found = [item for key, item in value.items() if key.casefold() == lowered]
            if not found:
                return False, None
            value = found[0]
    return True, value


def _depth_exceeds(value: Json, limit: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    if limit == 0:
        return True
    items = value.values() if isinstance(value, dict) else value
    return any(_depth_exceeds(item, limit - 1) for item in items)


def _kind(value: Json) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "a mapping" if isinstance(value, dict) else "a sequence"


def leaf_texts(value: Json, to_text: Callable[[Json], str]) -> Iterator[str]:
    """The texts of all scalar leaves in order; null and empty text are left out (workflow-language 6.4)."""
    if isinstance(value, dict):
        for item in value.values():
            yield from leaf_texts(item, to_text)
    elif isinstance(value, list):
        for item in value:
            yield from leaf_texts(item, to_text)
    else:
        text = to_text(value)
        if text:
            yield text


def display_name(name: str, texts: Sequence[str]) -> str:
    """`name (v1, v2)`, cut to 100 characters, or the plain name where nothing is to show."""
    shown = f"{name} ({', '.join(texts)})" if texts else name
    return f"{shown[: NAME_LIMIT - 3]}..." if len(shown) > NAME_LIMIT else shown


class IdBuilder:
    """Hands out ids that are unique in one matrix: leaves joined by `_`, made safe, `_2`, `_3` on collision."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def build(self, texts: Sequence[str]) -> str:
        """The next id; never the same twice, ignoring case."""
        base = _NOT_IN_AN_ID.sub("_", "_".join(texts))
        if not base:
            base = "_"
        if base[0] in "-0123456789":
            base = f"_{base}"
        base = base[:ID_LIMIT]
        candidate = base
        number = 1
        while candidate.lower() in self._given:
            number += 1
            suffix = f"_{number}"
            candidate = base[: ID_LIMIT - len(suffix)] + suffix
        self._given.add(candidate.lower())
        return candidate
