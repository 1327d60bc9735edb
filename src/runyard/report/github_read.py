"""Reads logs in GitHub's format back: entries with time and tag, and where each step of a job begins.

For comparing two runs step by step. Rule kept: what can't be told from the log is not guessed at.
"""

from __future__ import annotations

import calendar
import re
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_STAMP = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})\.([0-9]{7})Z (.*)", re.DOTALL)
_TAG = re.compile(r"##\[(error|warning|notice|debug|command|section|group|endgroup)\](.*)", re.DOTALL)
_FIRST_LINES = {
    "Initialize containers": ("group", "Checking docker version"),
    "Stop containers": (None, "Print service container logs"),
    "Complete job": (None, "Cleaning up orphan processes"),
}


class Entry(NamedTuple):
    """One entry: time in nanoseconds, tag or None, and text, of several lines where lines without a stamp follow."""

    time_ns: int
    tag: str | None
    text: str


def read_log(data: bytes) -> Iterator[Entry]:
    """The entries of a log. Byte order marks at line starts go; what comes before the first stamp is dropped."""
    pending: list[str] | None = None
    time_ns = 0
    for raw in data.decode("utf-8", "replace").split("\n"):
        line = raw.removesuffix("\r").lstrip("\ufeff")
        found = _STAMP.fullmatch(line)
        if found is None:
            if pending is not None:
                pending.append(line)
            continue
        if pending is not None:
            yield _entry(time_ns, pending)
        time_ns = _nanoseconds(found[1], found[2])
        pending = [found[3]]
    if pending is not None:
        if len(pending) > 1 and not pending[-1]:
            pending.pop()
        yield _entry(time_ns, pending)


def groups(entries: Sequence[Entry]) -> list[str]:
    """The titles of all groups, in order."""
    return [entry.text for entry in entries if entry.tag == "group"]


def step_starts(entries: Sequence[Entry], names: Sequence[str]) -> list[int | None]:
    """For each step that ran, by its displayed name in order, the index of its first entry, or None where unsure.

    A step named by its author begins with the next "Run …" group that no later step needs.
    """
    starts: list[int | None] = []
    at = 0
    for position, name in enumerate(names):
        index = 0 if position == 0 else _start(entries, name, at, names[position + 1 :])
        starts.append(index)
        if index is not None:
            at = index + 1
    return starts


def _start(entries: Sequence[Entry], name: str, at: int, later: Sequence[str]) -> int | None:
    if name.startswith("Post "):
        return _find(entries, at, None, "Post job cleanup.")
    if name in _FIRST_LINES:
        return _find(entries, at, *_FIRST_LINES[name])
    if name.startswith("Run "):
        return _find(entries, at, "group", name, whole=True)
    end = next((found for other in later if (found := _start_of_named(entries, other, at)) is not None), len(entries))
    return next((i for i in range(at, end) if entries[i].tag == "group" and entries[i].text.startswith("Run ")), None)


def _start_of_named(entries: Sequence[Entry], name: str, at: int) -> int | None:
    return _start(entries, name, at, ()) if name.startswith(("Run ", "Post ")) or name in _FIRST_LINES else None


def _find(entries: Sequence[Entry], at: int, tag: str | None, text: str, *, whole: bool = False) -> int | None:
    for index in range(at, len(entries)):
        entry = entries[index]
        if entry.tag == tag and (entry.text == text if whole else entry.text.startswith(text)):
            return index
    return None


def _entry(time_ns: int, lines: list[str]) -> Entry:
    text = "\n".join(lines)
    tagged = _TAG.fullmatch(text)
    return Entry(time_ns, tagged[1], tagged[2]) if tagged else Entry(time_ns, None, text)


def _nanoseconds(seconds: str, fraction: str) -> int:
    return calendar.timegm(time.strptime(seconds, "%Y-%m-%dT%H:%M:%S")) * 1_000_000_000 + int(fraction) * 100
