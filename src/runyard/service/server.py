"""Serves one accepted socket: HTTP/1.1 by aiohttp's connection, given to an ASGI application.

Imported with the first connection, so a job that calls no service pays nothing. Connections are bounded in number and
time: one that says nothing, or dribbles its header, is cut.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from aiohttp import ClientError, web
from aiohttp.http_exceptions import HttpProcessingError

from runyard.service.asgi import ZERO_COPY

if TYPE_CHECKING:
    import socket
    from collections.abc import MutableMapping

    from runyard.service.asgi import App

IDLE_S: Final = 75.0
"""How long a connection may wait for its next request."""

MOST_CONNECTIONS: Final = 128
SEND_STALL_S: Final = 120.0
_LOOK_S: Final = 1.0
_HEADERS: Final = 64 << 10
_READ_AHEAD: Final = 1 << 20


class Server:
    """`take` serves one connection to its end; several run side by side in one loop."""

    def __init__(self, app: App, *, idle_s: float = IDLE_S) -> None:
        self._app = app
        self._idle_s = idle_s
        self._places = asyncio.Semaphore(MOST_CONNECTIONS)

    async def take(self, sock: socket.socket) -> None:
        """Serve an accepted socket and close it."""
        async with self._places:
            connection = _Connection(self._app)
            server = web.Server(
                connection.handle,
                access_log=None,
                keepalive_timeout=self._idle_s,
                lingering_time=1.0,
                max_line_size=_HEADERS,
                max_field_size=_HEADERS,
                read_bufsize=_READ_AHEAD,
                auto_decompress=False,
            )
            loop = asyncio.get_running_loop()
            try:
                transport, protocol = await loop.connect_accepted_socket(server, sock)
            except OSError:
                sock.close()
                return
            try:
                await self._watch(connection, transport)
            finally:
                transport.close()
                with contextlib.suppress(asyncio.CancelledError):
                    await server.shutdown(1.0)
                del protocol

    async def _watch(self, connection: _Connection, transport: asyncio.BaseTransport) -> None:
        """Until the connection is closed, or has been without a request for too long."""
        loop = asyncio.get_running_loop()
        while not transport.is_closing():
            if not connection.busy and loop.time() - connection.since > self._idle_s:
                return
            await asyncio.sleep(_LOOK_S)


class _Connection:
    """The requests of one connection, one after the other."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.busy = False
        self.since = asyncio.get_running_loop().time()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request, as ASGI."""
        self.busy = True
        try:
            answer = _Answer(request)
            await self._app(_scope(request), answer.receive, answer.send)
            return answer.response
        except ConnectionAbortedError:
            if request.transport is not None:
                request.transport.close()
            raise
        finally:
            self.busy = False
            self.since = asyncio.get_running_loop().time()


class _Answer:
    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self._ended = False
        self.response = web.StreamResponse()

    async def receive(self) -> MutableMapping[str, Any]:
        content = self._request.content
        try:
            # A piece as it came: several of them joined would be one more copy.
            data, _ = await content.readchunk()
        except (ClientError, HttpProcessingError, web.PayloadAccessError, ConnectionError):
            return {"type": "http.disconnect"}
        if not data and self._ended:
            return {"type": "http.disconnect"}
        more = not content.at_eof()
        self._ended = not more
        return {"type": "http.request", "body": data, "more_body": more}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.response.set_status(message["status"])
            for name, value in message["headers"]:
                self.response.headers.add(name.decode("latin-1"), value.decode("latin-1"))
            await self.response.prepare(self._request)
            return
        async with asyncio.timeout(SEND_STALL_S):
            if message["type"] == ZERO_COPY:
                transport = self._request.transport
                if transport is None:
                    raise ConnectionResetError("the client went away")
                loop = asyncio.get_running_loop()
                sent = await loop.sendfile(transport, message["file"], message["offset"], message["count"])
                if sent != message["count"]:
                    raise ConnectionAbortedError("the file is shorter than it was")
            if message.get("body"):
                await self.response.write(message["body"])
            if not message.get("more_body"):
                await self.response.write_eof()


def _scope(request: web.BaseRequest) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "path": request.path,
        "query_string": request.rel_url.raw_query_string.encode("latin-1"),
        "headers": [(name.lower(), value) for name, value in request.raw_headers],
        "extensions": {ZERO_COPY: {}},
    }
