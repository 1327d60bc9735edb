"""A job process: takes one claim over its channel, runs it in a sandbox, tells what happens, and ends.

Its one loop does all of it, so a heartbeat means that the job gets on. It ends at once when its parent closes the
channel, and the sandbox ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
import traceback
from typing import TYPE_CHECKING

from runyard.engine.admitting import narrowed
from runyard.engine.job import JobRun, LeaseGone
from runyard.engine.pause import PersonHooks
from runyard.engine.remote_actions import StoredActions
from runyard.engine.services import open_services
from runyard.engine.wire import (
    HEARTBEAT_S,
    Alive,
    Decide,
    Extend,
    Frames,
    Gone,
    Hand,
    Kept,
    Masks,
    OpenTerminal,
    Release,
    Repository,
    TerminalInput,
    down_decoder,
    frame,
)
from runyard.job import JobFinished, LeaseLost, MachineError, RunyardError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from runyard.engine.wire import Down, JobSettings
    from runyard.job import JobEvent
    from runyard.report.masks import Masker
    from runyard.sandbox.contract import Sandbox

_HIGH_WATER = 4 << 20
"""Bytes of events on their way to the parent before a step's output has to wait."""

_CLOSE_TIMEOUT_S = 30.0
_FLUSH_TIMEOUT_S = 10.0
_DECODER = down_decoder()
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def warm() -> None:
    """Import what a job needs, in the fork server, so that a fork has it."""
    import runyard.engine.actions
    import runyard.engine.nodes
    import runyard.engine.phases
    import runyard.sandbox.bubblewrap
    import runyard.sandbox.network.session
    import runyard.sandbox.registry  # noqa: F401 - all imported for the forks


def warm_for_engine(is_wanted: Callable[[], bool]) -> None:
    """In a process that waits for its job: load what a job on an engine needs too, until somebody wants it to begin.

    Only where an engine was used before: everywhere else it would be memory for nothing.
    """
    from importlib import import_module

    from runyard.sandbox import records

    if not records.uses_engines(records.state_folder()):
        return
    rooms = ("sandbox.docker_api", "sandbox.docker", "sandbox.docker_session", "engine.initialize")
    for name in ("h11", *(f"runyard.{room}" for room in rooms)):
        if is_wanted():
            return
        with contextlib.suppress(ImportError):  # told by the job that needs it
            import_module(name)


def serve_job(channel: socket.socket) -> int:
    """Run the one job that comes over `channel`; returns the exit code of the process."""
    try:
        return asyncio.run(_serve(channel))
    except Exception:  # noqa: BLE001 - the last frame of a process: the parent says job_process_lost
        traceback.print_exc(file=sys.stderr)
        return 70


class Channel(asyncio.Protocol):
    """The socket to the parent: events out, with a bound on what is under way; frames in."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.incoming: asyncio.Queue[Down | None] = asyncio.Queue()
        self._frames = Frames(_DECODER)
        self._writable = asyncio.Event()
        self._writable.set()
        self.closed = asyncio.Event()
        self._unsent: list[bytes] = []
        self.masker: Masker | None = None
        """Where somebody above has to know added masks before the bytes that follow."""
        self.until_s: float | None = None
        """The end of the lease on the clock since boot; None where nobody else could take the job."""
        self.out_of_time: Callable[[], None] = lambda: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the bound."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=_HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        """Whole frames go to the queue; their number is what one parent sends, so it needs no bound."""
        for message in self._frames.feed(data):
            self.incoming.put_nowait(message)

    def eof_received(self) -> bool:
        """The parent is gone."""
        self._end()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The parent is gone."""
        self._end()

    def pause_writing(self) -> None:
        """Too much is under way."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Enough has left."""
        self._writable.set()

    def _end(self) -> None:
        self.closed.set()
        self._writable.set()
        self.incoming.put_nowait(None)

    def emit(self, event: JobEvent) -> None:
        """See Emitter."""
        if self.masker is not None and (added := self.masker.take_added()):
            self.send(Masks(added))
        self.send(event)

    def send(self, message: object) -> None:
        """One frame up, together with what else is told in this turn of the loop; quiet when the parent is gone."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._write)
        self._unsent.append(frame(message))

    def _write(self) -> None:
        """One call, and one awakening of the parent, for several frames: between two steps there are four or more."""
        told, self._unsent = self._unsent, []
        if told and not self.closed.is_set():
            self.transport.write(b"".join(told))

    async def drain(self) -> None:
        """See Emitter."""
        await self._writable.wait()

    async def flush(self) -> None:
        """Wait until everything is on its way."""
        self._write()
        self.transport.set_write_buffer_limits(high=0)
        try:
            async with asyncio.timeout(_FLUSH_TIMEOUT_S):
                await self._writable.wait()
        except TimeoutError:
            return


async def _serve(channel: socket.socket) -> int:
    loop = asyncio.get_running_loop()
    channel.setblocking(False)
    _, wire = await loop.create_connection(Channel, sock=channel)
    hand = await wire.incoming.get()
    if not isinstance(hand, Hand):
        return 1
    beating = asyncio.create_task(_beat(wire))
    try:
        return await _run_job(hand, wire)
    finally:
        beating.cancel()
        await wire.flush()


async def _beat(wire: Channel) -> None:
    while True:
        wire.send(Alive())
        if wire.until_s is not None and time.clock_gettime(_BOOT_CLOCK) >= wire.until_s:
            wire.out_of_time()
        await asyncio.sleep(HEARTBEAT_S)


async def _run_job(hand: Hand, wire: Channel) -> int:
    try:
        sandbox = open_backend(hand.settings)
        hooks = PersonHooks(wire.send)
        store = StoredActions(hand.claim, hand.settings)
        claim = narrowed(hand.claim, hand.settings.policy)
        services = open_services(hand.settings, hand.claim)
        run = JobRun(claim, hand.settings, sandbox=sandbox, emitter=wire, hooks=hooks, actions=store, services=services)
        store.stop = run.is_stopping
        if not hand.settings.own_machine:
            wire.masker = run.job.masker
        wire.out_of_time = lambda: run.order(LeaseLost("its lease ran out and nobody extended it"))
    except RunyardError as error:
        code = "unavailable" if isinstance(error, MachineError) else "invalid_job"
        wire.send(JobFinished("failure", time.time_ns(), reason=str(error), reason_code=code))
        return 0
    released = asyncio.Event()
    obeying = asyncio.create_task(_obey(run, hooks, wire, released))
    working = asyncio.create_task(run.run())
    await asyncio.wait({working, obeying}, return_when=asyncio.FIRST_COMPLETED)
    if not working.done():
        # The parent is gone: nobody is left to tell, and the sandbox ends with this process.
        os._exit(1)
    try:
        finished = await working
    except LeaseGone as gone:
        wire.send(Gone(str(gone)))
        return 0
    wire.send(finished)
    if run.keeps and run.session is not None:
        wire.send(Kept(run.session.how_to_enter() or ""))
        await asyncio.wait({asyncio.ensure_future(released.wait()), obeying}, return_when=asyncio.FIRST_COMPLETED)
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await run.session.close()
    return 0


async def _obey(run: JobRun, hooks: PersonHooks, wire: Channel, released: asyncio.Event) -> None:
    """What comes down, until the parent is gone."""
    while (message := await wire.incoming.get()) is not None:
        match message:
            case Decide():
                hooks.decided(message.action)
            case OpenTerminal():
                hooks.open_terminal(message.rows, message.columns)
            case TerminalInput():
                hooks.type_keys(message.data)
            case Release():
                released.set()
            case Extend():
                wire.until_s = message.until_s
            case Repository():
                hooks.repository_came(message)
            case Hand():
                return
            case _:
                run.order(message)


def open_backend(settings: JobSettings) -> Sandbox:
    """The backend that the settings name. Raises MachineError where it isn't there."""
    from runyard.sandbox.registry import open_sandbox

    return open_sandbox(settings.sandbox, known=settings.known)
