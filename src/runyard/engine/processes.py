"""One process of a step: started, read, waited for, ended by the ladder when the step is to stop (job-semantics 5)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from runyard.job import MachineError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from runyard.engine.state import Control
    from runyard.sandbox.contract import Exit, Running, SignalKind, StepCommand


_LOOK_AGAIN_S = 0.1


class Waits(msgspec.Struct, frozen=True):
    """Seconds of the ladder and after it. Tests shorten them; nobody else does.

    `interrupt` and `terminate` are what a process has after each signal, `gone` what the sandbox has to report an end
    after the kill, `output` how long a daemon may hold the output of a step that has ended (pair O30).
    """

    interrupt: float = 7.5
    terminate: float = 2.5
    gone: float = 10.0
    output: float = 5.0


class Starts(Protocol):
    """Where a command is started: a session, or a container beside it."""

    async def start(self, command: StepCommand) -> Running:
        """See Session."""


async def run_process(
    session: Starts,
    command: StepCommand,
    pump: Callable[[Running], Awaitable[None]],
    control: Control,
    *,
    waits: Waits,
    strict: bool,
) -> Exit:
    """Run a command to its end, or end it when `control` says stop. Its output has been pumped when this returns.

    Raises MachineError when the sandbox can't start it or doesn't say how it ended.
    """
    running = await session.start(command)
    reading = asyncio.ensure_future(pump(running))
    ending = asyncio.ensure_future(running.wait())
    stopping = asyncio.ensure_future(control.stopped.wait())
    try:
        await asyncio.wait({ending, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if control.stopped.is_set() and not ending.done():
            await _ladder(running, ending, reading, control, waits=waits, strict=strict)
        end = await _end_of(ending, waits.gone if control.stopped.is_set() else None)
        if not reading.done():
            await asyncio.wait({reading}, timeout=waits.output)
        if reading.done():
            reading.result()
    finally:
        stopping.cancel()
        reading.cancel()
        ending.cancel()
    return end


async def _end_of(ending: asyncio.Future[Exit], timeout: float | None) -> Exit:
    done, _ = await asyncio.wait({ending}, timeout=timeout)
    if not done:
        raise MachineError("the sandbox did not say how a killed process ended", code="sandbox.lost")
    return ending.result()


async def _ladder(
    running: Running,
    ending: asyncio.Future[Exit],
    reading: asyncio.Future[None],
    control: Control,
    *,
    waits: Waits,
    strict: bool,
) -> None:
    """Interrupt, terminate, kill. By default for every process of the step, strictly for its first one (D3).

    By default the next rung is climbed while anything of the step is there, whether or not it holds the output, and
    what is left at the end is killed: the first process alone says little about a build tool's children.
    """
    rungs: tuple[tuple[SignalKind, float], ...] = (("interrupt", waits.interrupt), ("terminate", waits.terminate))
    parts: set[asyncio.Future[Any]] = {ending} if strict else {ending, reading}
    forced = asyncio.ensure_future(control.forced.wait())
    try:
        for kind, wait in rungs:
            if control.why == "forced":
                break
            await running.signal(kind, everyone=not strict)
            if await _all_done(parts, forced, wait, None if strict else running):
                break
        if not strict or not ending.done():
            await running.signal("kill", everyone=not strict or control.why == "forced")
    finally:
        forced.cancel()


async def _all_done(
    parts: set[asyncio.Future[Any]], forced: asyncio.Future[Any], timeout: float, running: Running | None
) -> bool:
    """Whether all parts were done, and nothing of `running` was left, in time; a force ends the wait."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    both = asyncio.ensure_future(asyncio.wait(parts))
    try:
        await asyncio.wait({both, forced}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if not both.done() or running is None:
            return both.done()
        while await running.left():
            if forced.done() or loop.time() >= deadline:
                return False
            await asyncio.wait({forced}, timeout=_LOOK_AGAIN_S)
        return True
    finally:
        both.cancel()
