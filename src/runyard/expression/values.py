"""Values of expressions and how they turn into one another (job-semantics 1.5, 1.6, 1.7).

A value is plain JSON: None, bool, int or float, str, list, dict. Objects ignore case when a key is looked up, except an
ExactObject; what a filter made is a Filtered list.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from runyard.expression.numbers import normal, number_text, parse_number
from runyard.expression.ordinal import before, equal, fold

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from runyard.job.template import Json

Kind: TypeAlias = Literal["Null", "Boolean", "Number", "String", "Array", "Object"]


class ExactObject(dict[str, Any]):
    """An object whose keys are looked up as written: `env` on Linux and macOS."""

    __slots__ = ()


class FoldedObject(dict[str, Any]):
    """An object that indexes its keys by their fold once, for many look-ups of keys in another case or missing.

    Any dict is looked up ignoring case; this one only answers faster. It must not change after its first look-up.
    """

    __slots__ = ("_folded",)

    def __init__(self, entries: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()) -> None:
        super().__init__(entries)
        self._folded: dict[str, str] | None = None

    def key_of(self, key: str) -> str | None:
        """The key as it stands here, None where there is none."""
        if self._folded is None:
            self._folded = {fold(each): each for each in reversed(self)}
        return self._folded.get(fold(key))


class Filtered(list[Any]):
    """What `*` gave: further indices apply to each item."""

    __slots__ = ()


_KINDS: Final[dict[type, Kind]] = {
    type(None): "Null",
    bool: "Boolean",
    int: "Number",
    float: "Number",
    str: "String",
    list: "Array",
    Filtered: "Array",
    tuple: "Array",
    dict: "Object",
    ExactObject: "Object",
    FoldedObject: "Object",
}
_PRIMITIVE: Final = frozenset({type(None), bool, int, float, str})
MISSING: Final = object()


def kind_of(value: Json) -> Kind:
    """The kind of a value; TypeError for what isn't JSON, which is a defect of the caller."""
    kind = _KINDS.get(type(value))
    if kind is not None:
        return kind
    for each in (bool, int, float, str, list, tuple, dict):
        if isinstance(value, each):
            return _KINDS[each]
    raise TypeError(f"{type(value).__name__} is no value of an expression")


def is_primitive(value: Json) -> bool:
    """Whether a value is neither array nor object."""
    return type(value) in _PRIMITIVE or not isinstance(value, (list, dict, tuple))


def is_true(value: Json) -> bool:
    """Whether a value counts as true: not null, false, 0, NaN or the empty text; any array or object does."""
    if value is None or value is False or value == "":
        return False
    if isinstance(value, (int, float)):
        return value != 0 and not math.isnan(value)
    return True


def to_number(value: Json) -> float:
    """A value as a number; NaN for arrays, objects and texts that are none."""
    if value is None:
        return 0
    if isinstance(value, bool):
        return 1 if value else 0
    if isinstance(value, (int, float)):
        return normal(value)
    if isinstance(value, str):
        return parse_number(value)
    return math.nan


def to_text(value: Json) -> str:
    """A value as text; `Array` and `Object` for those."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return number_text(value)
    return kind_of(value)


def equals(left: Json, right: Json) -> bool:
    """`==`: texts ignore case, arrays and objects equal only themselves, other kinds meet as numbers."""
    if isinstance(left, str) and isinstance(right, str):
        return equal(left, right)
    if is_primitive(left) and is_primitive(right):
        return (left is None and right is None) or to_number(left) == to_number(right)
    return left is right


def greater(left: Json, right: Json) -> bool:
    """`>`; false where either is an array, an object or no number, and for null and null."""
    if isinstance(left, str) and isinstance(right, str):
        return before(right, left)
    if is_primitive(left) and is_primitive(right):
        return to_number(left) > to_number(right)
    return False


def look_up(value: Mapping[str, Json], key: str) -> Json:
    """The value of a key in an object; MISSING without one."""
    found = value.get(key, MISSING)
    if found is not MISSING or isinstance(value, ExactObject):
        return found
    if isinstance(value, FoldedObject):
        real = value.key_of(key)
        return MISSING if real is None else value[real]
    wanted = fold(key)
    for each in value:
        if len(each) == len(wanted) and fold(each) == wanted:
            return value[each]
    return MISSING


def item(value: Json, index: Json) -> Json:
    """`value[index]`: an item of an array by number, of an object by text; MISSING without one."""
    if not is_primitive(index):
        return MISSING
    if isinstance(value, dict):
        return look_up(value, to_text(index))
    if isinstance(value, (list, tuple)):
        number = to_number(index)
        if math.isnan(number) or math.isinf(number):
            return MISSING
        place = math.floor(number)
        return value[place] if 0 <= place < len(value) else MISSING
    return MISSING


def pick(items: Filtered, index: Json) -> Filtered:
    """An index applied to each item of a filtered array; items without a hit are left out."""
    found = (item(each, index) for each in items)
    return Filtered(each for each in found if each is not MISSING)


def spread(value: Json) -> Filtered:
    """`value.*`: the items of an array, the values of an object, of a filtered array those of all its items."""
    if isinstance(value, Filtered):
        return Filtered(child for each in value for child in _members(each))
    return Filtered(_members(value))


def _members(value: Json) -> Iterable[Json]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()
