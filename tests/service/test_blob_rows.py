"""Blocks that are written where they belong: whatever way they come, the blob is what their list says."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runyard.service.blob_rows import SMALLEST, number_of
from runyard.service.blobs import FolderBlobs
from runyard.service.ports import Blob, IncompleteError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SIZE = SMALLEST


def block_id(number: int, prefix: str = "0b3cf3a1-6a2e-4b7e-9b57-f3f6f0d3a2c1") -> str:
    """As the toolkit's clients make them."""
    return base64.b64encode((prefix + str(number).rjust(48 - len(prefix), "0")).encode()).decode()


def content(number: int, size: int = SIZE) -> bytes:
    return hashlib.shake_128(b"%d" % number).digest(size)


async def pieces(data: bytes, at_once: int = 100_000) -> AsyncIterator[bytes]:
    for at in range(0, len(data), at_once):
        yield data[at : at + at_once]


async def stage(blobs: FolderBlobs, block: str, data: bytes, size: int | None = None) -> int:
    announced = len(data) if size is None else size
    return await blobs.stage("up", block, pieces(data), limit=1 << 30, size=announced)


def check(blobs: FolderBlobs, blob: Blob, data: bytes) -> None:
    assert blob == Blob(hashlib.sha256(data).hexdigest(), len(data))
    path = blobs.path(blob.digest)
    assert path is not None
    assert Path(path).read_bytes() == data


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=lambda order: "".join(map(str, order)))
def test_blocks_in_any_order_become_one_file(tmp_path: Path, order: tuple[int, ...]) -> None:
    data = [content(0), content(1), content(2), content(3, 1000)]

    async def work() -> None:
        blobs = FolderBlobs(str(tmp_path))
        for number in order:
            await stage(blobs, block_id(number), data[number])
        row = tmp_path / "staging" / "up" / f"row-{SIZE}"
        inode = row.stat().st_ino
        blob = await blobs.commit("up", tuple(map(block_id, range(4))))
        check(blobs, blob, b"".join(data))
        if order[0] != 3:
            assert Path(blobs.path(blob.digest) or "").stat().st_ino == inode, "it was copied"
        assert not (tmp_path / "staging" / "up").exists()

    asyncio.run(work())


def test_side_by_side_and_by_another_process(tmp_path: Path) -> None:
    async def work() -> None:
        one, other = FolderBlobs(str(tmp_path)), FolderBlobs(str(tmp_path))
        data = [content(number) for number in range(6)]
        await asyncio.gather(*(stage((one, other)[n % 2], block_id(n), data[n]) for n in range(6)))
        check(other, await other.commit("up", tuple(map(block_id, range(6)))), b"".join(data))

    asyncio.run(work())


@pytest.mark.parametrize("listed", [(0, 1, 2), (2, 1, 0), (0, 0, 1), (1,), (0, 2)], ids=str)
def test_the_list_decides_and_not_the_numbers(tmp_path: Path, listed: tuple[int, ...]) -> None:
    async def work() -> None:
        blobs = FolderBlobs(str(tmp_path))
        for number in range(3):
            await stage(blobs, block_id(number), content(number))
        check(blobs, await blobs.commit("up", tuple(map(block_id, listed))), b"".join(map(content, listed)))

    asyncio.run(work())


def test_a_block_that_comes_again_replaces_the_first_and_one_of_the_same_number_does_not(tmp_path: Path) -> None:
    async def work() -> None:
        blobs = FolderBlobs(str(tmp_path))
        namesake = block_id(0, "another-")
        for block, data in (
            (block_id(0), content(7)),
            (block_id(1), content(1)),
            (block_id(0), content(0)),
            (namesake, content(9)),
        ):
            await stage(blobs, block, data)
        blob = await blobs.commit("up", (block_id(0), namesake, block_id(1)))
        check(blobs, blob, content(0) + content(9) + content(1))

    asyncio.run(work())


def test_a_block_that_breaks_off_counts_once_it_came_whole(tmp_path: Path) -> None:
    async def work() -> None:
        blobs = FolderBlobs(str(tmp_path))
        with pytest.raises(IncompleteError):
            await stage(blobs, block_id(0), content(8)[:5000], SIZE)
        await stage(blobs, block_id(1), content(1))
        both = (block_id(0), block_id(1))
        with pytest.raises(IncompleteError):
            await blobs.commit("up", both)
        await stage(blobs, block_id(0), content(0))
        check(blobs, await blobs.commit("up", both), content(0) + content(1))

    asyncio.run(work())


def test_who_still_writes_when_the_blob_is_made_can_not_change_it(tmp_path: Path) -> None:
    async def work() -> None:
        blobs = FolderBlobs(str(tmp_path))
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield content(5)[: SIZE // 2]
            begun.set()
            await go_on.wait()
            yield content(5)[SIZE // 2 :]

        await stage(blobs, block_id(0), content(0))
        late = asyncio.create_task(blobs.stage("up", block_id(1), slow(), limit=1 << 30, size=SIZE))
        async with asyncio.timeout(10):
            await begun.wait()
            blob = await blobs.commit("up", (block_id(0),))
            go_on.set()
            await asyncio.wait({late})
        late.exception()
        check(blobs, blob, content(0))

    asyncio.run(work())


def test_a_digest_taken_on_the_way_is_of_the_bytes_that_are_there(tmp_path: Path) -> None:
    """Another process stages the same block: its bytes are in the file, so the digest must be theirs."""

    async def work() -> None:
        one, other = FolderBlobs(str(tmp_path)), FolderBlobs(str(tmp_path))
        await one.stage("up", "whole", pieces(b"one"), limit=100)
        await other.stage("up", "whole", pieces(b"two"), limit=100)
        check(one, await one.commit("up", ("whole",)), b"two")

    asyncio.run(work())


@pytest.mark.parametrize(
    ("block", "number"),
    [
        (block_id(12), 12),
        (base64.b64encode(b"000007").decode(), 7),
        (base64.b64encode(b"x").decode(), None),
        (base64.b64encode(b"x50000").decode(), None),
        ("no base64!", None),
        ("", None),
    ],
)
def test_the_number_of_a_block(block: str, number: int | None) -> None:
    assert number_of(block) == number


def test_small_blocks_are_files(tmp_path: Path) -> None:
    async def work() -> None:
        blobs = FolderBlobs(str(tmp_path))
        for number in range(2):
            await stage(blobs, block_id(number), b"ab"[number : number + 1])
        assert not [name for name in os.listdir(tmp_path / "staging" / "up") if name.startswith("row")]  # noqa: PTH208
        check(blobs, await blobs.commit("up", (block_id(1), block_id(0))), b"ba")

    asyncio.run(work())
