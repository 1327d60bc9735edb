"""One folder, several processes, one killed at any moment (F22 b, c); and a real socket with bad manners."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

from runyard.service.server import Server
from service.clients import House, run, tenant

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SAVER = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from service.clients import House, tenant
async def main():
    house = House(Path(sys.argv[2]))
    client = house.client(tenant(sys.argv[3]))
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(int(sys.argv[4])):
        answer = await client.save(f"k{n}", sys.argv[3].encode() * 200_000)
        print(n, answer.json["ok"], flush=True)
asyncio.run(main())
"""


def saver(folder: Path, name: str, times: int) -> subprocess.Popen[str]:
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", SAVER, tests, str(folder), name, str(times)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_F22b_savers_in_several_processes_end_with_one_whole_entry_a_key(tmp_path: Path) -> None:
    folder = tmp_path / "services"
    processes = [saver(folder, name, 8) for name in ("aa", "bb")]
    for each in processes:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    said = []
    for each in processes:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    for each in processes:
        out, _ = each.communicate(timeout=20)
        said.append([line.endswith("True") for line in out.splitlines()])
    assert [one + two for one, two in zip(*said, strict=True)] == [1] * 8, "one of both saved each key"

    async def work() -> None:
        house = House(folder)
        client = house.client()
        for n in range(8):
            found = await client.restore(f"k{n}")
            assert found is not None
            assert found[1] in {b"aa" * 200_000, b"bb" * 200_000}
        house.close()

    run(work)


@pytest.mark.parametrize("delay_ms", [0, 40])
def test_F22c_after_a_kill_an_entry_is_absent_or_whole(tmp_path: Path, delay_ms: int) -> None:
    folder = tmp_path / "services"
    process = saver(folder, "aa", 40)
    assert process.stdout is not None
    assert process.stdin is not None
    process.stdout.readline()
    process.stdin.write("\n")
    process.stdin.flush()
    process.stdout.readline()
    time.sleep(delay_ms / 1000)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=20)

    async def work() -> None:
        house = House(folder)
        client = house.client(tenant("after"))
        found = [await client.restore(f"k{n}") for n in range(40)]
        whole = [each for each in found if each is not None]
        assert whole
        assert all(each[1] == b"aa" * 200_000 for each in whole)
        missing = found.index(None) if None in found else 40
        assert found[missing:] == [None] * (40 - missing)
        assert (await client.save(f"k{missing}", b"mine")).json["ok"]
        house.close()

    run(work)
    for path in (folder / "blobs").rglob("*"):
        if path.is_file():
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name


class Listening:
    """A gateway on a loopback port."""

    def __init__(self, house: House, *, idle_s: float = 5.0) -> None:
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.sock.setblocking(False)
        self.base = f"http://127.0.0.1:{self.sock.getsockname()[1]}/"
        services = house.client().services
        self.token = services.token(3600)
        self.server = Server(services.gateway(self.base), idle_s=idle_s)
        self.tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Listening:
        self.accepting = asyncio.create_task(self._accept())
        return self

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(self.sock)
            task = asyncio.create_task(self.server.take(sock))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def __aexit__(self, *_: object) -> None:
        self.accepting.cancel()
        if self.tasks:
            done, waiting = await asyncio.wait(self.tasks, timeout=15)
            assert not waiting, "a connection outlived its client"
            for task in done:
                task.result()
        self.sock.close()


def test_a_real_client_saves_and_restores(house: House) -> None:
    async def work() -> None:
        async with Listening(house) as there, aiohttp.ClientSession(there.base) as session:
            headers = {"Authorization": f"Bearer {there.token}"}
            call = "/twirp/github.actions.results.api.v1.CacheService/"
            message = {"key": "k", "version": "v"}
            async with session.post(f"{call}CreateCacheEntry", json=message, headers=headers) as answer:
                url = (await answer.json())["signed_upload_url"]
            data = os.urandom(3_000_000)

            async def chunks() -> AsyncIterator[bytes]:
                for at in range(0, len(data), 100_000):
                    yield data[at : at + 100_000]

            async with session.put(url, data=chunks()) as answer:
                assert answer.status == 201
                assert answer.headers["ETag"]
            sized = {**message, "size_bytes": str(len(data))}
            async with session.post(f"{call}FinalizeCacheEntryUpload", json=sized, headers=headers) as answer:
                assert (await answer.json())["ok"]
            async with session.post(f"{call}GetCacheEntryDownloadURL", json=message, headers=headers) as answer:
                url = (await answer.json())["signed_download_url"]
            async with session.get(url) as answer:
                assert await answer.read() == data

    run(work)


def test_a_large_file_a_range_of_it_and_a_reader_that_leaves(house: House) -> None:
    """The kernel moves the bytes of a blob; more than one turn of it, from any offset, until the reader is gone."""

    async def work() -> None:
        data = os.urandom(1 << 20) * 9 + b"the end"
        client = house.client()
        assert (await client.save("k", data)).json["ok"]
        async with Listening(house) as there, aiohttp.ClientSession(there.base) as session:
            headers = {"Authorization": f"Bearer {there.token}"}
            call = "/twirp/github.actions.results.api.v1.CacheService/GetCacheEntryDownloadURL"
            async with session.post(call, json={"key": "k", "version": "v"}, headers=headers) as answer:
                url = (await answer.json())["signed_download_url"]
            async with session.get(url) as answer:
                assert await answer.read() == data
            at = (4 << 20) + 12_345
            async with session.get(url, headers={"Range": f"bytes={at}-"}) as answer:
                assert answer.status == 206
                assert await answer.read() == data[at:]
            async with session.head(url) as answer:
                assert answer.content_length == len(data)
            async with session.get(url) as answer:
                await answer.content.readexactly(1000)
                answer.close()
            async with session.get(url, headers={"Range": "bytes=0-9"}) as answer:
                assert await answer.read() == data[:10]

    run(work)


def test_a_body_that_breaks_off_leaves_nothing_whole(house: House) -> None:
    async def work() -> None:
        client = house.client()
        async with Listening(house) as there:
            made = await client.twirp("CreateCacheEntry", {"key": "k", "version": "v"})
            del made
            async with aiohttp.ClientSession(there.base) as session:
                headers = {"Authorization": f"Bearer {there.token}"}
                call = "/twirp/github.actions.results.api.v1.CacheService/CreateCacheEntry"
                async with session.post(call, json={"key": "k", "version": "v"}, headers=headers) as answer:
                    url = (await answer.json())["signed_upload_url"]
            path = url.removeprefix(there.base.rstrip("/"))
            reader, writer = await asyncio.open_connection("127.0.0.1", there.sock.getsockname()[1])
            writer.write(f"PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nonly this".encode())
            await writer.drain()
            writer.close()
            await writer.wait_closed()
            del reader
        assert not [each for each in (house.folder / "blobs").rglob("*") if each.is_file()]
        staged = [each.name for each in (house.folder / "staging").rglob("*") if each.is_file()]
        assert staged == []

    run(work)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost"], ids=["silent", "half-a-header"])
def test_a_connection_that_says_nothing_is_cut(house: House, sent: bytes) -> None:
    async def work() -> None:
        async with Listening(house, idle_s=0.3) as there:
            reader, writer = await asyncio.open_connection("127.0.0.1", there.sock.getsockname()[1])
            writer.write(sent)
            async with asyncio.timeout(10):
                assert await reader.read() == b""
            writer.close()

    run(work)
