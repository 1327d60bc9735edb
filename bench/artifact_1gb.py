"""Row artifact-1gb: a file up and down through the service on loopback, as the blob clients do it, against `cp`.

Up is blocks of 8 MiB over four connections, the list of them, and the end that makes them an artifact: what it returns
is whole, has its SHA-256 and is synced, so `cp` has its `sync` too. Down is one request into a file. The service is a
process of its own, and its memory is what it was at its highest.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bench.figure import Figure, median
from runyard.service.tenant import READ, WRITE, Scope, Tenant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROUNDS = 2
SIZE = 1_000_000_000
SMALL = 100_000_000
BLOCK = 8 << 20
CONNECTIONS = 4
ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 60.0
CALLS = "/twirp/github.actions.results.api.v1.ArtifactService/"
IDS = {"workflow_run_backend_id": "plan-1", "workflow_job_run_backend_id": "build"}


def measure() -> Iterator[Figure]:
    """Times of `cp` that each way takes, and megabytes of memory that the service took more for a large file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole, small = folder / "whole", folder / "small"
        noise = os.urandom(1_000_000)
        for path, size in ((small, SMALL), (whole, SIZE)):
            with path.open("wb") as file:
                for number in range(size // len(noise)):
                    file.write(number.to_bytes(8, "big") + noise[8:])
                os.fsync(file.fileno())
        command = [sys.executable, "-m", "bench.artifact_1gb", "serve", str(folder / "services")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, cwd=ROOT, text=True) as server:
            assert server.stdout is not None
            assert server.stdin is not None
            client = _Client(*server.stdout.readline().split())
            client.up(small, "small")
            client.down("small", folder / "down")
            before = _peak_mb(server.pid)
            times: dict[str, list[float]] = {each: [] for each in ("up", "down", "cp and sync", "cp")}
            copy, down = folder / "copy", folder / "down"
            for number in range(ROUNDS):
                for path in (copy, down):
                    # Memory that a virtual machine never touched is slow the first time: both sides get used pages.
                    _run("cp", whole, path)
                    path.unlink()
                times["cp and sync"].append(_timed(lambda: _run("cp", whole, copy), lambda: _run("sync", copy)))
                times["up"].append(_timed(lambda number=number: client.up(whole, f"w{number}")))  # type: ignore[misc]
                copy.unlink()
                down.unlink(missing_ok=True)
                times["cp"].append(_timed(lambda: _run("cp", whole, copy)))
                copy.unlink()
                times["down"].append(_timed(lambda number=number: client.down(f"w{number}", down)))  # type: ignore[misc]
            more = _peak_mb(server.pid) - before
            server.stdin.close()
        _run("cmp", whole, down)
        for ours, theirs in (("up", "cp and sync"), ("down", "cp")):
            value, base = median(times[ours]), median(times[theirs])
            yield Figure("artifact-1gb", ours, value, "s", base, theirs, 3.0, of_ratio=True)
        yield Figure("artifact-1gb", "memory for 1 GB over 100 MB", more, "MB", before, "peak after 100 MB", 16)


def _timed(*works: Callable[[], None]) -> float:
    began = time.perf_counter()
    for work in works:
        work()
    return time.perf_counter() - began


def _run(program: str, *paths: Path) -> None:
    subprocess.run([program, *map(str, paths)], check=True)


def _peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


class _Client:
    """What the toolkit's clients ask, without what their language costs."""

    def __init__(self, port: str, token: str) -> None:
        self._port = int(port)
        self._token = token

    def up(self, path: Path, name: str) -> None:
        """Blocks side by side, their list, the end."""
        size = path.stat().st_size
        made = self._call("CreateArtifact", {**IDS, "name": name, "version": 4})
        target = _path(made["signed_upload_url"])
        waiting = [(base64.b64encode(b"%048d" % (at // BLOCK)).decode(), at) for at in range(0, size, BLOCK)]
        blocks = "".join(f"<Latest>{block}</Latest>" for block, _ in waiting)
        waiting.reverse()
        failed: list[BaseException] = []

        def work() -> None:
            try:
                with path.open("rb") as file, socket.create_connection(("127.0.0.1", self._port)) as sock:
                    sock.settimeout(PATIENCE_S)
                    while waiting:
                        block, at = waiting.pop()
                        self._put(sock, f"{target}&comp=block&blockid={block}", file, at, min(BLOCK, size - at))
            except BaseException as error:  # noqa: BLE001 - told by the thread that waits
                failed.append(error)

        threads = [threading.Thread(target=work) for _ in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        body = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{blocks}</BlockList>'.encode()
        self._ask("PUT", f"{target}&comp=blocklist", body, 201)
        self._call("FinalizeArtifact", {**IDS, "name": name, "size": str(size)})

    def down(self, name: str, path: Path) -> None:
        """One request, written as it comes."""
        url = self._call("GetSignedArtifactURL", {**IDS, "name": name})["signed_url"]
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        connection.request("GET", _path(url))
        answer = connection.getresponse()
        view = memoryview(bytearray(1 << 20))
        with path.open("wb", buffering=0) as file:
            while count := answer.readinto(view):
                file.write(view[:count])
        connection.close()

    @staticmethod
    def _put(sock: socket.socket, target: str, file: Any, at: int, size: int) -> None:
        sock.sendall(f"PUT {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode())
        sock.sendfile(file, at, size)
        answer = http.client.HTTPResponse(sock, method="PUT")
        answer.begin()
        answer.read()
        if answer.status != 201:
            raise RuntimeError(f"the block was answered with {answer.status}")

    def _call(self, name: str, message: dict[str, Any]) -> dict[str, Any]:
        body = self._ask("POST", CALLS + name, json.dumps(message).encode(), 200, token=self._token)
        found: dict[str, Any] = json.loads(body)
        return found

    def _ask(self, method: str, target: str, body: bytes, status: int, token: str = "") -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"} if token else {}
        connection.request(method, target, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        if answer.status != status:
            raise RuntimeError(f"{target}: {answer.status} {data!r}")
        return data


def _path(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}"


async def _serve(folder: str) -> None:
    """Until standard input ends."""
    from runyard.service.local import LocalServices
    from runyard.service.server import Server

    tenant = Tenant(
        plan_id=IDS["workflow_run_backend_id"],
        job_id=IDS["workflow_job_run_backend_id"],
        job_name="Build",
        repository="octo/tools",
        run_id="1",
        scopes=(Scope("refs/heads/main", READ | WRITE),),
    )
    services = LocalServices(folder, tenant)
    loop = asyncio.get_running_loop()
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    port = sock.getsockname()[1]
    server = Server(services.gateway(f"http://127.0.0.1:{port}/"))
    ended = asyncio.Event()
    loop.add_reader(0, ended.set)
    taking: set[asyncio.Task[None]] = set()

    async def accept() -> None:
        while True:
            connection, _ = await loop.sock_accept(sock)
            task = asyncio.create_task(server.take(connection))
            taking.add(task)
            task.add_done_callback(taking.discard)

    accepting = asyncio.create_task(accept())
    print(port, services.token(3600), flush=True)
    await ended.wait()
    accepting.cancel()
    services.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(_serve(sys.argv[2]))
    else:
        for figure in measure():
            print(f"{figure.name}: {figure.value:.2f} {figure.unit} ({figure.ratio:.2f} x {figure.baseline_name})")
