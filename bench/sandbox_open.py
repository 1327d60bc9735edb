"""The row sandbox-open: a sandbox from `prepare` to open, against `bwrap … true` with the same mounts."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING

from bench.figure import Figure, median
from runyard.job import Limits, MachineError
from runyard.sandbox import warm
from runyard.sandbox.contract import Identity, Shape
from runyard.sandbox.refused import bwrap_path
from runyard.sandbox.registry import open_sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNS = 15


def measure() -> Iterator[Figure]:
    """Bare, full without network, full with network and policy, where this machine can."""
    plain = _plain()
    bare = Shape(directories=())
    full = Shape(
        limits=Limits(memory_mb=2048, pids=2000),
        directories=("/home/runner/work/repo/repo",),
        tmpfs=("/home/runner/work/_temp",),
    )
    public = Shape(limits=full.limits, network="public", directories=full.directories, tmpfs=full.tmpfs)
    for name, shape, target in (("bare", bare, 15.0), ("full, no network", full, 25.0), ("full, public", public, 60.0)):
        try:
            value = asyncio.run(_opened(shape))
        except MachineError as err:
            print(f"sandbox-open, {name}: not here: {err}")
            continue
        yield Figure("sandbox-open", name, value, "ms", plain, "bwrap … true", target)


def _plain() -> float:
    command = [bwrap_path(), "--unshare-all", "--cap-drop", "ALL", "--die-with-parent"]
    command += ["--overlay-src", "/usr", "--tmp-overlay", "/usr", "--symlink", "usr/bin", "/bin"]
    command += ["--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"]
    command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "true"]
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=20)
        times.append((time.perf_counter() - began) * 1e3)
    return median(times)


async def _opened(shape: Shape) -> float:
    with tempfile.TemporaryDirectory() as state:
        warm()
        sandbox = open_sandbox("bubblewrap", state=state)
        times = []
        for number in range(RUNS + 1):
            began = time.perf_counter()
            session = await sandbox.prepare(shape)
            await session.adopt(Identity(job_key="bench"))
            if number:  # the first one composes the image
                times.append((time.perf_counter() - began) * 1e3)
            await session.close()
        return median(times)
