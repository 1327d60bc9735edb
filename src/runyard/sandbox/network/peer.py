"""One side of a proxied conversation: a socket whose every wait has a deadline, and the ways to pass bytes on.

Nothing is decided here. A side that closed, broke or stayed quiet for too long is an ordinary event and raises
`PeerGone`; the difference matters only where a quiet side may still be waited for.
"""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import anyio

from runyard.sandbox.network.http1 import Body, Chunks, NotHttp

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD_LIMIT: Final = 65536
_PIECE: Final = 65536


class PeerGone(Exception):  # noqa: N818 - an ordinary end of a connection
    """The other side closed or broke the connection."""


class PeerQuiet(PeerGone):
    """The other side let a deadline pass."""


class Peer:
    """A non-blocking socket with what was read and not used yet."""

    def __init__(self, connection: socket.socket, patience_s: float) -> None:
        self._socket = connection
        self._patience_s = patience_s
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()

    def close(self) -> None:
        """Close the socket; a second close is quiet."""
        self._socket.close()

    def finish_writing(self) -> None:
        """Say that nothing more will be written."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return

    async def read(self, patience_s: float | None = None) -> bytes:
        """What is buffered, else the next piece; b"" at the end. Raises PeerGone."""
        if self._buffer:
            piece = bytes(self._buffer)
            self._buffer.clear()
            return piece
        with _as_peer_problem(), anyio.fail_after(patience_s or self._patience_s):
            return await self._loop.sock_recv(self._socket, _PIECE)

    def unread(self, rest: bytes) -> None:
        """Give back the end of the piece that was just read."""
        self._buffer[:0] = rest

    async def write(self, data: bytes, patience_s: float | None = None) -> None:
        """All of `data`; the deadline is renewed with each 64 KiB. Raises PeerGone."""
        for at in range(0, len(data), _PIECE):
            with _as_peer_problem(), anyio.fail_after(patience_s or self._patience_s):
                await self._loop.sock_sendall(self._socket, data[at : at + _PIECE])

    async def read_head(self, first_s: float, whole_s: float) -> bytes:
        """A head without its empty line: the first byte within `first_s` seconds, the rest within `whole_s`.

        b"" when the other side closed before the first byte. Raises PeerGone, and NotHttp (431) for an endless head.
        """
        if not self._buffer:
            piece = await self.read(first_s)
            if not piece:
                return b""
            self._buffer += piece
        with _as_peer_problem(), anyio.fail_after(whole_s):
            while True:
                while self._buffer.startswith(b"\r\n"):  # RFC 9112 2.2: empty lines before a start line
                    del self._buffer[:2]
                cut = self._buffer.find(b"\r\n\r\n")
                if 0 <= cut <= HEAD_LIMIT:
                    head = bytes(self._buffer[:cut])
                    del self._buffer[: cut + 4]
                    return head
                if len(self._buffer) > HEAD_LIMIT:
                    raise NotHttp(431, f"a head is longer than {HEAD_LIMIT} bytes")
                piece = await self._loop.sock_recv(self._socket, _PIECE)
                if not piece:
                    raise PeerGone
                self._buffer += piece

    async def drain(self, seconds: float, limit: int) -> None:
        """Read and forget, so that closing doesn't destroy an answer the other side has not read yet."""
        try:
            with anyio.move_on_after(seconds):
                while limit > 0 and (piece := await self.read(seconds)):
                    limit -= len(piece)
        except PeerGone:
            return


@contextmanager
def _as_peer_problem() -> Iterator[None]:
    try:
        yield
    except TimeoutError as err:
        raise PeerQuiet from err
    except OSError as err:
        raise PeerGone from err


async def pass_on(body: Body, source: Peer, sink: Peer) -> None:
    """Copy one body in the framing it came in. Raises PeerGone when it ends early, NotHttp when it is malformed."""
    left = body.length
    chunks = Chunks() if body.kind == "chunked" else None
    while body.kind == "until_close" or left > 0 or (chunks is not None and not chunks.done):
        piece = await source.read()
        if not piece:
            if body.kind == "until_close":
                return
            raise PeerGone
        if body.kind == "length":
            used = min(left, len(piece))
            left -= used
        else:
            used = chunks.feed(piece) if chunks is not None else len(piece)
        if used < len(piece):
            source.unread(piece[used:])
            piece = piece[:used]
        await sink.write(piece)


async def join(one: Peer, other: Peer, patience_s: float) -> None:
    """Copy both directions until both ended. A half-close is passed on, a broken side ends both.

    One direction may be quiet for as long as the other moves; `patience_s` seconds without either end it.
    """
    watch = _Watch(patience_s)
    async with anyio.create_task_group() as both:

        async def copy(source: Peer, sink: Peer) -> None:
            if not await _copy(source, sink, watch):
                both.cancel_scope.cancel()

        both.start_soon(copy, one, other)
        both.start_soon(copy, other, one)


async def _copy(source: Peer, sink: Peer, watch: _Watch) -> bool:
    """One direction to its end; False when the connection is broken or abandoned."""
    while (left := watch.left()) > 0:
        try:
            piece = await source.read(left)
            if not piece:
                sink.finish_writing()
                return True
            watch.moved = time.monotonic()
            await sink.write(piece)
        except PeerQuiet:
            continue
        except PeerGone:
            return False
    return False


class _Watch:
    """When anything moved last."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self.moved = time.monotonic()

    def left(self) -> float:
        return self.moved + self._patience_s - time.monotonic()
