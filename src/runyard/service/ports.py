"""What the services need from outside: bytes, time, tokens. Each port has one plain implementation in this room."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

if TYPE_CHECKING:
    from runyard.service.tenant import Tenant

Clock: TypeAlias = Callable[[], float]
"""Seconds since the epoch."""


class Blob(msgspec.Struct, frozen=True):
    """Whole, unchanging bytes: the SHA-256 in hex, and how many."""

    digest: str
    size: int


class BlobStore(Protocol):
    """Bytes by content. What is being uploaded is not a blob until it is whole; half of one is never seen.

    Several processes may use one store. `upload` is a name that the caller chose, safe in a path.
    """

    async def stage(
        self, upload: str, block: str, data: AsyncIterator[bytes], *, limit: int, size: int | None = None
    ) -> int:
        """Keep one block of an upload; the same block again replaces it. Returns its size.

        `size` is what the sender announced, where it did. Raises TooLargeError beyond `limit` bytes, IncompleteError
        where fewer came than announced, and keeps nothing of a block that did not arrive whole.
        """

    async def stage_at(self, upload: str, offset: int, data: AsyncIterator[bytes], *, limit: int) -> int:
        """Keep a chunk that begins at a byte offset; chunks may come in any order and side by side."""

    async def commit(self, upload: str, blocks: tuple[str, ...] | None = None) -> Blob:
        """Make one blob of an upload's blocks in this order (None: its chunks by offset) and forget the upload.

        Raises IncompleteError for a missing block or a gap. Durable when it returns.
        """

    async def abandon(self, upload: str) -> None:
        """Forget an upload. Safe to repeat."""

    def path(self, digest: str) -> str | None:
        """The file of a blob, None where there is none. Does not wait."""

    async def remove(self, digest: str) -> None:
        """Remove a blob; who reads it now reads it to its end. Safe to repeat."""


class TooLargeError(Exception):
    """More bytes came than are allowed."""


class IncompleteError(Exception):
    """An upload lacks something that its list names."""


class TokenVerifier(Protocol):
    """Tells whose a bearer token is."""

    def verify(self, token: str) -> Tenant | None:
        """The job that the token was made for; None for one that is forged, expired or of another job."""
