"""A visitor gets a shell in the sandbox, with a step's rights and no others."""

from __future__ import annotations

import asyncio
import shlex
from typing import TYPE_CHECKING

import pytest

from runyard.sandbox.contract import Shape, StepCommand
from runyard.sandbox.registry import open_sandbox

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(60)


def test_the_shell_is_inside_and_has_no_capability(tmp_path: Path) -> None:
    async def go() -> tuple[str, int | None]:
        async with asyncio.timeout(20):
            session = await open_sandbox("bubblewrap", state=str(tmp_path)).prepare(Shape())
            try:
                running = await session.start(
                    StepCommand(argv=("sh", "-c", "echo here > /home/runner/mark"), env=session.environment)
                )
                await running.wait()
                line = session.how_to_enter()
                assert line is not None
                visitor = await asyncio.create_subprocess_exec(
                    *shlex.split(line), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
                )
                script = b"cat mark; grep -E 'Cap(Eff|Bnd)|NoNewPrivs|Seccomp:' /proc/self/status; tty; exit 9\n"
                out, _ = await visitor.communicate(script)
                return out.decode(), visitor.returncode
            finally:
                assert (await session.close()).items == ()

    text, code = asyncio.run(go())
    assert code == 9
    words = text.split()
    assert "here" in words
    for name, value in (("CapEff:", "0" * 16), ("CapBnd:", "0" * 16), ("NoNewPrivs:", "1"), ("Seccomp:", "2")):
        assert words[words.index(name) + 1] == value
    assert any(word.startswith("/dev/pts/") for word in words)


def test_a_closed_sandbox_can_not_be_entered(tmp_path: Path) -> None:
    async def go() -> str | None:
        session = await open_sandbox("bubblewrap", state=str(tmp_path)).prepare(Shape())
        await session.close()
        return session.how_to_enter()

    assert asyncio.run(go()) is None
