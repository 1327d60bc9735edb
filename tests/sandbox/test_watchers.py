"""Watchers of commands: one serves commands in turn, and never has anything of two of them below it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from runyard.sandbox.contract import Shape, StepCommand
from runyard.sandbox.registry import open_sandbox

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from runyard.sandbox.contract import Running, Session

pytestmark = pytest.mark.timeout(60)

WORK = "/home/runner/work"


def in_session(state: Path, work: Callable[[Session], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(40):
            session = await open_sandbox("bubblewrap", state=str(state)).prepare(Shape(directories=(WORK,)))
            try:
                await work(session)
            finally:
                assert (await session.close()).items == ()

    asyncio.run(run())


async def start(session: Session, script: str) -> Running:
    env = {"PATH": "/usr/bin:/bin"}
    return await session.start(StepCommand(argv=("/bin/sh", "-c", script), env=env, cwd=WORK))


async def said(session: Session, script: str) -> str:
    running = await start(session, script)
    text = b""
    while part := await running.read():
        text += part
    assert (await running.wait()).code == 0
    return text.decode().strip()


def test_commands_in_turn_share_a_watcher_and_find_everything_as_the_first_one_did(tmp_path: Path) -> None:
    async def work(session: Session) -> None:
        look = "echo $PPID; umask; pwd; cat /proc/self/oom_score_adj; ulimit -n; cut -d' ' -f6 /proc/self/stat"
        first = (await said(session, look)).splitlines()
        assert first[1:4] == ["0022", WORK, "500"]
        for script in ("cd /; umask 0; exec 9>x; exit 0", "ulimit -n 64", "sleep 0.05 & true; wait"):
            await said(session, script)
            again = (await said(session, look)).splitlines()
            assert again[:-1] == first[:-1]
            assert again[-1] != first[-1]  # a session of its own

    in_session(tmp_path, work)


def test_what_a_command_leaves_behind_keeps_its_watcher(tmp_path: Path) -> None:
    async def work(session: Session) -> None:
        first = await start(session, "setsid sleep 600 >/dev/null 2>&1 </dev/null & echo $PPID")
        watcher = (await first.read()).decode().strip()
        await first.wait()
        others = {await said(session, "echo $PPID") for _ in range(4)}
        assert watcher not in others
        assert len(others) == 1
        assert await first.left()
        await first.signal("kill")
        while await first.left():
            await asyncio.sleep(0.01)
        assert await said(session, "echo ok") == "ok"

    in_session(tmp_path, work)


def test_a_signal_to_a_command_that_is_over_hits_no_later_one(tmp_path: Path) -> None:
    async def work(session: Session) -> None:
        for _ in range(20):
            over = await start(session, "exit 0")
            signals = [asyncio.create_task(over.signal("kill")) for _ in range(3)]
            await over.wait()
            later = await start(session, "echo began; sleep 0.05; echo went on")
            await asyncio.gather(*signals, over.signal("kill"))
            text = b""
            while part := await later.read():
                text += part
            assert text == b"began\nwent on\n"
            assert (await later.wait()).code == 0
            assert not await over.left()

    in_session(tmp_path, work)


@pytest.mark.parametrize("name", ["STOP", "KILL"])
def test_a_job_that_stops_or_kills_an_idle_watcher_harms_no_later_command(tmp_path: Path, name: str) -> None:
    wait = "while [ ! -e go ]; do sleep 0.01; done"
    gone = "" if name == "STOP" else "while [ -e /proc/$(cat idle) ]; do sleep 0.01; done"
    script = f"{wait}\nkill -{name} $(cat idle)\n{gone}\necho sent; sleep 600"

    async def work(session: Session) -> None:
        other = await start(session, script)
        watcher = await said(session, "echo $PPID >idle; cat idle")
        await said(session, f"[ $PPID = {watcher} ] && touch go")
        assert await other.read() == b"sent\n"
        later = await said(session, "echo $PPID")
        assert (later == watcher) == (name == "STOP")
        assert await said(session, "echo ok") == "ok"
        await other.signal("kill")
        assert (await other.wait()).signal == 9

    in_session(tmp_path, work)


LOOK = """
import asyncio, sys
from runyard.sandbox.contract import Shape, StepCommand
from runyard.sandbox.registry import open_sandbox
async def main():
    session = await open_sandbox("bubblewrap", state=sys.argv[1]).prepare(Shape())
    try:
        for _ in range(2):
            running = await session.start(StepCommand(argv=("/bin/ls", "/proc/self/fd"), env={"PATH": "/bin"}))
            while part := await running.read():
                print(part.decode().split(), flush=True)
    finally:
        await session.close()
asyncio.run(main())
"""


def test_a_command_has_three_open_files_whatever_our_starter_left_open(tmp_path: Path) -> None:
    secret = os.open(__file__, os.O_RDONLY)
    os.set_inheritable(secret, True)
    try:
        command = [sys.executable, "-c", LOOK, str(tmp_path)]
        told = subprocess.run(command, pass_fds=(secret,), stdout=subprocess.PIPE, timeout=30, check=True).stdout
    finally:
        os.close(secret)
    assert told.decode().splitlines() == ["['0', '1', '2', '3']"] * 2  # the last one is the folder that it lists
