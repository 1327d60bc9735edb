"""A tree of the host shown inside a sandbox: laid over where the backend can, else packed and put."""

from __future__ import annotations

import asyncio
import tempfile
from typing import TYPE_CHECKING

from runyard.job import MachineError

if TYPE_CHECKING:
    from runyard.sandbox.contract import Session

PACK_TIMEOUT_S = 600.0


async def place_tree(session: Session, source: str, target: str, *, empty: bool = True) -> None:
    """Show the host's folder `source` at `target`. With `empty` it may be laid over; otherwise it is unpacked into it.

    Raises MachineError.
    """
    if empty and await session.overlay(source, target):
        return
    with tempfile.NamedTemporaryFile(prefix="runyard-", suffix=".tar") as tar:
        await _pack(source, tar.name)
        await session.put(tar.name, target)


async def _pack(source: str, path: str) -> None:
    process = await asyncio.create_subprocess_exec(
        "tar",
        "--numeric-owner",
        "--owner=0",
        "--group=0",
        "-C",
        source,
        "-cf",
        path,
        ".",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PACK_TIMEOUT_S):
            _, problem = await process.communicate()
    except TimeoutError as error:
        process.kill()
        await process.wait()
        raise MachineError(f"packing {source} took longer than {PACK_TIMEOUT_S:g} s", code="engine.pack") from error
    if process.returncode:
        said = problem.decode("utf-8", "replace").strip()
        raise MachineError(f"packing {source} failed: {said}", code="engine.pack")
