"""What stands between the network and the application: deadlines before the first request, a bound on connections.

uvicorn has no deadline for a client that connects and never speaks, or speaks a byte a minute: a connection that has
not sent a whole request head in time is closed here. The bound on connections is told to uvicorn, which answers 503.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from runyard.service.asgi import App

HEAD_S: Final = 15.0
KEEP_ALIVE_S: Final = 75
CONNECTIONS: Final = 20_000
HEAD_LIMIT: Final = 64 << 10
DRAIN_S: Final = 20


class FrontProtocol(H11Protocol):
    """HTTP/1.1 with a deadline for the head of each request."""

    head_s = HEAD_S
    open = 0
    most = CONNECTIONS

    def connection_made(self, transport: Any) -> None:
        """A client came. One too many is let go at once."""
        super().connection_made(transport)
        FrontProtocol.open += 1
        self._late: asyncio.TimerHandle | None = None
        if FrontProtocol.open > self.most:
            transport.abort()
            return
        self._arm()

    def _arm(self) -> None:
        self._late = self.loop.call_later(self.head_s, self._too_late)

    def _too_late(self) -> None:
        self._late = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()

    def handle_events(self) -> None:
        """A head that came whole ends the wait."""
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete and self._late is not None:
            self._late.cancel()
            self._late = None

    def data_received(self, data: bytes) -> None:
        """Bytes of a head: the clock runs from the first one."""
        if self._late is None and (self.cycle is None or self.cycle.response_complete):
            self._arm()
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        FrontProtocol.open -= 1
        if self._late is not None:
            self._late.cancel()
        super().connection_lost(exc)


class Front:
    """Serves one application on one socket until a signal, then drains."""

    def __init__(
        self, app: App, sock: socket.socket, *, tls: tuple[str, str] | None = None, proxies: tuple[str, ...] = ()
    ) -> None:
        self._sock = sock
        config = uvicorn.Config(
            app,
            http=FrontProtocol,
            ws="none",
            lifespan="off",
            loop="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=DRAIN_S,
            h11_max_incomplete_event_size=HEAD_LIMIT,
            proxy_headers=bool(proxies),
            forwarded_allow_ips=list(proxies) or None,
            ssl_certfile=tls[0] if tls else None,
            ssl_keyfile=tls[1] if tls else None,
        )
        self._server = uvicorn.Server(config)

    async def serve(self, *, on_stop: Callable[[], Awaitable[None]]) -> None:
        """Until SIGTERM or SIGINT. `on_stop` is called before connections are drained: it lets long polls go."""
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, stopping.set)
        # Signals are ours: uvicorn would re-raise them after its end.
        self._server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
        serving = asyncio.create_task(self._server.serve(sockets=[self._sock]), name="front")
        waiting = asyncio.create_task(stopping.wait(), name="signals")
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        await on_stop()
        self._server.should_exit = True
        await serving


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError."""
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = infos[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(4096)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def check_tls(cert: str, key: str) -> None:
    """Raises OSError or ssl.SSLError where the two don't make a server's identity."""
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
