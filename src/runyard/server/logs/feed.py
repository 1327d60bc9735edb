"""The live stream of an attempt's log: it reads the store, so what is live and what is stored can't differ.

A reader holds a cursor, one stored offset a step; with the cursor of the last thing it saw it goes on exactly there,
on this server or on another. Waiting is level-triggered: whoever stores bytes calls `changed`, and a slow look anyway
repairs what was missed (another replica stored them).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from runyard.server.logs.port import AttemptKey, NoLogError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from runyard.server.logs.port import Chunk, LogStore

LOOK_S = 1.0
"""How often a reader looks without having been told."""

READ = 256 << 10

Cursor = dict[int, int]
"""Step number to the stored offset that comes next."""

_CURSOR_STEPS = 4096


class Piece(NamedTuple):
    """Stored bytes of one step, and the cursor after them."""

    step: int
    chunk: Chunk
    cursor: Cursor


class Feed:
    """Wakes the readers of an attempt. One a server; to be used on the event loop."""

    def __init__(self, *, look_s: float = LOOK_S) -> None:
        self.look_s = look_s
        self._waiting: defaultdict[AttemptKey, set[asyncio.Event]] = defaultdict(set)

    def changed(self, attempt: AttemptKey) -> None:
        """Something of the attempt was stored, or it ended."""
        for event in self._waiting.get(attempt, ()):
            event.set()

    def readers(self, attempt: AttemptKey) -> int:
        """How many wait for this attempt."""
        return len(self._waiting.get(attempt, ()))

    async def follow(
        self, store: LogStore, attempt: AttemptKey, cursor: Cursor, *, is_over: Callable[[], bool]
    ) -> AsyncIterator[Piece | None]:
        """Pieces from `cursor` on, step by step; None when a look found nothing (a moment for a sign of life).

        Ends when `is_over` said so before a look that found nothing: then nothing can follow.
        """
        at = dict(cursor)
        event = asyncio.Event()
        self._waiting[attempt].add(event)
        try:
            while True:
                event.clear()
                over = is_over()
                found = False
                for entry in await asyncio.to_thread(store.steps, attempt):
                    while at.get(entry.step, 0) < entry.stored:
                        pieces = await asyncio.to_thread(_read, store, attempt, entry.step, at.get(entry.step, 0))
                        if not pieces:
                            break
                        for chunk in pieces:
                            found = True
                            at[entry.step] = chunk.offset + len(chunk.data)
                            yield Piece(entry.step, chunk, dict(at))
                if found:
                    continue
                if over:
                    return
                yield None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.look_s):
                        await event.wait()
        finally:
            self._waiting[attempt].discard(event)
            if not self._waiting[attempt]:
                del self._waiting[attempt]


def _read(store: LogStore, attempt: AttemptKey, step: int, offset: int) -> list[Chunk]:
    try:
        return store.read(attempt, step, offset, READ)
    except NoLogError:
        return []


def write_cursor(cursor: Cursor) -> str:
    """A cursor as the id of a server-sent event: `step:offset,…`."""
    return ",".join(f"{step}:{offset}" for step, offset in sorted(cursor.items()) if offset)


def read_cursor(text: str) -> Cursor:
    """The cursor that `write_cursor` wrote. Raises ValueError for anything else."""
    cursor: Cursor = {}
    for part in filter(None, text.split(",")):
        step, colon, offset = part.partition(":")
        if not colon or not (step.isdecimal() and offset.isdecimal()) or len(part) > 40 or len(cursor) > _CURSOR_STEPS:
            raise ValueError(f"not a place in a log: {part[:40]!r}")
        cursor[int(step)] = int(offset)
    return cursor
