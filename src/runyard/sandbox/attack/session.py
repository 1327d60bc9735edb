"""A session with the probe in it: asks it one thing at a time, bounded, and always has an answer."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio

from runyard.job import Limits, MachineError, NetworkLevel
from runyard.sandbox.attack.attempts import Answer, parse_answer
from runyard.sandbox.attack.outside import probe_bytes
from runyard.sandbox.contract import Exit, FileIn, Identity, Running, Sandbox, Session, Shape, StepCommand

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HOME: Final = "/home/runner"
PROBE: Final = f"{HOME}/probe"
_OPEN_S: Final = 60.0
_CLOSE_S: Final = 30.0
_OUTPUT_LIMIT: Final = 65536


class Inside:
    """An open sandbox with the probe at `PROBE`."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.leftovers: tuple[str, ...] = ()
        self.last: Exit | None = None

    async def start(self, *arguments: str) -> Running:
        """Start the probe and leave it running. Raises MachineError."""
        return await self.session.start(StepCommand(argv=(PROBE, *arguments), cwd="/"))

    async def ask(self, *arguments: str, seconds: float = 20.0) -> Answer:
        """One call of the probe and what it said; a call that takes too long is ended, and that is the answer."""
        self.last = None
        try:
            running = await self.start(*arguments)
        except MachineError as err:
            return Answer(problem=f"the sandbox is gone: {err.message}")
        output = bytearray()
        try:
            with anyio.fail_after(seconds):
                while (piece := await running.read()) and len(output) < _OUTPUT_LIMIT:
                    output += piece
                self.last = await running.wait()
        except TimeoutError:
            await running.signal("kill")
            return Answer(problem=f"no answer in {seconds:.0f} s")
        except MachineError as err:
            return Answer(problem=f"the sandbox is gone: {err.message}")
        if self.last.problem is not None:
            return Answer(problem=self.last.problem)
        return parse_answer(bytes(output), self.last.code)


@asynccontextmanager
async def open_inside(
    sandbox: Sandbox, image: str, name: str, *, network: NetworkLevel = "none", limits: Limits | None = None
) -> AsyncIterator[Inside]:
    """A sandbox with the probe in it. Raises MachineError when it can't be opened or can't run the probe."""
    probe = probe_bytes()
    if probe is None:
        raise MachineError("there is no attack probe for this architecture", code="doctor.no_probe")
    shape = Shape(image=image, limits=limits or Limits(), network=network, home=HOME)
    try:
        with anyio.fail_after(_OPEN_S):
            session = await sandbox.prepare(shape)
    except TimeoutError as err:
        raise MachineError(f"the sandbox did not open in {_OPEN_S:.0f} s", code="sandbox.open") from err
    inside = Inside(session)
    try:
        await _settle(session, name, probe)
        yield inside
    finally:
        with anyio.move_on_after(_CLOSE_S, shield=True) as bounded:
            inside.leftovers = (await session.close()).items
        if bounded.cancelled_caught:
            inside.leftovers = (f"a sandbox that did not close in {_CLOSE_S:.0f} s",)


async def _settle(session: Session, name: str, probe: bytes) -> None:
    try:
        with anyio.fail_after(_OPEN_S):
            await session.adopt(Identity(job_key=f"doctor-{name}"))
            command = StepCommand(argv=(PROBE, "hello"), files_in=(FileIn(PROBE, probe, 0o755),), cwd="/")
            running = await session.start(command)
            said = b""
            while piece := await running.read():
                said += piece
            exit_ = await running.wait()
    except TimeoutError as err:
        raise MachineError("the sandbox did not answer in time", code="sandbox.open") from err
    if said.strip() != b"ok hello":
        problem = exit_.problem or f"exit {exit_.code}: {said[:100].decode('utf-8', 'replace')}"
        raise MachineError(f"the probe does not run in this image: {problem}", code="doctor.no_probe")
