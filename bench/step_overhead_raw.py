"""The sandbox's part of the row step-overhead: a step with all command files, against plain `bash -e` in there."""

from __future__ import annotations

import asyncio
import tempfile
import time
from typing import TYPE_CHECKING

from bench.figure import Figure, median, percentile
from runyard.sandbox.contract import FileIn, FileOut, Shape, StepCommand
from runyard.sandbox.registry import open_sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runyard.sandbox.contract import Session

STEPS = 200
TEMP = "/home/runner/work/_temp"
LIMIT = 1 << 20
LOOP = f"""
for i in $(seq {STEPS}); do
  a=${{EPOCHREALTIME/./}}; bash -e /tmp/plain.sh; b=${{EPOCHREALTIME/./}}; echo $((b - a))
done
"""


def measure() -> Iterator[Figure]:
    """Median and 95th percentile over the plain script's median."""
    plain, steps = asyncio.run(_measured())
    base = median(plain)
    yield Figure("step-overhead", "sandbox alone, median", median(steps) - base, "ms", base, "bash -e inside", 2.0)
    high = percentile(steps, 0.95) - percentile(plain, 0.95)
    yield Figure("step-overhead", "sandbox alone, p95", high, "ms", percentile(plain, 0.95), "bash -e inside, p95", 4.0)


async def _measured() -> tuple[list[float], list[float]]:
    with tempfile.TemporaryDirectory() as state:
        session = await open_sandbox("bubblewrap", state=state).prepare(Shape(tmpfs=(TEMP,)))
        try:
            return await _plain(session), [await _step(session, number) for number in range(STEPS)]
        finally:
            await session.close()


async def _plain(session: Session) -> list[float]:
    files = (FileIn("/tmp/plain.sh", b"true\n"),)
    running = await session.start(StepCommand(argv=("bash", "-c", LOOP), env=_environment(session), files_in=files))
    parts = []
    while part := await running.read():
        parts.append(part)
    return [int(word) / 1e3 for word in b"".join(parts).split()]


async def _step(session: Session, number: int) -> float:
    paths = [f"{TEMP}/{kind}_{number}" for kind in ("env", "path", "output", "state", "summary")]
    script = f"{TEMP}/{number}.sh"
    command = StepCommand(
        argv=("bash", "-e", script),
        env=_environment(session),
        files_in=(FileIn(script, b"true\n"), *(FileIn(path, b"") for path in paths)),
        files_out=tuple(FileOut(path, LIMIT) for path in paths),
    )
    began = time.perf_counter()
    running = await session.start(command)
    while await running.read():
        pass
    ended = await running.wait()
    assert ended.code == 0
    return (time.perf_counter() - began) * 1e3


def _environment(session: Session) -> dict[str, str]:
    """As large as a job's environment is."""
    return {**session.environment, **{f"GITHUB_VARIABLE_{number}": "x" * 40 for number in range(40)}}
