"""A session's network, whatever its level: what the job is given, what it reaches, what is told."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from runyard.job import InputError, MachineError
from runyard.sandbox.contract import Identity, Session, Shape, StepCommand, TakeConnection
from runyard.sandbox.network.refusals import RefusedDestination
from runyard.sandbox.network.session import JobNetwork, open_network

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

pytestmark = pytest.mark.timeout(60)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with anyio.fail_after(20):
            await test()

    anyio.run(bounded)


async def nobody_listens(_port: int, _take: TakeConnection) -> int:
    raise AssertionError("nothing has to listen for this level")


def test_without_a_network_there_is_nothing_to_open_and_nothing_to_say() -> None:
    async def test() -> None:
        network = await open_network("none", net=-1, listen=nobody_listens)
        assert network.environment == {}
        assert await network.refused() == ()
        await network.close()

    run(test)


def test_public_needs_a_namespace_of_its_own() -> None:
    async def test() -> None:
        with pytest.raises(MachineError, match="no network namespace"):
            await open_network("public", net=-1, listen=nobody_listens)

    run(test)


def test_a_wrong_override_stops_the_job_before_it_has_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNYARD_EGRESS_ALLOW", "everything")

    async def test() -> None:
        with pytest.raises(InputError, match="RUNYARD_EGRESS_ALLOW"):
            await open_network("proxy", net=-1, listen=nobody_listens)

    run(test)


def test_each_refused_destination_is_told_once_however_often_it_is_counted() -> None:
    class Counting:
        """A packet filter whose counters grow."""

        asked = 0
        closed = 0

        async def refused(self) -> tuple[RefusedDestination, ...]:
            self.asked += 1
            return (RefusedDestination("10.0.0.1:80", "private", self.asked),)

        async def close(self) -> None:
            self.closed += 1

    async def test() -> None:
        heard: list[tuple[str, str]] = []
        counting = Counting()
        network = JobNetwork("public", filtered_by=counting)
        await network.refused()
        network.on_refused = lambda destination, because: heard.append((destination, because))
        assert (await network.refused())[0].count == 2
        await network.refused()
        await network.close()
        assert heard == [("10.0.0.1:80", "private")]
        assert counting.closed == 1

    run(test)


@asynccontextmanager
async def served(word: bytes) -> AsyncIterator[int]:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(word) + word)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def opened(state: Path) -> AsyncIterator[Session]:
    """A bubblewrap session at the level `proxy`, adopted."""
    from runyard.sandbox.bubblewrap import BubblewrapSandbox

    try:
        session = await BubblewrapSandbox(str(state)).prepare(Shape(network="proxy"))
    except MachineError as err:
        pytest.skip(f"bubblewrap does not open here: {err}")
    try:
        await session.adopt(Identity(job_key="network-test"))
        yield session
    finally:
        with anyio.move_on_after(10, shield=True):
            await session.close()


ASK = """
import os, urllib.request, urllib.error
for url in os.environ["URLS"].split():
    try:
        print(urllib.request.urlopen(url, timeout=8).read().decode().strip())
    except urllib.error.HTTPError as err:
        print(err.code, err.read().decode().strip())
"""


def test_a_job_reaches_through_its_proxy_what_is_allowed_and_the_rest_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with served(b"allowed") as port, served(b"denied") as other:
            monkeypatch.setenv("RUNYARD_EGRESS_ALLOW", f"127.0.0.1:{port}")
            async with opened(tmp_path) as session:
                urls = f"http://127.0.0.1:{port}/ http://127.0.0.9:{other}/"
                # Loopback is the sandbox's own unless asked otherwise; here it stands for the outside.
                env = {**session.environment, "URLS": urls, "no_proxy": ""}
                heard: list[tuple[str, str]] = []
                network = session.network
                assert isinstance(network, JobNetwork)
                network.on_refused = lambda destination, because: heard.append((destination, because))
                if not Path("/usr/bin/python3").exists():
                    pytest.skip("no python3 in the image 'host'")
                running = await session.start(StepCommand(argv=("/usr/bin/python3", "-c", ASK), env=env))
                said = b""
                while piece := await running.read():
                    said += piece
                assert said.decode().splitlines() == [
                    "allowed",
                    (
                        f"403 runyard: the sandbox's network policy refuses 127.0.0.9:{other}:"
                        " 127.0.0.9 is in 127.0.0.0/8, loopback"
                    ),
                ]
                assert heard == [(f"127.0.0.9:{other}", "127.0.0.9 is in 127.0.0.0/8, loopback")]
                assert [each.count for each in await network.refused()] == [1]

    run(test)


def test_the_proxy_ends_with_the_session(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as session:
            assert session.environment["http_proxy"].startswith("http://127.0.0.1:")
        port = int(session.environment["http_proxy"].rpartition(":")[2])
        with socket.socket() as left:
            left.settimeout(2)
            assert left.connect_ex(("127.0.0.1", port)) != 0

    run(test)
