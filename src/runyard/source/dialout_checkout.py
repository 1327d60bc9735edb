"""The repository of a claim, fetched once: a tar of a bare git repository, resumable, kept by commit and depth.

What the server sends is data: only packs, refs and `HEAD` are taken, under names that are checked one by one; the
configuration is written here, and an alternate object folder is refused. The tree and its `.git` are made from it by
the checkout step as in a local run.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, NamedTuple, cast

from runyard.job import MachineError
from runyard.source.dialout import AwayError
from runyard.source.dialout_lease import Backoff

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Callable

    from runyard.job import Checkout
    from runyard.source.dialout import DialOut, Fence
    from runyard.source.dialout_lease import Lease

KEPT: Final = 20
KEPT_AT_LEAST_S: Final = 24 * 3600.0
_MARGIN: Final = 64 << 20
_MOST_MEMBERS: Final = 200_000
_NAMES: Final = re.compile(
    r"HEAD|packed-refs|shallow|objects/info/(?:packs|commit-graph)"
    r"|objects/pack/(?:pack|multi-pack-index)[0-9a-zA-Z._-]*|objects/[0-9a-f]{2}/[0-9a-f]{38,62}"
    r"|refs/(?:heads|tags|remotes|pull|runyard)/[^\0]+"
)
_CONFIG: Final = "[core]\n\trepositoryformatversion = {version}\n\tfilemode = true\n\tbare = true\n{extensions}"


class Holder(NamedTuple):
    """Who asks: a worker that holds a lease. `away` hears of each failed try."""

    client: DialOut
    fence: Fence
    lease: Lease
    away: Callable[[AwayError], None] | None = None


class Checkouts:
    """Repositories below one folder. One download of each at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locks: dict[str, asyncio.Lock] = {}

    async def get(self, holder: Holder, checkout: Checkout, depth: int) -> str:
        """A bare repository with the checkout's commit. Raises LeaseOverError; MachineError for what is no such tar.

        Without a depth all branches and tags come too, and those change: such a repository is kept for its lease alone.
        """
        parts = (
            holder.client.url,
            checkout.repository,
            checkout.commit,
            str(depth),
            "" if depth else holder.fence.lease,
        )
        key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]
        folder = self._folder / f"{key}.git"
        async with self._locks.setdefault(key, asyncio.Lock()):
            if not await asyncio.to_thread(folder.is_dir):
                await self._fetch(holder, checkout, depth, folder)
                await asyncio.to_thread(self._forget_oldest)
            await asyncio.to_thread(os.utime, folder)
        return str(folder)

    async def _fetch(self, holder: Holder, checkout: Checkout, depth: int, folder: Path) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix="making-", dir=self._folder))
        try:
            transfer = _Transfer(making / "tar")
            backoff = Backoff(most_s=5.0)

            async def once() -> None:
                had = transfer.size
                try:
                    await transfer.go_on(holder, depth)
                finally:
                    if transfer.size > had:
                        backoff.reset()

            await holder.lease.insist(once, backoff=backoff, away=holder.away)
            await asyncio.to_thread(_unpack, transfer, making / "git", checkout.commit)
            holder.lease.check()
            (making / "git").rename(folder)
        except OSError as error:
            raise MachineError(
                f"the repository could not be kept in {self._folder}: {error.strerror or error}",
                code="dialout.checkout",
            ) from error
        finally:
            await asyncio.to_thread(shutil.rmtree, making, ignore_errors=True)

    def _forget_oldest(self) -> None:
        """Keep the newest; a whole history is kept for a day, like what a job may still read."""
        found = [each for each in self._folder.iterdir() if each.suffix == ".git"]
        found.sort(key=lambda each: each.stat().st_mtime, reverse=True)
        for each in found[KEPT:]:
            if time.time() - each.stat().st_mtime > KEPT_AT_LEAST_S:
                shutil.rmtree(each, ignore_errors=True)


class _Transfer:
    """Encoded bytes on their way into a file; `go_on` continues where the last try ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.encoding = "identity"
        self._etag = ""

    async def go_on(self, holder: Holder, depth: int) -> None:
        """To the end. Raises AwayError where it broke off."""
        begin = self.size if self._etag else 0
        async with holder.client.checkout(holder.fence, depth=depth, etag=self._etag, begin=begin) as answer:
            if answer.begin not in (0, begin) or answer.encoding not in ("identity", "zstd"):
                raise AwayError(f"the server sent another part than the one asked for ({answer.encoding})")
            self.size, self.encoding, self._etag = answer.begin, answer.encoding, answer.etag
            total = answer.total
            if total is not None and total - self.size > shutil.disk_usage(self.path.parent).free - _MARGIN:
                raise MachineError(
                    f"the repository needs {total >> 20} MiB, more than is free at {self.path.parent.parent}",
                    code="dialout.disk",
                )
            with self.path.open("r+b" if self.size else "wb") as file:
                file.truncate(self.size)
                file.seek(self.size)
                async for chunk in answer.chunks:
                    holder.lease.check()
                    await asyncio.to_thread(file.write, chunk)
                    self.size += len(chunk)
            if total is not None and self.size < total:
                raise AwayError("the repository's transfer broke off")


def _unpack(transfer: _Transfer, folder: Path, commit: str) -> None:
    """The tar as a bare repository. Raises MachineError for one that holds anything else."""
    folder.mkdir(mode=0o700)
    (folder / "objects" / "pack").mkdir(parents=True)
    (folder / "refs" / "heads").mkdir(parents=True)
    try:
        with _plain(transfer) as stream, tarfile.open(fileobj=stream, mode="r|", bufsize=1 << 20) as tar:
            for count, member in enumerate(tar):
                if count > _MOST_MEMBERS:
                    raise _no_repository(f"it has more than {_MOST_MEMBERS} members")
                _take(tar, member, folder)
    except (tarfile.TarError, EOFError, ValueError, zstd.ZstdError) as error:
        raise _no_repository(str(error)) from error
    whole = len(commit) == 40
    (folder / "config").write_text(
        _CONFIG.format(version=0 if whole else 1, extensions="" if whole else "[extensions]\n\tobjectFormat = sha256\n")
    )
    if not (folder / "HEAD").exists():
        (folder / "HEAD").write_text("ref: refs/heads/main\n")


def _take(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    name = member.name.removeprefix("./").rstrip("/")
    if member.isdir() or name in ("", ".", "config", "description", "FETCH_HEAD", "info/exclude", "info/refs"):
        return
    if not member.isreg() or ".." in name.split("/") or _NAMES.fullmatch(name) is None:
        if name.startswith(("hooks/", "info/", "branches/", "logs/")) and member.isreg():
            return
        raise _no_repository(f"{name!r} has no place in it")
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    source = tar.extractfile(member)
    assert source is not None
    with target.open("xb") as file:
        shutil.copyfileobj(source, file, 1 << 20)


def _plain(transfer: _Transfer) -> IO[bytes]:
    if transfer.encoding == "identity":
        return transfer.path.open("rb")
    return cast("IO[bytes]", zstd.open(transfer.path, "rb"))


def _no_repository(why: str) -> MachineError:
    return MachineError(f"what the server sent is no bare repository: {why}", code="dialout.checkout")
