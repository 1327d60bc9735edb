"""Is a `cron` line one that GitHub takes: five POSIX fields, no macros, at most every five minutes (section 4.2)."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()


_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 7, _DAYS),
)
_ITEM = re.compile(r"(?:\*|([0-9]{1,2}|[A-Za-z]{3})(?:-([0-9]{1,2}|[A-Za-z]{3}))?)(?:/([0-9]{1,3}))?\Z")
FINEST_MINUTES = 5


def cron_fault(cron: str) -> str | None:
    """What is wrong with a cron line, or None."""
    fields = cron.split()
    if cron.lstrip().startswith("@"):
        return f"'{cron}' is a macro; a schedule has five fields: minute, hour, day of month, month, day of week"
    if len(fields) != len(_FIELDS):
        return f"a schedule has five fields (minute, hour, day of month, month, day of week), this has {len(fields)}"
    for text, field in zip(fields, _FIELDS, strict=True):
        for item in text.split(","):
            fault = _item_fault(item, field)
            if fault is not None:
                return fault
    return None


def finer_than_five_minutes(cron: str) -> bool:
    """Whether two minutes of a valid line lie closer together than GitHub starts runs."""
    minutes = sorted(_minutes(cron.split(maxsplit=1)[0]))
    return any(later - earlier < FINEST_MINUTES for earlier, later in pairwise(minutes))


def _item_fault(item: str, field: _Field) -> str | None:
    found = _ITEM.match(item)
    if found is None:
        return f"'{item}' is no {field.name}"
    ends = [_number(end, field) for end in found.group(1, 2) if end is not None]
    for end in ends:
        if end is None or not field.low <= end <= field.high:
            return f"'{item}' is no {field.name}: {field.low} to {field.high} is"
    if len(ends) == 2 and ends[0] is not None and ends[1] is not None and ends[0] > ends[1]:
        return f"'{item}' runs backwards"
    if found.group(3) is not None and int(found.group(3)) == 0:
        return f"'{item}' has a step of 0"
    return None


def _number(text: str, field: _Field) -> int | None:
    if text.isdigit():
        return int(text)
    return field.names.index(text.upper()) + field.low if text.upper() in field.names else None


def _minutes(text: str) -> set[int]:
    """The minutes of an hour that a valid first field names."""
    minutes: set[int] = set()
    for item in text.split(","):
        found = _ITEM.match(item)
        if found is None:
            continue
        first, last, step = found.groups()
        low = int(first) if first else 0
        high = int(last) if last else (59 if first is None or step else low)
        minutes.update(range(low, high + 1, int(step or 1)))
    return minutes
