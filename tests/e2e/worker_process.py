"""`runyard worker` as a process of its own, against a server double in the test's loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING

import msgspec

from e2e.command_line import RUNYARD, environment
from engine.scripted import claim
from source.dialout_double import TOKEN, Double

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path
    from typing import Any

    from runyard.job import Claim

DEADLINE_S = 20


class WorkerProcess:
    """One process; `lines` is what it said."""

    def __init__(self, home: Path, url: str) -> None:
        self.home = home
        self.url = url
        self.process: asyncio.subprocess.Process
        self.lines: list[str] = []
        self._reading: list[asyncio.Task[None]] = []

    async def start(self, *flags: str, token: str = TOKEN) -> None:
        more = {"RUNYARD_WORKER_TOKEN": token, "RUNYARD_STATE_DIR": str(self.home / "state")}
        self.process = await asyncio.create_subprocess_exec(
            *RUNYARD,
            "worker",
            "--url",
            self.url,
            "--name",
            "w1",
            "--network",
            "none",
            "--cache-dir",
            str(self.home / "cache"),
            *flags,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(self.home, more),
            cwd=self.home,
        )
        self._reading = [asyncio.create_task(self._read(self.process.stdout)) for _ in range(1)]
        self._reading.append(asyncio.create_task(self._read(self.process.stderr)))

    async def _read(self, stream: asyncio.StreamReader | None) -> None:
        assert stream is not None
        async for line in stream:
            self.lines.append(line.decode().rstrip("\n"))

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self) -> int:
        async with asyncio.timeout(DEADLINE_S):
            code = await self.process.wait()
            await asyncio.gather(*self._reading)
        return code

    async def close(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGCONT)
                self.process.terminate()
            try:
                async with asyncio.timeout(10):
                    await self.process.wait()
            except TimeoutError:
                self.process.kill()
                await self.process.wait()
        for task in self._reading:
            task.cancel()


def job(name: str, *steps: dict[str, Any], lease_s: float = 30.0, **keys: Any) -> Claim:
    """A claim with an id and lease of its own."""
    made = claim(*steps, **keys)
    return msgspec.structs.replace(
        made,
        lease_id=f"lease-{name}",
        expires_in_s=lease_s,
        spec=msgspec.structs.replace(made.spec, id=f"job-{name}", key=name, name=name, run_id=f"run-{name}"),
    )


def with_worker(
    home: Path,
    test: Callable[[Double, WorkerProcess], Awaitable[None]],
    *flags: str,
    lease_s: float = 30.0,
    heartbeat_s: float = 10.0,
    start: bool = True,
) -> None:
    """Run the test with a double and a worker that dials it; both are gone afterwards."""

    async def main() -> None:
        async with (
            Double(lease_s=lease_s, heartbeat_s=heartbeat_s).started() as server,
            process(home, server) as worker,
        ):
            if start:
                await worker.start(*flags)
            await test(server, worker)

    asyncio.run(main())


@contextlib.asynccontextmanager
async def process(home: Path, server: Double) -> AsyncIterator[WorkerProcess]:
    worker = WorkerProcess(home, server.url)
    try:
        yield worker
    finally:
        if hasattr(worker, "process"):
            if worker.process.returncode is None:
                await server.down()
                worker.signal(signal.SIGCONT)
                worker.signal(signal.SIGTERM)
                worker.signal(signal.SIGTERM)
            await worker.close()
