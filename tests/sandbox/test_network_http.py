"""Where messages begin and end: the next request may be for another host, so nothing about it may be ambiguous."""

from __future__ import annotations

import itertools
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runyard.sandbox.network import http1
from runyard.sandbox.network.http1 import Body, Chunks, NotHttp


def request(*lines: bytes) -> http1.RequestHead:
    return http1.parse_request_head(b"\r\n".join(lines))


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ((b"GET /",), 400),
        ((b"GET  / HTTP/1.1",), 400),
        ((b"G(T / HTTP/1.1",), 400),
        ((b"GET / HTTP/2.0",), 505),
        ((b"GET / HTTP/1.1", b"Name : value"), 400),
        ((b"GET / HTTP/1.1", b" folded"), 400),
        ((b"GET / HTTP/1.1", b"A: b\nC: d"), 400),
        ((b"GET / HTTP/1.1", b"A: b\rC: d"), 400),
        ((b"GET / HTTP/1.1", b"A: b\0"), 400),
        ((b"GET /\xc3\xa4 HTTP/1.1",), 400),
    ],
)
def test_a_head_that_two_readers_could_read_differently_is_refused(lines: tuple[bytes, ...], status: int) -> None:
    with pytest.raises(NotHttp) as caught:
        request(*lines)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ([], Body("none")),
        ([b"Content-Length: 0"], Body("none")),
        ([b"Content-Length: 12"], Body("length", 12)),
        ([b"Content-Length: 12, 12"], Body("length", 12)),
        ([b"Transfer-Encoding: chunked"], Body("chunked")),
        ([b"Transfer-Encoding: Chunked"], Body("chunked")),
    ],
)
def test_a_requests_body_ends_as_its_fields_say(fields: list[bytes], body: Body) -> None:
    assert http1.request_body(request(b"POST / HTTP/1.1", *fields)) == body


@pytest.mark.parametrize(
    "fields",
    [
        [b"Content-Length: 1", b"Transfer-Encoding: chunked"],
        [b"Content-Length: 1", b"Content-Length: 2"],
        [b"Content-Length: +1"],
        [b"Content-Length: 0x1"],
        [b"Content-Length: -1"],
        [b"Transfer-Encoding: gzip, chunked"],
        [b"Transfer-Encoding: chunked, chunked"],
        [b"Transfer-Encoding: identity"],
    ],
)
def test_an_ambiguous_length_is_refused(fields: list[bytes]) -> None:
    with pytest.raises(NotHttp):
        http1.request_body(request(b"POST / HTTP/1.1", *fields))
    head = http1.parse_response_head(b"\r\n".join([b"HTTP/1.1 200 OK", *fields]))
    with pytest.raises(NotHttp) as caught:
        http1.response_body(head, b"GET")
    assert caught.value.status == 502


@pytest.mark.parametrize(
    ("status", "method", "kind"),
    [
        (200, b"GET", "until_close"),
        (200, b"HEAD", "none"),
        (204, b"GET", "none"),
        (304, b"GET", "none"),
        (100, b"POST", "none"),
    ],
)
def test_an_answers_body_depends_on_status_and_method(status: int, method: bytes, kind: str) -> None:
    head = http1.parse_response_head(b"HTTP/1.1 %d Word" % status)
    assert http1.response_body(head, method).kind == kind


def test_hop_by_hop_fields_and_what_connection_names_stay_on_their_hop() -> None:
    head = request(
        b"GET http://a.test/ HTTP/1.1",
        b"Host: other.test",
        b"Connection: close, X-Hop, Content-Length",
        b"X-Hop: 1",
        b"Proxy-Authorization: Basic abc",
        b"TE: trailers",
        b"Upgrade: h2c",
        b"Keep-Alive: 5",
        b"Accept: */*",
        b"Content-Length: 3",
    )
    rendered = http1.render_request(head, b"/", b"a.test").decode().split("\r\n")
    assert rendered[0] == "GET / HTTP/1.1"
    assert rendered[1:] == [
        "Host: a.test",
        "Accept: */*",
        "Content-Length: 3",
        "Via: 1.1 runyard",
        "Connection: keep-alive",
        "",
        "",
    ]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (b"http://a.test/x?y", ("http", b"a.test", b"/x?y")),
        (b"HTTP://a.test", ("http", b"a.test", b"")),
        (b"http://a.test?y", ("http", b"a.test", b"/?y")),
        (b"http://[::1]:80/x#frag", ("http", b"[::1]:80", b"/x")),
    ],
)
def test_an_absolute_target_is_split(target: bytes, expected: tuple[str, bytes, bytes]) -> None:
    assert http1.split_target(target) == expected


@pytest.mark.parametrize("target", [b"/", b"*", b"a.test:80", b"http://user:word@a.test/"])
def test_any_other_target_is_refused(target: bytes) -> None:
    with pytest.raises(NotHttp):
        http1.split_target(target)


BODY = b"4;ext=1\r\nWiki\r\n6\r\npedia \r\n0\r\nDigest: x\r\n\r\n"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, len(BODY)), max_size=8))
def test_a_chunked_body_ends_at_the_same_byte_however_it_is_cut(cuts: list[int]) -> None:
    data = BODY + b"GET next"
    edges = [0, *sorted(set(cuts)), len(data)]
    chunks, used = Chunks(), 0
    for start, end in itertools.pairwise(edges):
        used += chunks.feed(data[start:end])
    assert chunks.done
    assert used == len(BODY)


@pytest.mark.parametrize(
    "body", [b"x\r\n", b"\r\n", b"-1\r\n", b"4\nWiki", b"4\r\nWikiX\r\n", b"1" * 5000, b"0\r\n" + b"a: b\r\n" * 4000]
)
def test_a_malformed_chunked_body_is_refused(body: bytes) -> None:
    chunks = Chunks()
    with pytest.raises(NotHttp):
        chunks.feed(body)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_break_the_readers(data: bytes) -> None:
    for read in (http1.parse_request_head, http1.parse_response_head, http1.split_target, Chunks().feed):
        with suppress(NotHttp):
            read(data)
