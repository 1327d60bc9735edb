"""Blobs in a folder: staged blocks, made whole once, kept by the SHA-256 of what they are.

    blobs/ab/abcd…            whole and unchanging: only ever renamed into place, after fsync
    staging/<upload>/         blocks of an upload; a block is renamed into place when all of it came
    staging/<upload>/row-…    or written where its number says it belongs, see `blob_rows.py`
    staging/<upload>/chunks   chunks by offset in one sparse file, and which ranges came

Several processes may share the folder: names of blobs are their content, and uploads have names of their own. What was
abandoned is removed by `sweep`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.service.blob_rows import Place, RowHash, claim, number_of, pieces, settle, settled, take_row
from runyard.service.ports import Blob, IncompleteError, TooLargeError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

_CHUNK: Final = 1 << 20
_AT_ONCE: Final = 2 << 20
_MOST_HASHED: Final = 256
_MOST_PIECES: Final = 512
"""So many pieces are written at once, however small; the kernel takes no more than 1,024."""
_NAME: Final = re.compile(r"[0-9A-Za-z_-]{1,80}\Z")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")
MOST_BLOCKS: Final = 50_000
ABANDONED_AFTER_S: Final = 24 * 3600.0


class _Alone(msgspec.Struct, frozen=True):
    """A block in a file of its own, with its digest."""

    name: str
    facts: os.stat_result
    blob: Blob

    def is_at(self, path: Path) -> bool:
        """Whether the file is still the one that was hashed: another process may have put its own there."""
        try:
            found = path.stat()
        except FileNotFoundError:
            return False
        return (found.st_ino, found.st_size, found.st_mtime_ns) == (
            self.facts.st_ino,
            self.facts.st_size,
            self.facts.st_mtime_ns,
        )


class FolderBlobs:
    """The blob store of one machine. See BlobStore."""

    def __init__(self, folder: str) -> None:
        self._blobs = Path(folder) / "blobs"
        self._staging = Path(folder) / "staging"
        # What was hashed as it came, by upload; who isn't in here is hashed again.
        self._hashed: dict[str, _Alone | RowHash] = {}

    async def stage(
        self, upload: str, block: str, data: AsyncIterator[bytes], *, limit: int, size: int | None = None
    ) -> int:
        """See BlobStore. A block with a number and a size goes to its place among the others at once."""
        folder = await asyncio.to_thread(self._upload, upload)
        name = _block_name(block)
        if size is not None and size <= limit and (number := number_of(block)) is not None:
            place = await asyncio.to_thread(claim, folder, name, number, size)
            if place is not None:
                return await self._stage_in_row(upload, folder, place, data)
        digest = hashlib.sha256()
        descriptor, making = await asyncio.to_thread(tempfile.mkstemp, prefix="part-", dir=folder)
        try:
            written = await _write(descriptor, 0, data, limit, digest.update)
            # At once, so that of two who stage the same block the digest is of the one whose file it is.
            os.replace(making, folder / name)  # noqa: PTH105 - a name
            self._remember(upload, _Alone(name, os.stat(descriptor), Blob(digest.hexdigest(), written)))  # noqa: PTH116
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(making)  # noqa: PTH108 - a name, and nothing to wait for
            raise
        finally:
            os.close(descriptor)
        return written

    async def _stage_in_row(self, upload: str, folder: Path, place: Place, data: AsyncIterator[bytes]) -> int:
        descriptor = os.open(folder / place.file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            written = await _write(descriptor, place.offset, data, place.size)
        finally:
            os.close(descriptor)
        if written != place.size:
            raise IncompleteError(f"{written} bytes of {place.size} came")
        await asyncio.to_thread(settle, folder, place)
        row = self._hashed.get(upload)
        if not isinstance(row, RowHash):
            row = RowHash(folder / place.file, place.row)
            self._remember(upload, row)
        row.add(place)
        return written

    def _remember(self, upload: str, hashed: _Alone | RowHash) -> None:
        self._hashed[upload] = hashed
        if len(self._hashed) > _MOST_HASHED:
            del self._hashed[next(iter(self._hashed))]

    async def stage_at(self, upload: str, offset: int, data: AsyncIterator[bytes], *, limit: int) -> int:
        """See BlobStore."""
        folder = await asyncio.to_thread(self._upload, upload)
        descriptor = os.open(folder / "chunks", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = await _write(descriptor, offset, data, limit)
        finally:
            os.close(descriptor)
        # The range is told by a name of its own, so writers side by side need no lock.
        (folder / f"range-{offset}-{offset + size}").touch()
        return size

    async def commit(self, upload: str, blocks: tuple[str, ...] | None = None) -> Blob:
        """See BlobStore. Hashing and copying go on in a thread."""
        return await asyncio.to_thread(self._commit, upload, blocks)

    async def abandon(self, upload: str) -> None:
        """See BlobStore."""
        self._hashed.pop(upload, None)
        await asyncio.to_thread(shutil.rmtree, self._staging / _checked(upload), True)

    def path(self, digest: str) -> str | None:
        """See BlobStore."""
        path = self._blob(digest)
        return str(path) if path.exists() else None

    async def remove(self, digest: str) -> None:
        """See BlobStore."""
        await asyncio.to_thread(self._blob(digest).unlink, missing_ok=True)

    def adopt(self, path: str) -> Blob:
        """Make a blob of a finished file outside, which is gone afterwards. Blocking; the file must not change."""
        self._staging.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(path, "rb") as file:
            digest = hashlib.sha256()
            while data := file.read(_CHUNK):
                digest.update(data)
            size = file.tell()
            os.fsync(file.fileno())
        return self._settle(path, Blob(digest.hexdigest(), size))

    def _keep(self, path: str, blob: Blob) -> Blob:
        """The same for a file whose digest is known."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return self._settle(path, blob)

    def sweep(self, *, older_than_s: float = ABANDONED_AFTER_S) -> int:
        """Remove uploads that nobody has touched for that long; returns how many. Blocking."""
        removed = 0
        with contextlib.suppress(FileNotFoundError):
            for each in list(os.scandir(self._staging)):
                with contextlib.suppress(OSError):
                    if time.time() - each.stat(follow_symlinks=False).st_mtime > older_than_s:
                        shutil.rmtree(each.path, True) if each.is_dir(follow_symlinks=False) else os.unlink(each.path)  # noqa: PTH108
                        removed += 1
        return removed

    def _upload(self, upload: str) -> Path:
        folder = self._staging / _checked(upload)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def _blob(self, digest: str) -> Path:
        if not _DIGEST.match(digest):
            raise ValueError("a digest is 64 hexadecimal digits")
        return self._blobs / digest[:2] / digest

    def _commit(self, upload: str, blocks: tuple[str, ...] | None) -> Blob:
        folder = self._upload(upload)
        hashed = self._hashed.pop(upload, None)
        names = [_block_name(block) for block in blocks or ()]
        if blocks is None:
            blob = self._whole_file(folder / "chunks", _covered(folder))
        elif len(blocks) > MOST_BLOCKS:
            raise IncompleteError(f"a blob has at most {MOST_BLOCKS} blocks")
        elif isinstance(hashed, _Alone) and names == [hashed.name] and hashed.is_at(folder / hashed.name):
            blob = self._keep(str(folder / hashed.name), hashed.blob)
        elif (taken := take_row(folder, names)) is not None:
            path, size, row = taken
            digest = (hashed if isinstance(hashed, RowHash) else RowHash(path, row)).finish(path, size, row)
            os.truncate(path, size)
            blob = self._keep(str(path), Blob(digest, size))
        elif len(names) == 1 and (path := folder / names[0]).exists():
            blob = self.adopt(str(path))
        else:
            blob = self._joined(folder, blocks)
        shutil.rmtree(folder, ignore_errors=True)
        return blob

    def _whole_file(self, path: Path, size: int | None) -> Blob:
        if size is None:
            raise IncompleteError("nothing was uploaded, or a part of it is missing")
        if not path.exists():
            path.touch()
        if path.stat().st_size != size:
            raise IncompleteError("the upload has a gap")
        return self.adopt(str(path))

    def _joined(self, folder: Path, blocks: Iterable[str]) -> Blob:
        """One file of all blocks, read and hashed once."""
        digest = hashlib.sha256()
        size = 0
        places = settled(folder)
        descriptor, making = tempfile.mkstemp(prefix="join-", dir=folder)
        with os.fdopen(descriptor, "wb") as out:
            for block in blocks:
                try:
                    for data in pieces(folder, _block_name(block), places):
                        digest.update(data)
                        out.write(data)
                        size += len(data)
                except FileNotFoundError as error:
                    raise IncompleteError(f"block {block} was not uploaded") from error
            out.flush()
            os.fsync(out.fileno())
        return self._settle(making, Blob(digest.hexdigest(), size))

    def _settle(self, path: str, blob: Blob) -> Blob:
        """Rename a synced file to its content's name; the name is on disk when this returns."""
        target = self._blob(blob.digest)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(path, 0o400)  # noqa: PTH101 - a name
        os.replace(path, target)  # noqa: PTH105 - a name
        for each in (target.parent, self._blobs):
            descriptor = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        return blob


async def _write(
    descriptor: int,
    offset: int,
    data: AsyncIterator[bytes],
    limit: int,
    look: Callable[[bytes], object] | None = None,
) -> int:
    """Write a stream in large pieces, outside the loop, where `look` sees them too; returns how many bytes came."""
    waiting: list[bytes] = []
    size = written = 0
    async for piece in data:
        size += len(piece)
        if size > limit:
            raise TooLargeError(f"more than {limit} bytes")
        waiting.append(piece)
        if size - written >= _AT_ONCE or len(waiting) >= _MOST_PIECES:
            full, waiting = waiting, []
            await asyncio.to_thread(_put, descriptor, full, offset + written, look)
            written = size
    if waiting:
        await asyncio.to_thread(_put, descriptor, waiting, offset + written, look)
    return size


def _put(descriptor: int, pieces: list[bytes], offset: int, look: Callable[[bytes], object] | None) -> None:
    total = sum(map(len, pieces))
    done = os.pwritev(descriptor, pieces, offset)
    if done < total:
        view = memoryview(b"".join(pieces))[done:]
        while view:
            written = os.pwrite(descriptor, view, offset + done)
            done += written
            view = view[written:]
    if look is not None:
        for piece in pieces:
            look(piece)


def _covered(folder: Path) -> int | None:
    """The size of an upload by chunks, None where the ranges that came don't join up from the first byte on."""
    ranges = sorted(
        (int(start), int(end))
        for start, end in (
            name.split("-")[1:] for name in sorted(each.name for each in folder.iterdir()) if name.startswith("range-")
        )
    )
    reached = 0
    for start, end in ranges:
        if start > reached:
            return None
        reached = max(reached, end)
    return reached if ranges else None


def _checked(upload: str) -> str:
    if not _NAME.match(upload):
        raise ValueError(f"{upload!r} is no name of an upload")
    return upload


def _block_name(block: str) -> str:
    """Block ids are the client's text, so files have the hash of them as name."""
    return "block-" + hashlib.sha256(block.encode("utf-8", "surrogatepass")).hexdigest()[:40]


__all__ = ["FolderBlobs"]
