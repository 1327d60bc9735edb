"""The live stream is the stored log, from any place on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from runyard.report.masks import Masker
from runyard.server.logs import AttemptKey, FileLogs
from runyard.server.logs.feed import Feed, read_cursor, write_cursor

if TYPE_CHECKING:
    from pathlib import Path

JOB = AttemptKey("job1", 1)


def test_a_reader_sees_what_was_and_what_comes_and_ends_with_the_attempt(tmp_path: Path) -> None:
    async def main() -> None:
        store = FileLogs(tmp_path, key=bytes(32))
        feed = Feed(look_s=10)
        over = asyncio.Event()
        store.append(JOB, 1, 0, b"before\n", kind="output", time_ns=1, masker=Masker())
        seen: list[tuple[int, bytes]] = []
        idle = asyncio.Event()

        async def read() -> str:
            cursor = ""
            async for piece in feed.follow(store, JOB, {}, is_over=over.is_set):
                if piece is None:
                    idle.set()
                else:
                    seen.append((piece.step, piece.chunk.data))
                    cursor = write_cursor(piece.cursor)
            return cursor

        async with asyncio.timeout(15):
            task = asyncio.create_task(read())
            await idle.wait()
            assert seen == [(1, b"before\n")]
            idle.clear()
            store.append(JOB, 1, 7, b"after\n", kind="output", time_ns=2, masker=Masker())
            store.append(JOB, 2, 0, b"next step\n", kind="output", time_ns=2, masker=Masker())
            feed.changed(JOB)
            await idle.wait()
            store.append(JOB, 2, 10, b"last words\n", kind="output", time_ns=3, masker=Masker())
            over.set()
            feed.changed(JOB)
            cursor = await task
        assert seen[1:] == [(1, b"after\n"), (2, b"next step\n"), (2, b"last words\n")]
        assert feed.readers(JOB) == 0
        again = [piece async for piece in feed.follow(store, JOB, read_cursor(cursor), is_over=lambda: True)]
        assert again == []
        from_there = [
            piece.chunk.data
            async for piece in feed.follow(store, JOB, read_cursor("1:7,2:10"), is_over=lambda: True)
            if piece
        ]
        assert from_there == [b"after\n", b"last words\n"]

    asyncio.run(main())


def test_bytes_that_another_replica_stored_are_found_without_being_told(tmp_path: Path) -> None:
    async def main() -> None:
        store = FileLogs(tmp_path, key=bytes(32))
        feed = Feed(look_s=0.01)
        looks = 0
        async with asyncio.timeout(15):
            async for piece in feed.follow(store, JOB, {}, is_over=lambda: False):
                if piece is not None:
                    assert piece.chunk.data == b"hello\n"
                    break
                looks += 1
                if looks == 2:
                    store.append(JOB, 1, 0, b"hello\n", kind="output", time_ns=1, masker=Masker())
        assert looks >= 2

    asyncio.run(main())


@pytest.mark.parametrize("text", ["1", "a:1", "1:-1", ":", "1:2:3", "1:" + "9" * 60])
def test_a_place_that_nobody_wrote_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a place"):
        read_cursor(text)


def test_a_cursor_comes_back() -> None:
    assert read_cursor(write_cursor({1: 70, 2: 0, 12: 5})) == {1: 70, 12: 5}
    assert read_cursor("") == {}
