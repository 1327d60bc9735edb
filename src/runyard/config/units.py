"""Durations and sizes as people write them: a number with a unit, never a bare number that could mean anything."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-zµ]+)\s*")
_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_BYTES = {
    "b": 1,
    "k": 1 << 10,
    "kb": 1000,
    "kib": 1 << 10,
    "m": 1 << 20,
    "mb": 1000**2,
    "mib": 1 << 20,
    "g": 1 << 30,
    "gb": 1000**3,
    "gib": 1 << 30,
    "t": 1 << 40,
    "tb": 1000**4,
    "tib": 1 << 40,
}


class Duration(float):
    """Seconds; written as `90s`, `1h30m`, `2d`."""

    __slots__ = ()


class Size(int):
    """Bytes; written as `512MiB`, `20GB`, `4g`."""

    __slots__ = ()


def parse_duration(text: str) -> Duration:
    """Seconds of `90s`, `1h30m`, `500ms`; `0` needs no unit. Raises ValueError that says what is taken."""
    if text.strip() == "0":
        return Duration(0)
    total = 0.0
    at = 0
    while at < len(text) or not text:
        found = _NUMBER.match(text, at)
        if found is None or found[2].lower() not in _SECONDS:
            raise ValueError(f"{text!r} is no duration; write it with a unit, as in 90s, 15min, 1h30m or 2d")
        total += float(found[1]) * _SECONDS[found[2].lower()]
        at = found.end()
    return Duration(total)


def parse_size(text: str) -> Size:
    """Bytes of `512MiB`, `20GB`, `4g`; `0` needs no unit. Raises ValueError that says what is taken."""
    if text.strip() == "0":
        return Size(0)
    found = _NUMBER.fullmatch(text)
    if found is None or found[2].lower() not in _BYTES:
        raise ValueError(f"{text!r} is no size; write it with a unit, as in 512MiB, 20GB or 4g")
    return Size(round(float(found[1]) * _BYTES[found[2].lower()]))


def duration_text(seconds: float) -> str:
    """A duration as it may be written."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= length and seconds % length == 0:
            return f"{int(seconds // length)}{unit}"
    return f"{seconds:g}s" if seconds >= 1 or not seconds else f"{seconds * 1000:g}ms"


def size_text(size: int) -> str:
    """A size as it may be written."""
    for unit, length in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= length and size % length == 0:
            return f"{size // length}{unit}"
    return f"{size}B"
