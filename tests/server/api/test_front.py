"""The server over a real socket: who gets in, what is bounded, and that no bad input is a fault of ours."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from runyard.dispatch.records import Settings
from runyard.server.app import ServerApp
from runyard.server.auth import new_token
from runyard.server.core import Core
from runyard.server.front import Front, FrontProtocol, listen
from runyard.server.store.sqlite import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

CLAIM = {"claim_id": "c1", "name": "w", "platform": "linux/amd64", "version": "1", "wait_s": 0}


class Served:
    """A server on a free port."""

    def __init__(self, core: Core, port: int, session: aiohttp.ClientSession) -> None:
        self.core = core
        self.port = port
        self._session = session

    async def token(self, kind: Any, *scopes: str, **more: object) -> str:
        made = new_token(kind, "test", scopes=frozenset(scopes), now_ns=1, **more)
        await self.core.store.transact(lambda tx: tx.insert_token(made.token))
        return made.text

    async def ask(self, method: str, path: str, token: str = "", **more: Any) -> tuple[int, dict[str, Any]]:
        headers = {**more.pop("headers", {}), **({"Authorization": f"Bearer {token}"} if token else {})}
        url = f"http://127.0.0.1:{self.port}{path}"
        async with self._session.request(method, url, headers=headers, **more) as answer:
            found = await answer.json(content_type=None) if answer.status != 204 else {}
            return answer.status, found


@contextlib.asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Served]:
    core = Core(open_store(folder / "runyard.db"), folder, bytes(32), Settings())
    core.start()
    sock = listen("127.0.0.1", 0)
    front = Front(ServerApp(core), sock)
    serving = asyncio.create_task(front._server.serve(sockets=[sock]))
    try:
        while not front._server.started:
            await asyncio.sleep(0.01)
        async with aiohttp.ClientSession() as session:
            yield Served(core, sock.getsockname()[1], session)
    finally:
        front._server.should_exit = True
        await serving
        await core.stop()


def on_a_server(folder: Path, test: Callable[[Served], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20), served(folder) as server:
            await test(server)

    asyncio.run(main())


def test_who_gets_in(tmp_path: Path) -> None:
    async def test(server: Served) -> None:
        claim, runs, tokens = "/-/worker/claim", "/-/api/runs", "/-/api/tokens"
        status, problem = await server.ask("POST", claim, "ryw_x", json=CLAIM)
        assert (status, problem["remedy"]) == (503, "runyard token create --worker NAME")
        worker, reader = await server.token("worker"), await server.token("api", "read")
        admin = await server.token("api", "admin")
        revoked, expired = await server.token("worker", revoked_ns=1), await server.token("worker", expires_ns=1)
        assert (await server.ask("POST", claim, worker, json=CLAIM))[0] == 204
        for token, wanted in (("", 401), ("ryw_x", 401), (revoked, 401), (expired, 401), (reader, 403)):
            assert (await server.ask("POST", claim, token, json=CLAIM))[0] == wanted
        assert (await server.ask("GET", runs, worker))[0] == 401
        assert (await server.ask("GET", runs, reader))[0] == 200
        assert (await server.ask("GET", tokens, reader))[0] == 404
        assert (await server.ask("GET", tokens, admin))[0] == 200
        assert (await server.ask("POST", "/-/api/runs/1/cancel", reader, json={}))[0] == 403

    on_a_server(tmp_path, test)


@pytest.mark.parametrize(
    ("method", "path", "body", "wanted"),
    [
        ("GET", "/-/api/runs/99999999999999999999999999", None, 400),
        ("GET", "/-/api/runs/x", None, 400),
        ("GET", "/-/api/runs/7", None, 404),
        ("GET", "/-/api/runs?before=-1", None, 400),
        ("GET", "/-/api/jobs/%2e%2e%2f%2e%2e/log", None, 404),
        ("GET", "/-/api/../../etc/passwd", None, 404),
        ("PUT", "/-/api/runs", None, 405),
        ("POST", "/-/api/projects", b"{", 400),
        ("POST", "/-/api/projects", b'{"project": 1, "git": "x"}', 400),
        ("POST", "/-/api/projects", b'{"project": "a/b", "git": "ext::sh -c id"}', 422),
        ("POST", "/-/api/projects", b'{"project": "../b", "git": "/tmp"}', 422),
        ("POST", "/-/api/tokens", b'{"kind": "worker", "name": "w", "scopes": ["admin"]}', 422),
        ("POST", "/-/api/projects", b"x" * (5 << 20), 413),
    ],
)
def test_bad_input_is_answered_and_is_no_fault_of_ours(
    tmp_path: Path, method: str, path: str, body: bytes | None, wanted: int
) -> None:
    async def test(server: Served) -> None:
        from yarl import URL

        admin = await server.token("api", "admin")
        url = URL(f"http://127.0.0.1:{server.port}{path}", encoded=True)
        async with server._session.request(
            method, url, data=body, headers={"Authorization": f"Bearer {admin}"}
        ) as answer:
            assert answer.status == wanted
            assert (await answer.json(content_type=None))["code"]

    on_a_server(tmp_path, test)


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET /healthz HTTP/1.1\r\nHost: x\r\n"])
def test_a_client_that_never_finishes_its_head_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(FrontProtocol, "head_s", 0.3)

    async def test(server: Served) -> None:
        slow = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(50)]
        for _, writer in slow:
            writer.write(said)
        assert (await server.ask("GET", "/-/nothing"))[0] == 404
        for reader, writer in slow:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
        assert FrontProtocol.open <= 2

    on_a_server(tmp_path, test)


def test_one_connection_too_many_is_let_go_and_the_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FrontProtocol, "most", FrontProtocol.open + 3)

    async def test(server: Served) -> None:
        held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        assert (await server.ask("GET", "/-/nothing"))[0] == 404
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        for _, each in [*held, (reader, writer)]:
            each.close()

    on_a_server(tmp_path, test)
