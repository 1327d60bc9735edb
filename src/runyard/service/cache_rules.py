"""What the cache decides: is a key acceptable, which entry answers a lookup, which ones go for room. Pure.

Rules of runner-v2 16.2: scope by scope in the job's order; in each the exact key first, then every restore key as a
prefix, newest first; the version has to be the same throughout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from runyard.service.asgi import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LONGEST_KEY: Final = 512
MOST_KEYS: Final = 10
QUOTA: Final = 10 << 30
"""Bytes of one repository's caches."""

LARGEST_ENTRY: Final = 10 << 30
IN_USE_S: Final = 120.0
"""An entry that was handed out this recently is being read, so it stays even where room is short."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A whole cache. Times in seconds since the epoch; `cost` is how long the job took from its miss to its save."""

    id: int
    scope: str
    key: str
    version: str
    digest: str
    size: int
    created: float
    used: float
    cost: float = 0.0


def check_keys(keys: Sequence[str]) -> None:
    """Refuse what the official service refuses: too many keys, too long ones, commas."""
    if not keys or not keys[0]:
        raise Refusal("invalid_argument", "a cache needs a key")
    if len(keys) > MOST_KEYS:
        raise Refusal("invalid_argument", f"{len(keys)} keys; a lookup takes at most {MOST_KEYS}")
    for key in keys:
        if len(key) > LONGEST_KEY:
            raise Refusal("invalid_argument", f"a key of {len(key)} characters; at most {LONGEST_KEY} are allowed")
        if "," in key:
            raise Refusal("invalid_argument", f"the key {key!r} has a comma")


def choose(
    entries: Iterable[Entry], scopes: Sequence[str], key: str, restore_keys: Sequence[str], version: str
) -> Entry | None:
    """The entry that answers a lookup, None for a miss."""
    candidates = [entry for entry in entries if entry.version == version]
    for scope in scopes:
        here = sorted((entry for entry in candidates if entry.scope == scope), key=_newest_first)
        for entry in here:
            if entry.key == key:
                return entry
        for prefix in restore_keys:
            for entry in here:
                if prefix and entry.key.startswith(prefix):
                    return entry
    return None


def _newest_first(entry: Entry) -> tuple[float, int]:
    return -entry.created, -entry.id


def to_evict(entries: Iterable[Entry], quota: int, now: float) -> list[Entry]:
    """The entries that go so that the rest fits: least recently used first, never one that is being read."""
    entries = sorted(entries, key=lambda entry: (entry.used, entry.id))
    over = sum(entry.size for entry in entries) - quota
    gone: list[Entry] = []
    for entry in entries:
        if over <= 0:
            break
        if now - entry.used >= IN_USE_S:
            gone.append(entry)
            over -= entry.size
    return gone
