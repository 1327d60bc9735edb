"""File systems in memory are bounded where no limit is asked for: files can't take all of the machine's memory."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from runyard.sandbox.contract import Shape, StepCommand
from runyard.sandbox.registry import open_sandbox

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(60)

SCRIPT = """
for place in /tmp /dev/shm /commands; do stat -f -c '%b %S' "$place"; done
touch /dev/more 2>/dev/null && echo writable
echo gone > /dev/null && echo end
"""


def test_each_takes_a_fifth_at_most_and_dev_takes_nothing(tmp_path: Path) -> None:
    async def go() -> str:
        async with asyncio.timeout(20):
            session = await open_sandbox("bubblewrap", state=str(tmp_path)).prepare(Shape(tmpfs=("/commands",)))
            try:
                running = await session.start(StepCommand(argv=("sh", "-c", SCRIPT), env=session.environment))
                told = b""
                while data := await running.read():
                    told += data
                await running.wait()
                return told.decode()
            finally:
                assert (await session.close()).items == ()

    *sizes, last = asyncio.run(go()).splitlines()
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert len(sizes) == 3
    assert all(int(blocks) * int(size) <= machine // 5 + 4096 for blocks, size in map(str.split, sizes))
    assert last == "end"
