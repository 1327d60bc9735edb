"""HTTP to a unix socket: h11 for the words, asyncio's streams for the bytes, connections kept for the next call.

An engine's API needs no more of HTTP than this (no TLS, cookies, redirects or names), and a job waits for what is
imported here: h11 takes 10 ms where a whole client takes 200. Nothing is sent twice, except a call without effect whose
kept connection the other side had closed.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import h11

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator

READ_BYTES: Final = 1 << 18
CALLS_AT_ONCE: Final = 64
_HEAD_BYTES: Final = 1 << 16
_SAFE: Final = ("GET", "HEAD")


class Broken(Exception):  # noqa: N818 - the caller says in its own words what is broken
    """The connection ended in the middle of a call, or what came isn't HTTP."""


class Answer:
    """The answer to one call: its status, and its body once."""

    def __init__(self, line: _Line, status: int) -> None:
        self.status = status
        self._line = line

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises Broken."""
        while True:
            event = await self._line.hear()
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return

    async def read(self, limit: int | None = None) -> bytes:
        """The whole body, or about the first `limit` bytes of it. Raises Broken."""
        held: list[bytes] = []
        size = 0
        async for piece in self.pieces():
            held.append(piece)
            size += len(piece)
            if limit is not None and size >= limit:
                return b"".join(held)[:limit]
        return b"".join(held)


class HttpDoor:
    """Calls to whoever listens at a path. It belongs to the running loop, and may be used by many tasks."""

    def __init__(self, socket_path: str) -> None:
        self._path = socket_path
        self._idle: list[_Line] = []
        self._places = asyncio.Semaphore(CALLS_AT_ONCE)

    @asynccontextmanager
    async def call(
        self, method: str, target: str, headers: dict[str, str], body: AsyncIterable[bytes] | bytes | None
    ) -> AsyncIterator[Answer]:
        """One call; the caller sets its deadline. Raises Broken, OSError where nobody listens.

        A body that comes in pieces is sent in pieces. An answer that is left before its end costs the connection.
        """
        async with self._places:
            line, answer = await self._asked(method, target, headers, body)
            is_kept = False
            try:
                yield answer
                is_kept = line.is_at_rest()
            finally:
                if is_kept:
                    self._idle.append(line)
                else:
                    line.close()

    async def _asked(
        self, method: str, target: str, headers: dict[str, str], body: AsyncIterable[bytes] | bytes | None
    ) -> tuple[_Line, Answer]:
        while True:
            line = self._kept()
            is_kept = line is not None
            if line is None:
                line = _Line(*await asyncio.open_unix_connection(self._path, limit=READ_BYTES))
            try:
                status = await line.ask(method, target, headers, body)
            except (Broken, OSError):
                line.close()
                if is_kept and method in _SAFE:
                    continue
                raise
            except BaseException:
                line.close()
                raise
            return line, Answer(line, status)

    def _kept(self) -> _Line | None:
        while self._idle:
            line = self._idle.pop()
            if line.is_open():
                return line
            line.close()
        return None

    def close(self) -> None:
        """Drop all kept connections. Safe to repeat."""
        while self._idle:
            self._idle.pop().close()


class _Line:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._sending: asyncio.Task[None] | None = None
        self._talk = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)

    def is_open(self) -> bool:
        return not self._reader.at_eof() and not self._writer.is_closing()

    async def ask(
        self, method: str, target: str, headers: dict[str, str], body: AsyncIterable[bytes] | bytes | None
    ) -> int:
        """Send a request; the answer's status. A body in pieces may still be on its way when the answer begins."""
        words = [("Host", "engine"), *headers.items()]
        if body is None or isinstance(body, bytes):
            if body or method in ("POST", "PUT"):
                words.append(("Content-Length", str(len(body or b""))))
            self._say(h11.Request(method=method, target=target, headers=words), body)
            self._writer.write(self._talk.send(h11.EndOfMessage()) or b"")
            return await self._status()
        words.append(("Transfer-Encoding", "chunked"))
        self._say(h11.Request(method=method, target=target, headers=words), None)
        self._sending = asyncio.create_task(self._send(body), name=f"body of {target[:60]}")
        self._sending.add_done_callback(_seen)
        answering = asyncio.ensure_future(self._status())
        try:
            await asyncio.wait({self._sending, answering}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and self._sending.done():
                self._sending.result()  # what the body's own source raised
            return await answering
        finally:
            if not answering.done():
                answering.cancel()
            elif not answering.cancelled():
                answering.exception()

    def _say(self, request: h11.Request, body: bytes | None) -> None:
        head = self._talk.send(request) or b""
        self._writer.write(head + (self._talk.send(h11.Data(data=body)) or b"") if body else head)

    async def _send(self, body: AsyncIterable[bytes]) -> None:
        """The pieces of a body. Who no longer reads them has answered, or is gone: the answer tells."""
        try:
            async for piece in body:
                if piece:
                    self._writer.write(self._talk.send(h11.Data(data=piece)) or b"")
                    await self._writer.drain()
            self._writer.write(self._talk.send(h11.EndOfMessage()) or b"")
        except (ConnectionError, h11.LocalProtocolError):
            return

    async def _status(self) -> int:
        while True:
            event = await self.hear()
            if isinstance(event, h11.Response):
                return int(event.status_code)

    async def hear(self) -> h11.Event:
        """The next event of the other side. Raises Broken."""
        try:
            while True:
                event = self._talk.next_event()
                if event is h11.NEED_DATA:
                    self._talk.receive_data(await self._reader.read(READ_BYTES))
                elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                    raise Broken("the connection was closed")
                else:
                    assert not isinstance(event, type)
                    return event
        except (ConnectionError, h11.RemoteProtocolError) as bad:
            raise Broken(str(bad)) from bad

    def is_at_rest(self) -> bool:
        """Whether the next call may use this connection: both sides have said all."""
        if self._sending is not None:
            if not self._sending.done():
                return False
            self._sending.result()
            self._sending = None
        if self._talk.our_state is not h11.DONE:
            return False
        if self._talk.their_state is h11.SEND_BODY and not self._has_end():
            return False
        if self._talk.their_state is not h11.DONE:
            return False
        self._talk.start_next_cycle()
        return self.is_open()

    def _has_end(self) -> bool:
        """Whether all that is missing of an answer is its end, and that is here already."""
        try:
            return isinstance(self._talk.next_event(), h11.EndOfMessage)
        except h11.RemoteProtocolError:
            return False

    def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
        self._writer.close()


def _seen(task: asyncio.Task[None]) -> None:
    """A body that failed after its answer was read has nobody to tell."""
    if not task.cancelled():
        task.exception()
