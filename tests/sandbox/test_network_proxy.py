"""The job's proxy, with real sockets on loopback: what passes, what is refused, and that nothing waits for ever."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias

import anyio
import pytest

from runyard.sandbox.network.policy import Address, Egress, Permission, Surroundings
from runyard.sandbox.network.proxy import Deadlines, Proxy, proxy_environment
from runyard.sandbox.network.refusals import OTHERS, REMEMBERED, RefusedDestination

pytestmark = pytest.mark.timeout(30)

Handler: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
QUICK = Deadlines(idle_s=5, head_s=5, lookup_s=5, connect_s=5, answer_s=5, body_s=5, tunnel_s=5)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with anyio.fail_after(15):
            await test()

    anyio.run(bounded)


@asynccontextmanager
async def origin(handler: Handler) -> AsyncIterator[int]:
    async def quiet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await handler(reader, writer)
        writer.close()

    server = await asyncio.start_server(quiet, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def through(proxy: Proxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client whose connection was accepted and handed to the proxy, as a session's `listen` does."""
    ours, theirs = socket.socketpair()
    async with anyio.create_task_group() as group:
        group.start_soon(proxy.serve, theirs)
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            yield reader, writer
        finally:
            writer.close()
            group.cancel_scope.cancel()


def allowing(*ports: int, **more: object) -> Proxy:
    egress = Egress(allowed=(Permission(ipaddress.ip_network("127.0.0.1/32"), ports),))
    return Proxy(egress, deadlines=QUICK, observe=Surroundings, **more)  # type: ignore[arg-type]  # test shorthand


def naming(*addresses: str) -> Callable[[str, int], Awaitable[tuple[Address, ...]]]:
    async def resolve(_host: str, _port: int) -> tuple[Address, ...]:
        return tuple(ipaddress.ip_address(address) for address in addresses)

    return resolve


async def read_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-le")), 0
    )
    return head, await reader.readexactly(length)


def test_connect_opens_a_tunnel_in_both_directions_and_passes_a_half_close_on() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"got " + await reader.read())
        await writer.drain()

    async def test() -> None:
        async with origin(handler) as port, through(allowing(port)) as (reader, writer):
            writer.write(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: x\r\n\r\nearly " % port)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            writer.write(b"late")
            writer.write_eof()
            assert await reader.read() == b"got early late"

    run(test)


def test_several_requests_share_a_connection_each_judged_and_the_origins_connection_is_kept() -> None:
    connections = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            body = head.split(b" ")[1] + b" " + next(l for l in head.split(b"\r\n") if l.startswith(b"Host"))  # noqa: E741
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    async def test() -> None:
        proxy = allowing()
        async with origin(handler) as port:
            proxy = allowing(port)
            async with through(proxy) as (reader, writer):
                for path in (b"one", b"two"):
                    writer.write(b"GET http://127.0.0.1:%d/%s HTTP/1.1\r\nHost: lie.test\r\n\r\n" % (port, path))
                    head, body = await read_answer(reader)
                    assert head.startswith(b"HTTP/1.1 200 OK")
                    assert body == b"/%s Host: 127.0.0.1:%d" % (path, port)
                writer.write(b"GET http://10.1.2.3/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                head, body = await read_answer(reader)
                assert head.startswith(b"HTTP/1.1 403 Forbidden")
                assert b"error=destination_ip_prohibited" in head
                assert body.startswith(b"runyard: the sandbox's network policy refuses 10.1.2.3:80: ")
                assert body.endswith(b": 10.1.2.3 is in 10.0.0.0/8, a private network\n")
                assert await reader.read() == b""
        assert connections == 1

    run(test)


def test_chunked_bodies_pass_both_ways_and_100_continue_arrives_before_the_body() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        got = await reader.readuntil(b"0\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + got)
        await reader.read()

    async def test() -> None:
        async with origin(handler) as port, through(allowing(port)) as (reader, writer):
            writer.write(
                b"POST http://127.0.0.1:%d/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
                % port
            )
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"5\r\nhello\r\n0\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"Transfer-Encoding: chunked" in head
            assert await reader.readuntil(b"0\r\n\r\n") == b"5\r\nhello\r\n0\r\n\r\n"

    run(test)


def test_an_answer_before_the_bodys_end_is_passed_on_and_ends_the_connection() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        await reader.read()

    async def test() -> None:
        async with origin(handler) as port, through(allowing(port)) as (reader, writer):
            writer.write(b"PUT http://127.0.0.1:%d/ HTTP/1.1\r\nContent-Length: 999999\r\n\r\nfirst" % port)
            head, body = await read_answer(reader)
            assert head.startswith(b"HTTP/1.1 413 No")
            assert body == b"no"
            assert await reader.read() == b""

    run(test)


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 200_000)
        await writer.drain()

    async def test() -> None:
        async with origin(handler) as port, through(allowing(port)) as (reader, writer):
            writer.write(b"GET http://127.0.0.1:%d/ HTTP/1.1\r\n\r\n" % port)
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"Connection: close" in head
            assert await reader.read() == b"x" * 200_000

    run(test)


def test_a_stale_connection_of_the_origin_is_replaced_without_the_client_noticing() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()

    async def test() -> None:
        async with origin(handler) as port, through(allowing(port)) as (reader, writer):
            for _ in range(3):
                writer.write(b"GET http://127.0.0.1:%d/ HTTP/1.1\r\n\r\n" % port)
                assert (await read_answer(reader))[1] == b"ok"

    run(test)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"CONNECT host.test HTTP/1.1\r\n\r\n", b"400"),
        (b"GET https://a.test/ HTTP/1.1\r\n\r\n", b"400"),
        (b"POST http://127.0.0.1/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", b"400"),
        (b"GET http://a.test/ HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", b"431"),
        (b"GET http://a.test/ HTTP/3.1\r\n\r\n", b"505"),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"400"),
    ],
)
def test_what_is_no_proxy_request_is_answered_with_its_status(raw: bytes, status: bytes) -> None:
    async def test() -> None:
        async with through(allowing(1)) as (reader, writer):
            writer.write(raw)
            head, body = await read_answer(reader)
            assert head.split(b" ")[1] == status
            assert body.startswith(b"runyard: ")

    run(test)


@pytest.mark.parametrize(
    "target",
    [
        "10.0.0.1:443",
        "[::1]:443",
        "[::ffff:127.0.0.1]:443",
        "169.254.169.254:80",
        "127.1:80",
        "2130706433:80",
        "0x7f000001:80",
        "localhost:80",
        "198.51.100.7:22",
        "[fe80::1%lo]:443",
        "0:80",
    ],
)
def test_a_denied_destination_is_refused_whatever_it_is_called(target: str) -> None:
    heard: list[tuple[str, str]] = []

    async def test() -> None:
        proxy = Proxy(deadlines=QUICK, on_refused=lambda destination, because: heard.append((destination, because)))
        for _ in range(2):
            async with through(proxy) as (reader, writer):
                writer.write(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
                head, _ = await read_answer(reader)
                assert head.startswith(b"HTTP/1.1 403 ")
        assert [(entry.destination, entry.count) for entry in proxy.refused()] == [(target, 2)]

    run(test)
    assert [destination for destination, _ in heard] == [target]


def test_a_name_is_resolved_once_and_the_judged_address_is_the_one_connected_to() -> None:
    """A resolver that changes its answer between judging and connecting changes nothing."""
    answers = ["127.0.0.1", "10.0.0.1", "10.0.0.2"]

    async def resolve(_host: str, _port: int) -> tuple[Address, ...]:
        return (ipaddress.ip_address(answers.pop(0)),)

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await writer.drain()

    async def test() -> None:
        async with origin(handler) as port:
            proxy = allowing(port, resolve=resolve)
            async with through(proxy) as (reader, writer):
                writer.write(b"CONNECT name.test:%d HTTP/1.1\r\n\r\n" % port)
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
                assert await reader.read() == b"hello"
            assert answers == ["10.0.0.1", "10.0.0.2"]
            async with through(proxy) as (reader, writer):
                writer.write(b"CONNECT name.test:%d HTTP/1.1\r\n\r\n" % port)
                assert (await read_answer(reader))[0].startswith(b"HTTP/1.1 403 ")

    run(test)


def test_of_several_addresses_only_an_allowed_one_is_tried() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await writer.drain()

    async def test() -> None:
        async with origin(handler) as port:
            proxy = allowing(port, resolve=naming("10.0.0.1", "::1", "127.0.0.1"))
            async with through(proxy) as (reader, writer):
                writer.write(b"CONNECT name.test:%d HTTP/1.1\r\n\r\n" % port)
                await reader.readuntil(b"\r\n\r\n")
                assert await reader.read() == b"hello"

    run(test)


def test_a_public_address_of_this_machine_is_refused() -> None:
    async def test() -> None:
        around = Surroundings(addresses=(ipaddress.ip_address("198.51.100.7"),))
        proxy = Proxy(deadlines=QUICK, observe=lambda: around)
        async with through(proxy) as (reader, writer):
            writer.write(b"GET http://198.51.100.7/ HTTP/1.1\r\n\r\n")
            head, body = await read_answer(reader)
            assert head.startswith(b"HTTP/1.1 403 ")
            assert b"this machine" in body

    run(test)


def test_nothing_passes_while_this_machine_can_not_tell_its_addresses() -> None:
    def fails() -> Surroundings:
        raise OSError(1, "not permitted")

    async def test() -> None:
        async with through(Proxy(deadlines=QUICK, observe=fails)) as (reader, writer):
            writer.write(b"GET http://198.51.100.7/ HTTP/1.1\r\n\r\n")
            assert (await read_answer(reader))[0].startswith(b"HTTP/1.1 503 ")

    run(test)


def test_a_name_without_an_address_and_a_port_without_a_server_are_bad_gateways() -> None:
    async def nothing(_host: str, _port: int) -> tuple[Address, ...]:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    async def test() -> None:
        async with through(allowing(1, resolve=nothing)) as (reader, writer):
            writer.write(b"GET http://name.test/ HTTP/1.1\r\n\r\n")
            head, body = await read_answer(reader)
            assert head.startswith(b"HTTP/1.1 502 ")
            assert b"name.test" in body
        async with through(allowing(1)) as (reader, writer):
            writer.write(b"GET http://127.0.0.1:1/ HTTP/1.1\r\n\r\n")
            assert (await read_answer(reader))[0].startswith(b"HTTP/1.1 502 ")

    run(test)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 2xx no\r\n\r\n", b"SSH-2.0\r\n\r\n", b"x" * 70_000])
def test_an_origin_that_does_not_speak_http_is_a_bad_gateway(answer: bytes) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    async def test() -> None:
        async with origin(handler) as port, through(allowing(port)) as (reader, writer):
            writer.write(b"GET http://127.0.0.1:%d/ HTTP/1.1\r\n\r\n" % port)
            assert (await read_answer(reader))[0].startswith(b"HTTP/1.1 502 ")

    run(test)


def test_a_client_that_sends_half_a_head_and_an_origin_that_never_answers_are_given_up() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def test() -> None:
        short = Deadlines(idle_s=0.1, head_s=0.1, answer_s=0.1, tunnel_s=0.1)
        async with origin(handler) as port:
            egress = Egress(allowed=(Permission(ipaddress.ip_network("127.0.0.1/32"), (port,)),))
            proxy = Proxy(egress, deadlines=short, observe=Surroundings)
            async with through(proxy) as (reader, writer):
                assert await reader.read() == b""
            async with through(proxy) as (reader, writer):
                writer.write(b"GET http://127")
                assert await reader.read() == b""
            async with through(proxy) as (reader, writer):
                writer.write(b"GET http://127.0.0.1:%d/ HTTP/1.1\r\n\r\n" % port)
                assert (await read_answer(reader))[0].startswith(b"HTTP/1.1 504 ")
            async with through(proxy) as (reader, writer):
                writer.write(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)
                await reader.readuntil(b"\r\n\r\n")
                assert await reader.read() == b""

    run(test)


def test_connections_beyond_the_bound_are_answered_and_closed() -> None:
    async def test() -> None:
        proxy = allowing(1, limit=1)
        async with through(proxy) as (_, first):
            first.write(b"G")
            async with through(proxy) as (reader, _):
                assert (await read_answer(reader))[0].startswith(b"HTTP/1.1 503 ")
        async with through(proxy) as (reader, writer):
            writer.write(b"G / HTTP/1.1\r\n\r\n")
            assert (await read_answer(reader))[0].startswith(b"HTTP/1.1 400 ")

    run(test)


def test_refusals_are_bounded_whatever_a_job_tries() -> None:
    async def test() -> None:
        heard: list[str] = []
        proxy = Proxy(
            deadlines=QUICK, observe=Surroundings, on_refused=lambda destination, _: heard.append(destination)
        )
        for number in range(REMEMBERED + 5):
            async with through(proxy) as (reader, writer):
                writer.write(f"CONNECT 10.0.{number // 256}.{number % 256}:80 HTTP/1.1\r\n\r\n".encode())
                await read_answer(reader)
        assert len(heard) == REMEMBERED + 1
        assert proxy.refused()[-1] == RefusedDestination(OTHERS, f"more than {REMEMBERED} destinations were refused", 5)

    run(test)


def test_the_variables_of_the_job_name_the_proxy_in_both_cases_of_letters() -> None:
    variables = proxy_environment(3128, direct=("db",))
    assert variables["http_proxy"] == variables["HTTPS_PROXY"] == "http://127.0.0.1:3128"
    assert variables["NO_PROXY"] == variables["no_proxy"] == "localhost,127.0.0.1,::1,db"
    assert variables["NODE_USE_ENV_PROXY"] == "1"
