"""The way to an engine: connections that are kept, answers that come early, others that never come."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from runyard.engine.process import warm_for_engine
from runyard.job import MachineError
from runyard.sandbox import docker_now, records
from runyard.sandbox.docker import KNOWN_S, DockerSandbox, Known
from runyard.sandbox.docker_api import EngineApi
from runyard.sandbox.docker_ask import EngineError, EngineGoneError, NoSuchObjectError
from runyard.sandbox.docker_http import Broken, HttpDoor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

SECONDS = 15.0
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Engine:
    """Listens at a path; `talks` has what each connection in turn is treated to; all further ones get OK."""

    def __init__(self, folder: Path, *talks: Talk) -> None:
        self.path = str(folder / "engine.sock")
        self.connections = 0
        self.heads: list[bytes] = []
        self._talks = (*talks, self.always_ok)

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        async def all_of_it() -> None:
            server = await asyncio.start_unix_server(self._talk, self.path)
            async with asyncio.timeout(SECONDS):
                await work()
            server.close()

        asyncio.run(all_of_it())

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._talks[min(self.connections, len(self._talks)) - 1](reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def head(self, reader: asyncio.StreamReader) -> bytes:
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        return self.heads[-1]

    async def always_ok(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await self.head(reader)
            writer.write(OK)


async def said(door: HttpDoor, method: str = "GET", body: AsyncIterator[bytes] | bytes | None = None) -> bytes:
    async with door.call(method, "/x", {}, body) as answer:
        return await answer.read()


def test_one_connection_serves_calls_in_turn_and_several_serve_calls_at_a_time(tmp_path: Path) -> None:
    engine = Engine(tmp_path)

    async def work() -> None:
        door = HttpDoor(engine.path)
        for method in ("GET", "POST", "DELETE"):
            assert await said(door, method, b"" if method == "POST" else None) == b"ok"
        assert engine.connections == 1
        assert b"content-length: 0" in engine.heads[1].lower()
        assert await asyncio.gather(*(said(door) for _ in range(5))) == [b"ok"] * 5
        assert engine.connections == 5
        door.close()

    engine.run(work)


def test_a_kept_connection_that_ended_is_not_used_and_nothing_with_an_effect_is_sent_twice(tmp_path: Path) -> None:
    async def one_then_deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.head(reader)
        writer.write(OK)
        await engine.head(reader)  # the next call is heard, and has no answer

    engine = Engine(tmp_path, one_then_deaf, one_then_deaf)

    async def work() -> None:
        door = HttpDoor(engine.path)
        await said(door)
        assert await said(door) == b"ok"
        assert (len(engine.heads), engine.connections) == (3, 2)
        with pytest.raises(Broken):
            await said(door, "POST", b"{}")
        assert (len(engine.heads), engine.connections) == (4, 2)
        assert await said(door, "POST", b"{}") == b"ok"
        door.close()

    engine.run(work)


def test_a_refusal_is_heard_though_nobody_reads_the_body(tmp_path: Path) -> None:
    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.head(reader)
        writer.write(b'HTTP/1.1 404 Not Found\r\nContent-Length: 16\r\n\r\n{"message":"no"}')
        await writer.drain()
        await over.wait()

    engine = Engine(tmp_path, refuses)
    over = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1 << 20)

    async def work() -> None:
        api = EngineApi(engine.path)
        with pytest.raises(NoSuchObjectError, match="no"):
            await api.put_archive("box", "/a b", endless())
        assert b"PUT /v1.41/containers/box/archive?path=%2Fa%20b&" in engine.heads[0]
        over.set()
        await api.close()

    engine.run(work)


def test_an_answer_may_begin_before_the_body_has_ended(tmp_path: Path) -> None:
    async def tells_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        rest = await reader.readuntil(b"0\r\n\r\n")
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(rest), rest))
        await engine.head(reader)
        writer.write(OK)

    engine = Engine(tmp_path, tells_at_once)

    async def work() -> None:
        door = HttpDoor(engine.path)
        begun = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield b"first"
            await begun.wait()
            yield b"second"

        async with door.call("POST", "/build", {}, body()) as answer:
            pieces = answer.pieces()
            assert await anext(pieces) == b"one"
            begun.set()
            assert b"".join([piece async for piece in pieces]) == b"5\r\nfirst\r\n6\r\nsecond\r\n0\r\n\r\n"
        assert await said(door) == b"ok"
        assert engine.connections == 1
        door.close()

    engine.run(work)


def test_what_is_wrong_with_a_body_is_told_by_its_own_error(tmp_path: Path) -> None:
    async def deaf(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    engine = Engine(tmp_path, deaf)

    async def body() -> AsyncIterator[bytes]:
        yield b"x"
        raise ValueError("not a tar")

    async def work() -> None:
        door = HttpDoor(engine.path)
        with pytest.raises(ValueError, match="not a tar"):
            await said(door, "PUT", body())
        door.close()

    engine.run(work)


def test_an_answer_that_is_left_costs_its_connection(tmp_path: Path) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"4\r\nline\r\n")
            await writer.drain()

    engine = Engine(tmp_path, endless)

    async def work() -> None:
        door = HttpDoor(engine.path)
        async with door.call("GET", "/logs", {}, None) as answer:
            assert await answer.read(10) == b"linelineli"
        assert await said(door) == b"ok"
        assert engine.connections == 2
        door.close()

    engine.run(work)


@pytest.mark.parametrize("nonsense", [b"", b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"])
def test_nonsense_and_silence_are_an_engine_that_is_gone(tmp_path: Path, nonsense: bytes) -> None:
    async def babbles(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.head(reader)
        writer.write(nonsense)

    engine = Engine(tmp_path, babbles)

    async def work() -> None:
        api = EngineApi(engine.path)
        with pytest.raises(EngineGoneError, match="no container engine answers"):
            await api.version()
        with pytest.raises(EngineGoneError):
            await EngineApi(str(tmp_path / "nobody")).version()
        await api.close()

    engine.run(work)


def test_an_engine_that_does_not_answer_is_late(tmp_path: Path) -> None:
    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    engine = Engine(tmp_path, silent)

    async def work() -> None:
        api = EngineApi(engine.path)
        with pytest.raises(EngineError, match=r"within 0\.05 s"):
            await api._call("GET", "/info", deadline_s=0.05)
        await api.close()

    engine.run(work)


def test_a_question_without_a_loop(tmp_path: Path) -> None:
    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await engine.head(reader)
        assert head.startswith(b"GET /v1.41/info HTTP/1.0\r\n")
        writer.write(b"HTTP/1.0 503 Busy\r\nX: y\r\n\r\n" + bytes(100_000))

    async def babbles(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.head(reader)
        writer.write(b"hello\r\n\r\n")

    engine = Engine(tmp_path, old, babbles)

    async def work() -> None:
        assert await asyncio.to_thread(docker_now.call, engine.path, "GET", "/info") == (503, bytes(100_000))
        with pytest.raises(docker_now.Unanswered, match="not HTTP"):
            await asyncio.to_thread(docker_now.call, engine.path, "GET", "/info")
        with pytest.raises(docker_now.Unanswered):
            await asyncio.to_thread(docker_now.call, str(tmp_path / "nobody"), "GET", "/info")

    engine.run(work)


def test_what_an_engine_has_just_told_another_process_is_not_asked_again(tmp_path: Path) -> None:
    info = b'{"SecurityOptions":["name=seccomp,profile=default"],"Driver":"overlay2"}'

    async def tells(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.head(reader)
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + info)

    engine = Engine(tmp_path, *(tells,) * 3)
    state = str(tmp_path)

    async def work() -> None:
        first = await asyncio.to_thread(DockerSandbox, "docker", engine.path, state=state)
        second = DockerSandbox("docker", engine.path, state=state, known=first.known)
        assert engine.connections == 1
        assert second.info == first.info
        assert second.capabilities == first.capabilities
        assert second.known == first.known  # not younger than it is
        told = msgspec.msgpack.decode(first.known, type=Known)
        old = msgspec.structs.replace(told, asked_s=time.monotonic() - KNOWN_S)
        await asyncio.to_thread(DockerSandbox, "docker", engine.path, state=state, known=msgspec.msgpack.encode(old))
        assert engine.connections == 2
        with pytest.raises(MachineError, match="no container engine answers"):
            DockerSandbox("docker", str(tmp_path / "other"), state=state, known=first.known)

    engine.run(work)


def test_what_an_engine_takes_is_loaded_early_only_where_one_is_used_and_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNYARD_STATE_DIR", str(tmp_path))
    looks: list[bool] = []

    def look(*, is_wanted: bool) -> bool:
        looks.append(is_wanted)
        return is_wanted

    warm_for_engine(lambda: look(is_wanted=False))
    assert looks == []
    records.note_engines(str(tmp_path))
    warm_for_engine(lambda: look(is_wanted=True))
    assert looks == [True]
    warm_for_engine(lambda: look(is_wanted=False))
    assert len(looks) > 2
