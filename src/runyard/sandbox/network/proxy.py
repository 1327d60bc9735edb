"""The network level `proxy`: HTTP and HTTPS for a job without a helper, a tun device or root.

The job's network namespace has nothing but loopback. On it waits one socket that the session opened; each connection
is accepted outside and served here, so the policy is enforced where no process of the job can reach it. A name is
resolved once, every address it gave is judged, and the connection goes to an address that was judged.

`CONNECT` and absolute-form HTTP/1.x are spoken, one client connection carrying any number of requests; every read,
write, lookup and connection has a deadline, and the number of connections is bounded.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio
import msgspec

from runyard.sandbox.network import http1, surroundings
from runyard.sandbox.network.http1 import NotHttp
from runyard.sandbox.network.peer import Peer, PeerGone, PeerQuiet, join, pass_on
from runyard.sandbox.network.policy import Address, Egress, Surroundings, decide, for_machine, parse_destination
from runyard.sandbox.network.refusals import OnRefused, Refusals, RefusedDestination

if TYPE_CHECKING:
    from runyard.job import Refused

_SURROUNDINGS_AGE_S: Final = 10.0
"""How long the machine's own addresses are believed: a laptop changes networks during a job."""

_SAFE_METHODS: Final = frozenset((b"GET", b"HEAD", b"OPTIONS"))
_REASONS: Final = {
    400: "Bad Request",
    403: "Forbidden",
    431: "Request Header Fields Too Large",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
    505: "HTTP Version Not Supported",
}

Resolve: TypeAlias = Callable[[str, int], Awaitable[tuple[Address, ...]]]


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds each wait may take."""

    idle_s: float = 120.0
    head_s: float = 30.0
    lookup_s: float = 15.0
    connect_s: float = 10.0
    answer_s: float = 600.0
    body_s: float = 300.0
    tunnel_s: float = 1800.0


class _Denied(Exception):  # noqa: N818 - a decision on its way to the client's answer
    def __init__(self, destination: str, refused: Refused) -> None:
        super().__init__(str(refused))
        self.destination = destination
        self.refused = refused


class Proxy:
    """Serves the connections of one job. Give `serve` to the session's `listen`.

    `egress` is the policy before this machine's own addresses, which `observe` gives again as the job goes on.
    `on_refused` hears of each destination once; `refused()` has the counts.
    """

    def __init__(
        self,
        egress: Egress | None = None,
        *,
        on_refused: OnRefused | None = None,
        limit: int = 256,
        deadlines: Deadlines | None = None,
        resolve: Resolve | None = None,
        observe: Callable[[], Surroundings] = surroundings.observe,
    ) -> None:
        self._plain = egress or Egress()
        self._refusals = Refusals(on_refused)
        self._limit = limit
        self._deadlines = deadlines or Deadlines()
        self._resolve = resolve or _resolve
        self._observe = observe
        self._egress: tuple[float, Egress] | None = None
        self._open = 0

    def refused(self) -> tuple[RefusedDestination, ...]:
        """Every destination that was refused so far, with its count."""
        return self._refusals.all()

    async def serve(self, accepted: socket.socket) -> None:
        """Serve one accepted connection to its end and close it. Raises nothing but cancellation."""
        accepted.setblocking(False)
        client = Peer(accepted, self._deadlines.body_s)
        self._open += 1
        try:
            if self._open > self._limit:
                await _answer(client, 503, f"more than {self._limit} connections to the job's proxy are open")
            else:
                await _Conversation(self, client, self._deadlines).run()
        except PeerGone:
            pass
        finally:
            self._open -= 1
            client.close()

    async def dial(self, host: str, port: int) -> Peer:
        """A connection to an address that was judged. Raises _Denied, or NotHttp when nothing answers."""
        name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        addresses = await self._lookup(host, port)
        egress = self._current_egress()
        judged = [(address, decide(address, port, "proxy", egress)) for address in addresses]
        problem = ""
        for address in (address for address, refused in judged if refused is None):
            try:
                return await self._connect(address, port)
            except TimeoutError:
                problem = "no answer in time"
            except OSError as err:
                problem = err.strerror or str(err)
        if problem:
            raise NotHttp(502, f"{name} can't be reached: {problem}")
        because = next(refused for _, refused in judged if refused is not None)
        self._refusals.add(name, because.because)
        raise _Denied(name, because)

    def _current_egress(self) -> Egress:
        now = time.monotonic()
        if self._egress is None or now - self._egress[0] > _SURROUNDINGS_AGE_S:
            try:
                self._egress = (now, for_machine(self._plain, self._observe()))
            except OSError as err:
                raise NotHttp(503, "this machine did not tell its own addresses, so nothing can be judged") from err
        return self._egress[1]

    async def _lookup(self, host: str, port: int) -> tuple[Address, ...]:
        try:
            return (ipaddress.ip_address(host),)
        except ValueError:
            pass
        try:
            with anyio.fail_after(self._deadlines.lookup_s):
                found = await self._resolve(host, port)
        except TimeoutError as err:
            raise NotHttp(504, f"the name {host} was not resolved in {self._deadlines.lookup_s:.0f} s") from err
        except (OSError, UnicodeError) as err:
            raise NotHttp(502, f"the name {host} can't be resolved: {err}") from err
        if not found:
            raise NotHttp(502, f"the name {host} has no address")
        return found

    async def _connect(self, address: Address, port: int) -> Peer:
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            with anyio.fail_after(self._deadlines.connect_s):
                await asyncio.get_running_loop().sock_connect(made, (str(address), port))
        except BaseException:
            made.close()
            raise
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Peer(made, self._deadlines.body_s)


async def _resolve(host: str, port: int) -> tuple[Address, ...]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(ipaddress.ip_address(str(entry[4][0])) for entry in found))


class _Conversation:
    """One client connection: its requests in turn, and the connection to the origin that served the last one."""

    def __init__(self, proxy: Proxy, client: Peer, deadlines: Deadlines) -> None:
        self._proxy = proxy
        self._client = client
        self._deadlines = deadlines
        self._origin: tuple[str, int, Peer] | None = None

    async def run(self) -> None:
        try:
            while await self._one_request():
                pass
        finally:
            self._drop_origin()

    async def _one_request(self) -> bool:
        """Serve one request; whether another may follow on this connection."""
        try:
            raw = await self._client.read_head(self._deadlines.idle_s, self._deadlines.head_s)
            if not raw:
                return False
            head = http1.parse_request_head(raw)
            if head.method == b"CONNECT":
                await self._tunnel(head)
                return False
            return await self._forward(head)
        except NotHttp as err:
            await _answer(self._client, err.status, err.text)
        except _Denied as err:
            await _answer(self._client, 403, _refusal_text(err), denied=True)
        return False

    async def _tunnel(self, head: http1.RequestHead) -> None:
        host, port = _host_and_port(head.target, None)
        origin = await self._proxy.dial(host, port)
        try:
            await self._client.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await join(self._client, origin, self._deadlines.tunnel_s)
        finally:
            origin.close()

    async def _forward(self, head: http1.RequestHead) -> bool:
        scheme, authority, path = http1.split_target(head.target)
        if scheme != "http":
            raise NotHttp(400, f"{scheme}:// is reached by CONNECT, not by a plain request")
        host, port = _host_and_port(authority, 80)
        body = http1.request_body(head)
        target = path or (b"*" if head.method == b"OPTIONS" else b"/")
        rendered = http1.render_request(head, target, authority)
        if (
            body.kind == "none"
            and head.method in _SAFE_METHODS
            and (raw := await self._ask_again(host, port, rendered))
        ):
            return await self._relay_answer(head, raw)
        self._drop_origin()
        origin = await self._proxy.dial(host, port)
        self._origin = (host, port, origin)
        try:
            await origin.write(rendered)
        except PeerGone as err:
            raise NotHttp(502, "the server closed the connection") from err
        if body.kind == "none":
            return await self._relay_answer(head, b"")
        return await self._exchange(head, body, origin)

    async def _ask_again(self, host: str, port: int, rendered: bytes) -> bytes:
        """The head of an answer on the kept connection; b"" when there is none or it was stale.

        An origin may close a kept connection at any time. Only a safe request without a body comes here, so asking
        once more on a fresh connection changes nothing.
        """
        if self._origin is None or self._origin[:2] != (host, port):
            return b""
        try:
            await self._origin[2].write(rendered)
            return await self._origin[2].read_head(self._deadlines.answer_s, self._deadlines.head_s)
        except PeerQuiet as err:
            raise NotHttp(504, "the server did not answer") from err
        except PeerGone:
            return b""
        except NotHttp as err:
            raise NotHttp(502, f"the server's answer: {err.text}") from err

    async def _exchange(self, head: http1.RequestHead, body: http1.Body, origin: Peer) -> bool:
        """Send a body while the answer is awaited: an origin may say 100 Continue, or no, before the body's end."""
        problem: NotHttp | PeerGone | None = None
        keep = is_sent = False

        async def send() -> None:
            nonlocal is_sent
            try:
                await pass_on(body, self._client, origin)
                is_sent = True
            except (PeerGone, NotHttp):
                # The client hears of it by the answer to what the origin got, or by the end of the connection.
                origin.finish_writing()

        async with anyio.create_task_group() as upload:
            upload.start_soon(send)
            try:
                keep = await self._relay_answer(head, b"")
            except (NotHttp, PeerGone) as err:
                problem = err
            upload.cancel_scope.cancel()
        if problem is not None:
            raise problem
        return keep and is_sent

    async def _relay_answer(self, asked: http1.RequestHead, raw: bytes) -> bool:
        """Pass the answer on; whether the client's connection goes on. `raw` is its head, if that was read already.

        Until the head is out a problem is told as HTTP (NotHttp); later the connection just ends (PeerGone).
        """
        if self._origin is None:
            raise PeerGone
        origin = self._origin[2]
        while True:
            head = http1.parse_response_head(raw or await self._answer_head(origin))
            raw = b""
            if head.status >= 200:
                break
            if head.status == 101:
                raise NotHttp(502, "the server switched protocols without being asked")
            if asked.version != b"HTTP/1.0":
                await self._client.write(http1.render_response(head, keep_alive=True))
        body = http1.response_body(head, asked.method)
        ends = body.kind == "until_close"
        client_stays = http1.keeps_alive(asked.fields, asked.version, to_proxy=True) and not ends
        await self._client.write(http1.render_response(head, keep_alive=client_stays))
        try:
            await pass_on(body, origin, self._client)
        except NotHttp as err:
            raise PeerGone from err
        if ends or not http1.keeps_alive(head.fields, head.version):
            self._drop_origin()
        return client_stays

    async def _answer_head(self, origin: Peer) -> bytes:
        try:
            raw = await origin.read_head(self._deadlines.answer_s, self._deadlines.head_s)
        except PeerQuiet as err:
            raise NotHttp(504, "the server did not answer") from err
        except PeerGone as err:
            raise NotHttp(502, "the server broke the connection") from err
        except NotHttp as err:
            raise NotHttp(502, f"the server's answer: {err.text}") from err
        if not raw:
            raise NotHttp(502, "the server closed the connection without an answer")
        return raw

    def _drop_origin(self) -> None:
        if self._origin is not None:
            self._origin[2].close()
            self._origin = None


def _host_and_port(authority: bytes, default: int | None) -> tuple[str, int]:
    try:
        host, port = parse_destination(authority.decode("ascii"))
    except ValueError as err:
        raise NotHttp(400, str(err)) from err
    if port is None and default is None:
        raise NotHttp(400, "CONNECT needs host:port")
    return host, port or default or 0


def _refusal_text(denied: _Denied) -> str:
    remedy = f"\n{denied.refused.remedy}" if denied.refused.remedy else ""
    return f"the sandbox's network policy refuses {denied.destination}: {denied.refused.because}{remedy}"


async def _answer(client: Peer, status: int, text: str, *, denied: bool = False) -> None:
    """An answer of our own, after which the connection ends. Proxy-Status is RFC 9209's field for it."""
    body = f"runyard: {text}\n".encode()
    error = (
        "destination_ip_prohibited" if denied else "http_protocol_error" if status == 400 else "proxy_internal_error"
    )
    head = (
        f"HTTP/1.1 {status} {_REASONS.get(status, 'Refused')}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nProxy-Status: runyard; error={error}\r\nConnection: close\r\n\r\n"
    )
    await client.write(head.encode() + body)
    client.finish_writing()
    await client.drain(2.0, 1 << 20)


def proxy_environment(port: int, *, direct: Iterable[str] = ()) -> dict[str, str]:
    """The variables that send a job's clients through the proxy on loopback `port`.

    `direct` are further names that are reached without it, such as service containers. Node reads them only with
    NODE_USE_ENV_PROXY, and only from version 24 on.
    """
    address = f"http://127.0.0.1:{port}"
    without = ",".join(("localhost", "127.0.0.1", "::1", *direct))
    plain = {"http_proxy": address, "https_proxy": address, "no_proxy": without}
    return {**{name.upper(): value for name, value in plain.items()}, **plain, "NODE_USE_ENV_PROXY": "1"}
