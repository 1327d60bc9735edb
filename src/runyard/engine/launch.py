"""The parent's side of a job process: start it, read what it tells, pass orders down, notice its death.

The parent never parses job output. A job process that dies or whose loop stands still fails alone: what it left open is
closed here with the reason `job_process_lost` or `job_process_stuck`.

    launcher = Launcher()
    launcher.start_early()                       # optional, before an event loop runs: imports go on in parallel
    handle = await launcher.launch(claim, JobSettings(...))
    async for event in handle.events(): ...      # ends after JobFinished; somebody has to read them
    finished = await handle.wait()
    await launcher.close()
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from runyard.engine.early import take
from runyard.engine.server import (
    Ended,
    Kill,
    Start,
    Started,
    encoder,
    tell_decoder,
)
from runyard.engine.wire import (
    Alive,
    Decide,
    Frames,
    Gone,
    Hand,
    JobSettings,
    Kept,
    Masks,
    NeedRepository,
    OpenTerminal,
    PauseAction,
    Paused,
    Release,
    Repository,
    TerminalEnded,
    TerminalInput,
    TerminalOutput,
    frame,
    up_decoder,
)
from runyard.job import JobFinished, MachineError, RunyardError, StepFinished, StepStarted

if TYPE_CHECKING:
    from runyard.engine.server import Tell
    from runyard.engine.wire import Up
    from runyard.job import Claim, Conclusion, JobEvent, Order

__all__ = ["JobHandle", "JobSettings", "Launcher", "Parent", "PausedStep"]

_QUEUED = 64
"""Events held between socket and reader; a frame of log is at most 64 KiB, so a job costs the parent about 4 MiB."""

STUCK_AFTER_S = 30.0
START_TIMEOUT_S = 20.0
END_TIMEOUT_S = 30.0


class PausedStep:
    """A step that failed and waits; `terminal` opens shells in its sandbox, one at a time."""

    def __init__(self, paused: Paused, handle: JobHandle) -> None:
        self.step = paused.step
        self.name = paused.name
        self.reason = paused.reason
        self.command = paused.command
        self._handle = handle

    async def open_terminal(self, rows: int, columns: int) -> None:
        """Start a shell under the step's exact environment and folder; then `read_terminal` until it ends."""
        await self._handle.send(OpenTerminal(rows, columns))

    async def write_terminal(self, data: bytes) -> None:
        """Keys for the shell."""
        await self._handle.send(TerminalInput(data))

    async def read_terminal(self) -> TerminalOutput | TerminalEnded:
        """The next bytes of the shell, or how it ended."""
        return await self._handle.terminal.get()


OnPause: TypeAlias = Callable[[PausedStep], Awaitable[PauseAction]]


class Parent:
    """What a job process asks of whoever holds its claim, and tells it besides events. This one is for nobody."""

    def hide(self, values: tuple[str, ...]) -> None:
        """The job asked to hide these; called before the events that follow are handed on."""

    async def repository(self, depth: int) -> str:
        """A git folder of this machine with the claim's commit. Raises RunyardError."""
        raise MachineError("this job came without a repository", code="action.no_repository")


class JobHandle:
    """One job process, from its hand-out to its end."""

    def __init__(
        self,
        job: int,
        channel: socket.socket,
        launcher: Launcher,
        on_pause: OnPause | None,
        parent: Parent | None = None,
    ) -> None:
        self.pid = 0
        self._parent = parent or Parent()
        self.kept: str | None = None
        self.terminal: asyncio.Queue[TerminalOutput | TerminalEnded] = asyncio.Queue(_QUEUED)
        self._job = job
        self._channel = channel
        self._launcher = launcher
        self._on_pause = on_pause
        self._events: asyncio.Queue[JobEvent | None] = asyncio.Queue(_QUEUED)
        self._finished: JobFinished | None = None
        self._open: dict[int, StepStarted] = {}
        self._stuck = False
        self._gone: Gone | None = None
        self._exit_code: int | None = None
        self.started = asyncio.Event()
        self.ended = asyncio.Event()
        self._result = asyncio.Event()
        self._sending = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._handing: asyncio.Task[None] | None = None
        self._asking: set[asyncio.Task[None]] = set()

    async def events(self) -> AsyncIterator[JobEvent]:
        """Every event in order; the last one is a JobFinished, made here when the process could not send it."""
        while (event := await self._events.get()) is not None:
            yield event

    async def order(self, order: Order) -> None:
        """Send an order down. Quiet when the process is gone."""
        await self.send(order)

    async def wait(self) -> JobFinished:
        """The result, when the process has ended (or keeps its sandbox). Its events have to be read meanwhile."""
        await self._result.wait()
        if self.kept is None:
            try:
                async with asyncio.timeout(END_TIMEOUT_S):
                    await self.ended.wait()
            except TimeoutError:
                self.kill()
        assert self._finished is not None
        return self._finished

    async def release(self) -> None:
        """Let a kept sandbox go and wait for its end. Quiet when nothing is kept."""
        self.kept = None
        await self.send(Release())
        await self.wait()

    def kill(self) -> None:
        """End the process at once; its sandbox goes with it."""
        self._launcher.ask(Kill(self._job))

    async def send(self, message: object) -> None:
        """One frame down. Quiet when the process is gone."""
        loop = asyncio.get_running_loop()
        async with self._sending:
            try:
                await loop.sock_sendall(self._channel, frame(message))
            except (BrokenPipeError, ConnectionError, OSError):
                return

    def hand_over(self, claim: Claim, settings: JobSettings) -> None:
        """Begin to send the claim; it waits in the socket for a process that is still to be forked."""
        self._handing = asyncio.create_task(self.send(Hand(claim, settings)), name=f"claim {claim.spec.key}")

    def give_up(self) -> None:
        """There is no process: the claim goes nowhere."""
        if self._handing is not None:
            self._handing.cancel()
        self._channel.close()

    def begin(self, name: str) -> None:
        """Start reading."""
        self._reader = asyncio.create_task(self._read(), name=f"job {name}")

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        frames = Frames(self._launcher.decoder)
        try:
            while True:
                async with asyncio.timeout(self._launcher.stuck_after_s):
                    data = await loop.sock_recv(self._channel, 262144)
                if not data:
                    break
                for message in frames.feed(data):
                    await self._take(message)
        except TimeoutError:
            self._stuck = True
        except (OSError, ValueError):
            pass
        self.kill()
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await self.ended.wait()
        except TimeoutError:
            self.ended.set()
        self._channel.close()
        if self._finished is None:
            await self._close_for_it()
        self._result.set()

    async def _take(self, message: Up) -> None:
        if isinstance(message, Alive):
            return
        if isinstance(message, Kept):
            self.kept = message.enter
            self._result.set()
        elif isinstance(message, Gone):
            self._gone = message
        elif isinstance(message, Paused):
            task = asyncio.create_task(self._ask_person(message))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        elif isinstance(message, TerminalOutput | TerminalEnded):
            await self.terminal.put(message)
        elif isinstance(message, Masks):
            self._parent.hide(message.values)
        elif isinstance(message, NeedRepository):
            task = asyncio.create_task(self._give_repository(message.depth))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        else:
            await self._tell(message)

    async def _tell(self, event: JobEvent) -> None:
        if isinstance(event, StepStarted):
            self._open[event.step] = event
        elif isinstance(event, StepFinished):
            self._open.pop(event.step, None)
        await self._events.put(event)
        if isinstance(event, JobFinished):
            self._finished = event
            await self._events.put(None)

    async def _give_repository(self, depth: int) -> None:
        try:
            answer = Repository(git_dir=await self._parent.repository(depth))
        except (RunyardError, OSError) as error:
            answer = Repository(problem=str(error) or "the repository could not be fetched")
        await self.send(answer)

    async def _ask_person(self, paused: Paused) -> None:
        action: PauseAction = "go_on"
        if self._on_pause is not None:
            action = await self._on_pause(PausedStep(paused, self))
        await self.send(Decide(action))

    async def _close_for_it(self) -> None:
        """Say what the process could not: how its open steps and the job ended."""
        self._launcher.lost_any = True
        now = time.time_ns()
        result: Conclusion = "failure"
        if self._gone is not None:
            result, code, reason = "cancelled", "lease_lost", self._gone.reason or "the lease was lost"
        elif self._stuck:
            code = "job_process_stuck"
            reason = f"the job process gave no sign of life for {self._launcher.stuck_after_s:g} s and was ended"
        else:
            code = "job_process_lost"
            reason = f"the job process ended without a result ({_ending(self._exit_code)})"
        for step in list(self._open.values()):
            await self._tell(
                StepFinished(
                    step.step,
                    step.name,
                    outcome=result,
                    conclusion=result,
                    time_ns=now,
                    id=step.id,
                    reason=reason,
                    reason_code=code,
                )
            )
        await self._tell(JobFinished(conclusion=result, time_ns=now, reason=reason, reason_code=code))

    def process_started(self, pid: int) -> None:
        """Called by the launcher."""
        self.pid = pid
        self.started.set()

    def process_ended(self, code: int) -> None:
        """Called by the launcher."""
        self._exit_code = code
        self.started.set()
        self.ended.set()


def _ending(code: int | None) -> str:
    if code is None:
        return "the fork server is gone"
    if code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"


class Launcher:
    """Owns the fork server. One a process; jobs are launched side by side."""

    def __init__(self, *, stuck_after_s: float = STUCK_AFTER_S) -> None:
        self.stuck_after_s = stuck_after_s
        self.lost_any = False
        """Whether a job process ended without a result: then something in its name may be left for the reaper."""
        self._control: socket.socket | None = None
        self._server_pid = 0
        self._jobs: dict[int, JobHandle] = {}
        self._next = 0
        self._listener: asyncio.Task[None] | None = None
        self.decoder = up_decoder()

    def start_early(self) -> None:
        """Start the fork server; needs no event loop, returns at once. Safe to repeat.

        To be called by the main thread: the server dies with the thread that started it.
        """
        if self._control is not None:
            return
        self._control, self._server_pid = take()

    async def start(self) -> None:
        """Start the fork server if it isn't, and listen to it. Safe to repeat."""
        self.start_early()
        if self._listener is None:
            self._listener = asyncio.create_task(self._listen(), name="fork server")

    async def launch(
        self, claim: Claim, settings: JobSettings, *, on_pause: OnPause | None = None, parent: Parent | None = None
    ) -> JobHandle:
        """Fork a job process and hand it the claim. Raises MachineError when no process can be started."""
        await self.start()
        assert self._control is not None
        here, there = socket.socketpair()
        self._next += 1
        handle = JobHandle(self._next, here, self, on_pause, parent)
        self._jobs[self._next] = handle
        here.setblocking(False)
        try:
            socket.send_fds(self._control, [encoder.encode(Start(self._next))], [there.fileno()])
            there.close()
            handle.hand_over(claim, settings)
            async with asyncio.timeout(START_TIMEOUT_S):
                await handle.started.wait()
        except (OSError, TimeoutError) as error:
            handle.give_up()
            raise _no_process("the fork server does not answer") from error
        if not handle.pid:
            handle.give_up()
            raise _no_process("the fork server is gone" if handle.ended.is_set() else "the system refused to fork")
        handle.begin(claim.spec.key)
        return handle

    def ask(self, message: Kill) -> None:
        """One request to the server. Quiet when it is gone: its jobs are too."""
        if self._control is not None:
            try:
                self._control.send(encoder.encode(message))
            except OSError:
                return

    async def _listen(self) -> None:
        assert self._control is not None
        loop = asyncio.get_running_loop()
        while True:
            try:
                data = await loop.sock_recv(self._control, 65536)
            except OSError:
                data = b""
            if not data:
                break
            self._told(tell_decoder.decode(data))
        for handle in self._jobs.values():
            handle.ended.set()
            handle.started.set()

    def _told(self, message: Tell) -> None:
        handle = self._jobs.get(message.id)
        if handle is None:
            return
        if isinstance(message, Started):
            handle.process_started(message.pid)
        elif isinstance(message, Ended):
            handle.process_ended(message.code)
            del self._jobs[message.id]

    async def close(self) -> None:
        """End the server and every job process that still runs. A second close is quiet."""
        if self._control is None:
            return
        self._control.close() if self._listener is None else self._control.shutdown(socket.SHUT_RDWR)
        if self._listener is not None:
            await self._listener
            self._listener = None
            self._control.close()
        self._control = None
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await asyncio.to_thread(os.waitpid, self._server_pid, 0)
        except TimeoutError:
            os.kill(self._server_pid, signal.SIGKILL)


def _no_process(why: str) -> MachineError:
    return MachineError(
        f"a job process could not be started: {why}",
        code="engine.no_process",
        remedy="Look at the limits of processes and memory of this user, then try again.",
        retryable=True,
    )
