"""Just enough HTTP/1.1 for a proxy: heads, hop-by-hop fields and where a body ends (RFC 9110, RFC 9112).

Pure: bytes in, values out. It is strict where two readers could disagree about a message's end, because the next
request on the connection may go to another host, and lenient nowhere else than it must be.
"""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

import msgspec

_TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")
_VERSION: Final = re.compile(rb"HTTP/1\.[0-9]\Z")
_HOP_BY_HOP: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"upgrade",
    )
)
_SIZE_LINE_LIMIT: Final = 4096
_TRAILER_LIMIT: Final = 16384

Fields: TypeAlias = tuple[tuple[bytes, bytes], ...]


class NotHttp(Exception):  # noqa: N818 - it is an answer to a peer, with the status to give
    """A message that can't be taken: `status` and `text` are what the client is told."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class RequestHead(msgspec.Struct, frozen=True):
    """A request line and its fields."""

    method: bytes
    target: bytes
    version: bytes
    fields: Fields


class ResponseHead(msgspec.Struct, frozen=True):
    """A status line and its fields."""

    status: int
    reason: bytes
    version: bytes
    fields: Fields


class Body(msgspec.Struct, frozen=True):
    """How a body ends: not there at all, after `length` bytes, with its last chunk, or with the connection."""

    kind: Literal["none", "length", "chunked", "until_close"]
    length: int = 0


def parse_request_head(raw: bytes) -> RequestHead:
    """The head up to and without its empty line. Raises NotHttp."""
    line, fields = _split(raw)
    parts = line.split(b" ")
    if len(parts) != 3 or not _TOKEN.match(parts[0]) or not parts[1] or not parts[1].isascii():
        raise NotHttp(400, "the request line can't be read")
    if not _VERSION.match(parts[2]):
        raise NotHttp(505, "only HTTP/1.0 and HTTP/1.1 are spoken here")
    return RequestHead(parts[0], parts[1], parts[2], fields)


def parse_response_head(raw: bytes) -> ResponseHead:
    """The head up to and without its empty line. Raises NotHttp with status 502."""
    try:
        line, fields = _split(raw)
    except NotHttp as err:
        raise NotHttp(502, f"the server's answer can't be read: {err.text}") from err
    version, _, rest = line.partition(b" ")
    status, _, reason = rest.partition(b" ")
    if not _VERSION.match(version) or not (len(status) == 3 and status.isdigit()) or status < b"100":
        raise NotHttp(502, "the server's answer can't be read")
    return ResponseHead(int(status), reason, version, fields)


def _split(raw: bytes) -> tuple[bytes, Fields]:
    line, *rest = raw.split(b"\r\n")
    if b"\r" in line or b"\n" in line or b"\0" in line:
        raise NotHttp(400, "a line has a stray control character")
    fields = []
    for each in rest:
        name, colon, value = each.partition(b":")
        if not colon or not _TOKEN.match(name):
            raise NotHttp(400, "a header field can't be read")
        if b"\r" in value or b"\n" in value or b"\0" in value:
            raise NotHttp(400, "a header field has a stray control character")
        fields.append((name, value.strip(b" \t")))
    return line, tuple(fields)


def values(fields: Fields, name: bytes) -> list[bytes]:
    """All values of a field, in order; `name` in lower case."""
    return [value for key, value in fields if key.lower() == name]


def _words(fields: Fields, name: bytes) -> list[bytes]:
    return [word.strip(b" \t").lower() for value in values(fields, name) for word in value.split(b",") if word.strip()]


def request_body(head: RequestHead) -> Body:
    """How the request's body ends (RFC 9112 6.3). Raises NotHttp where that is ambiguous."""
    return _framed(head.fields, head.version) or Body("none")


def response_body(head: ResponseHead, method: bytes) -> Body:
    """How the answer's body ends, given the method that was asked. Raises NotHttp (502) where that is ambiguous."""
    if method == b"HEAD" or head.status < 200 or head.status in {204, 304}:
        return Body("none")
    try:
        return _framed(head.fields, head.version) or Body("until_close")
    except NotHttp as err:
        raise NotHttp(502, f"the server's answer can't be read: {err.text}") from err


def _framed(fields: Fields, version: bytes) -> Body | None:
    codings = _words(fields, b"transfer-encoding")
    lengths = set(_words(fields, b"content-length"))
    if codings:
        if lengths:
            raise NotHttp(400, "a body has both a length and a transfer coding")
        if codings != [b"chunked"] or version == b"HTTP/1.0":
            raise NotHttp(501, "chunked is the only transfer coding spoken here")
        return Body("chunked")
    if not lengths:
        return None
    length = lengths.pop()
    if lengths or not length.isdigit() or len(length) > 18:
        raise NotHttp(400, "a body's length can't be read")
    return Body("length", int(length)) if int(length) else Body("none")


def keeps_alive(fields: Fields, version: bytes, *, to_proxy: bool = False) -> bool:
    """Whether the connection stays open after this message, as its sender says."""
    said = _words(fields, b"connection") + (_words(fields, b"proxy-connection") if to_proxy else [])
    if b"close" in said:
        return False
    return version != b"HTTP/1.0" or b"keep-alive" in said


def end_to_end(fields: Fields) -> Fields:
    """The fields without those that are about one connection only (RFC 9110 7.6.1).

    `Transfer-Encoding` stays, because bodies are passed on in the framing they came in.
    """
    named = _HOP_BY_HOP.union(_words(fields, b"connection")) - {b"content-length", b"transfer-encoding", b"host"}
    return tuple((name, value) for name, value in fields if name.lower() not in named)


def render_request(head: RequestHead, target: bytes, authority: bytes) -> bytes:
    """The head for the origin server: its own form of target and host, without hop-by-hop fields."""
    kept = [(name, value) for name, value in end_to_end(head.fields) if name.lower() != b"host"]
    lines = [b" ".join((head.method, target, head.version)), b"Host: " + authority]
    lines += [name + b": " + value for name, value in kept]
    lines += [b"Via: " + head.version[5:] + b" runyard", b"Connection: keep-alive", b"", b""]
    return b"\r\n".join(lines)


def render_response(head: ResponseHead, *, keep_alive: bool) -> bytes:
    """The head for the client."""
    lines = [b" ".join((b"HTTP/1.1", b"%d" % head.status, head.reason))]
    lines += [name + b": " + value for name, value in end_to_end(head.fields)]
    if head.status >= 200:
        lines += [b"Via: " + head.version[5:] + b" runyard"]
        lines += [b"Connection: keep-alive" if keep_alive else b"Connection: close"]
    return b"\r\n".join((*lines, b"", b""))


def split_target(target: bytes) -> tuple[str, bytes, bytes]:
    """An absolute-form target as scheme, authority and what follows (RFC 9112 3.2.2). Raises NotHttp."""
    scheme, separator, rest = target.partition(b"://")
    if not separator or not scheme.isalpha():
        raise NotHttp(400, "this is the job's proxy; it takes CONNECT and absolute http:// addresses")
    cut = min((at for at in (rest.find(mark) for mark in (b"/", b"?", b"#")) if at >= 0), default=len(rest))
    authority, after = rest[:cut], rest[cut:].partition(b"#")[0]
    if b"@" in authority:
        raise NotHttp(400, "an address with a user name or password is not taken")
    if after.startswith(b"?"):
        after = b"/" + after
    return scheme.decode().lower(), authority, after


class Chunks:
    """Where a chunked body ends, fed piece by piece; the bytes themselves are passed on unchanged."""

    def __init__(self) -> None:
        self.done = False
        self._line = bytearray()
        self._left = 0
        self._state: Literal["size", "data", "end", "trailer"] = "size"
        self._trailer = 0

    def feed(self, data: bytes | bytearray | memoryview) -> int:
        """How many of these bytes belong to the body. Raises NotHttp when it is malformed."""
        view, at = bytes(data), 0
        while at < len(view) and not self.done:
            if self._state == "data":
                took = min(self._left, len(view) - at)
                self._left -= took
                at += took
                if not self._left:
                    self._state = "end"
                continue
            cut = view.find(b"\n", at)
            upto = len(view) if cut < 0 else cut + 1
            self._line += view[at:upto]
            at = upto
            if len(self._line) > _SIZE_LINE_LIMIT:
                raise NotHttp(400, "a chunked body has an endless line")
            if cut >= 0:
                self._take_line()
        return at

    def _take_line(self) -> None:
        line = bytes(self._line)
        self._line.clear()
        if not line.endswith(b"\r\n"):
            raise NotHttp(400, "a chunked body has a stray line end")
        line = line[:-2]
        if self._state == "size":
            size = line.partition(b";")[0].strip(b" \t")
            if not re.fullmatch(rb"[0-9A-Fa-f]{1,15}", size):
                raise NotHttp(400, "a chunk's size can't be read")
            self._left = int(size, 16)
            self._state = "data" if self._left else "trailer"
        elif self._state == "end":
            if line:
                raise NotHttp(400, "a chunk is longer than it says")
            self._state = "size"
        elif not line:
            self.done = True
        else:
            self._trailer += len(line) + 2
            if self._trailer > _TRAILER_LIMIT:
                raise NotHttp(400, "the trailer is too long")
