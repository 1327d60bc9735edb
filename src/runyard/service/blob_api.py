"""Blobs over HTTP, as the block-blob clients of the toolkit speak it (runner-v2 12.3, 16.2): put, block, list, get.

Each address is signed for one upload or one blob and one of reading and writing; there is no other permission. Paths
have four segments, since the clients read an account, a container and a name from them where the host is an address.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Final
from xml.etree.ElementTree import ParseError, fromstring

from runyard.service.asgi import Refusal, send_bytes, send_file
from runyard.service.ports import IncompleteError, TooLargeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from runyard.service.asgi import Request, Send
    from runyard.service.ports import Blob, BlobStore
    from runyard.service.tokens import Signer

PREFIX: Final = "/blobs/"
LIST_LIMIT: Final = 8 << 20
_WHOLE: Final = "\0whole"
_TAGS: Final = frozenset({"Latest", "Committed", "Uncommitted"})


class BlobApi:
    """`uploads` maps a container (`caches`, `artifacts`) to what is told when an upload of it is whole."""

    def __init__(
        self,
        blobs: BlobStore,
        signer: Signer,
        uploads: Mapping[str, Callable[[str, Blob], Awaitable[None]]],
        limit: int,
    ) -> None:
        self._blobs = blobs
        self._signer = signer
        self._uploads = uploads
        self._limit = limit
        self._staged: dict[str, int] = {}

    def upload_url(self, container: str, upload: str) -> str:
        """The path, with its seal, to upload to."""
        return self._signer.sign(f"{PREFIX}{container}/upload/{upload}", "w")

    def download_url(self, container: str, digest: str, *, name: str = "", mime: str = "") -> str:
        """The path, with its seal, to read a blob from; `name` and `mime` are told to whoever reads."""
        hidden = base64.urlsafe_b64encode(f"{mime}\0{name}".encode()).decode().rstrip("=")
        return self._signer.sign(f"{PREFIX}{container}/{digest}/{hidden}", "r")

    async def serve(self, request: Request, send: Send) -> None:
        """One request below PREFIX."""
        reads = request.method in {"GET", "HEAD"}
        if not self._signer.allows(request.path, request.query, "r" if reads else "w"):
            raise Refusal("permission_denied", "the signature of this address is wrong or has expired")
        parts = request.path.removeprefix(PREFIX).split("/")
        if len(parts) != 3 or parts[0] not in self._uploads:
            raise Refusal("not_found", "there is no such blob")
        if reads:
            await self._read(request, send, parts[1], parts[2])
        elif request.method == "PUT" and parts[1] == "upload":
            await self._put(request, parts[0], parts[2])
            await send_bytes(send, 201, b"", _headers(parts[2]))
        else:
            raise Refusal("bad_route", f"{request.method} is not served here")

    async def _read(self, request: Request, send: Send, digest: str, hidden: str) -> None:
        path = self._blobs.path(digest)
        if path is None:
            raise Refusal("not_found", "this blob was removed")
        mime, _, name = base64.urlsafe_b64decode(hidden + "=" * (-len(hidden) % 4)).decode().partition("\0")
        headers = [*_headers(digest), (b"content-type", (mime or "application/octet-stream").encode())]
        if name:
            from urllib.parse import quote

            headers.append((b"content-disposition", f"attachment; filename*=UTF-8''{quote(name)}".encode()))
        await send_file(request, send, path, headers)

    async def _put(self, request: Request, container: str, upload: str) -> None:
        comp = request.query.get("comp", "")
        try:
            if comp == "block":
                await self._stage(request, upload, _block_id(request.query.get("blockid", "")))
            elif comp == "blocklist":
                await self._commit(container, upload, _block_list(await request.body(LIST_LIMIT)))
            elif not comp:
                await self._stage(request, upload, _WHOLE)
                await self._commit(container, upload, (_WHOLE,))
            else:
                raise Refusal("invalid_argument", f"comp={comp} is not served here")
        except TooLargeError as error:
            raise Refusal("too_large", str(error)) from error
        except IncompleteError as error:
            raise Refusal("invalid_argument", str(error)) from error

    async def _stage(self, request: Request, upload: str, block: str) -> None:
        """Keep a block. What one upload may hold on disk is bounded over all its blocks."""
        room = self._limit - self._staged.get(upload, 0)
        length = request.headers.get("content-length", "")
        announced = int(length) if length.isdecimal() and len(length) < 16 else None
        size = await self._blobs.stage(upload, block, request.chunks(), limit=room, size=announced)
        self._staged[upload] = self._staged.get(upload, 0) + size

    async def _commit(self, container: str, upload: str, blocks: tuple[str, ...]) -> None:
        blob = await self._blobs.commit(upload, blocks)
        self._staged.pop(upload, None)
        await self._uploads[container](upload, blob)


def _headers(tag: str) -> list[tuple[bytes, bytes]]:
    """What the clients look for in every answer."""
    from email.utils import formatdate

    return [
        (b"etag", f'"{tag[:32]}"'.encode()),
        (b"last-modified", formatdate(usegmt=True).encode()),
        (b"x-ms-request-id", tag[:32].encode()),
        (b"x-ms-version", b"2021-12-02"),
        (b"x-ms-blob-type", b"BlockBlob"),
    ]


def _block_id(given: str) -> str:
    try:
        base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refusal("invalid_argument", "blockid is no base64") from error
    if not 0 < len(given) <= 128:
        raise Refusal("invalid_argument", "blockid is empty or too long")
    return given


def _block_list(data: bytes) -> tuple[str, ...]:
    """The ids of a block list, in order. Entities and document types are refused unread."""
    if b"<!" in data:
        raise Refusal("malformed", "the block list is more than a list of blocks")
    try:
        root = fromstring(data)
    except ParseError as error:
        raise Refusal("malformed", f"the block list is no XML: {error}") from error
    return tuple((element.text or "").strip() for element in root if element.tag in _TAGS)
