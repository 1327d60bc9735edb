"""The little of ASGI that the services need: a request read under limits, an answer sent, a refusal as JSON.

Every error a client can cause is a `Refusal`; it answers `{"code", "msg", "message"}`, which both the twirp clients and
the older REST clients parse.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, unquote

import msgspec

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

JSON_LIMIT = 1 << 20
BODY_STALL_S = 60.0
"""How long a client may say nothing in the middle of a body."""

ZERO_COPY = "http.response.zerocopysend"

_CHUNK = 1 << 20
_ZERO_COPY_CHUNK = 4 << 20
_STATUS = {
    "invalid_argument": 400,
    "malformed": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "not_found": 404,
    "bad_route": 404,
    "already_exists": 409,
    "too_large": 413,
    "resource_exhausted": 429,
    "internal": 500,
    "unavailable": 503,
}


class Refusal(Exception):  # noqa: N818 - an answer, not a fault of ours
    """Why a request is not served. `code` is one of twirp's names and decides the status."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = _STATUS[code]


class Request:
    """One request: method, path (decoded), query, headers, and its body under a limit."""

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        self.headers: dict[str, str] = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        self._receive = receive

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes. Refuses a client that stalls or goes away."""
        while True:
            try:
                async with asyncio.timeout(BODY_STALL_S):
                    message = await self._receive()
            except TimeoutError as error:
                raise Refusal("malformed", f"nothing of the body came for {BODY_STALL_S:g} s") from error
            if message["type"] == "http.disconnect":
                raise Refusal("malformed", "the connection ended before the body did")
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body"):
                return

    async def gone(self) -> None:
        """Returns when the client has gone away; to be awaited once the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def body(self, limit: int) -> bytes:
        """The whole body."""
        parts: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            size += len(chunk)
            if size > limit:
                raise Refusal("too_large", f"the body is larger than {limit} bytes")
            parts.append(chunk)
        return b"".join(parts)

    async def json(self) -> dict[str, Any]:
        """The body as a JSON object; nothing counts as an empty one."""
        data = await self.body(JSON_LIMIT)
        try:
            found = msgspec.json.decode(data) if data else {}
        except msgspec.DecodeError as error:
            raise Refusal("malformed", f"the body is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise Refusal("malformed", "the body is no JSON object")
        return found

    def credential(self) -> str:
        """The token of the Authorization header, as Bearer or as the password of Basic; "" without one."""
        kind, _, value = self.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return value.strip()
        if kind.lower() == "basic":
            import base64
            import binascii

            try:
                decoded: str = base64.b64decode(value.strip(), validate=True).decode("utf-8")
            except (binascii.Error, UnicodeDecodeError):
                return ""
            return decoded.partition(":")[2]
        return ""


def field(message: dict[str, Any], name: str, default: Any = None) -> Any:
    """A member by its proto name, also where a client wrote it in camelCase."""
    if name in message:
        return message[name]
    first, *rest = name.split("_")
    return message.get(first + "".join(part.capitalize() for part in rest), default)


def text_field(message: dict[str, Any], name: str) -> str:
    """A member that is text; refuses anything else. Absent: ""."""
    value = field(message, name, "")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Refusal("invalid_argument", f"{name} is no text")
    return value


def int_field(message: dict[str, Any], name: str, default: int = 0) -> int:
    """A 64-bit member: text in proto-JSON, and a number is taken too."""
    value = field(message, name, default)
    try:
        number = int(value) if isinstance(value, str | int) and not isinstance(value, bool) else -1
    except ValueError:
        number = -1
    if not 0 <= number < 1 << 63:
        raise Refusal("invalid_argument", f"{name} is no whole number")
    return number


async def send_bytes(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """A whole answer."""
    given = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": given})
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, value: object, status: int = 200) -> None:
    """An answer as JSON; without the content type the clients take it for none (runner-v2 19, trap 27)."""
    await send_bytes(send, status, msgspec.json.encode(value), [(b"content-type", b"application/json")])


async def send_refusal(send: Send, refusal: Refusal) -> None:
    """An error in the form of every protocol served here."""
    body = {"code": refusal.code, "msg": refusal.message, "message": refusal.message}
    headers = [(b"content-type", b"application/json")]
    if refusal.status == 401:
        headers.append((b"www-authenticate", b'Basic realm="runyard"'))
    await send_bytes(send, refusal.status, msgspec.json.encode(body), headers)


async def send_file(request: Request, send: Send, path: str, headers: list[tuple[bytes, bytes]]) -> None:
    """A file's bytes, or the one range that was asked for; memory stays flat.

    Where the server has the ASGI extension `http.response.zerocopysend` the kernel moves them.
    """
    try:
        file = open(path, "rb", buffering=0)  # noqa: ASYNC230, SIM115 - closed below; local, and nothing to wait for
    except FileNotFoundError as error:
        raise Refusal("not_found", "it was removed") from error
    try:
        size = os.fstat(file.fileno()).st_size
        start, end = _range(request.headers.get("range", ""), size)
        whole = (start, end) == (0, size)
        given = [*headers, (b"content-length", str(end - start).encode()), (b"accept-ranges", b"bytes")]
        if not whole:
            given.append((b"content-range", f"bytes {start}-{end - 1}/{size}".encode()))
        await send({"type": "http.response.start", "status": 200 if whole else 206, "headers": given})
        unread = request.method == "HEAD"
        if not unread and ZERO_COPY in request.scope.get("extensions", {}):
            while start < end:
                count = min(_ZERO_COPY_CHUNK, end - start)
                await send({"type": ZERO_COPY, "file": file, "offset": start, "count": count, "more_body": True})
                start += count
        while not unread and start < end:
            data = await asyncio.to_thread(os.pread, file.fileno(), min(_CHUNK, end - start), start)
            if not data:
                break
            start += len(data)
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        file.close()


def _range(header: str, size: int) -> tuple[int, int]:
    """First byte and end of a single range; the whole for none or one that makes no sense (RFC 9110 14.2)."""
    unit, _, spec = header.partition("=")
    first, dash, last = spec.partition("-")
    if unit.strip() != "bytes" or not dash or "," in spec or not first.strip().isdigit():
        return 0, size
    start = int(first)
    end = min(int(last) + 1, size) if last.strip().isdigit() else size
    return (start, end) if start < end else (0, size)


def segments(path: str) -> list[str]:
    """The parts of a path, decoded."""
    return [unquote(part) for part in path.strip("/").split("/")]
