"""The `sh` supervisor: POSIX shells inside a container, one round trip a step.

A lane is one shell that runs one step at a time, in its foreground, so that the step's signals are as they should be.
The container's first process is the first lane; when several steps run at a time, or one has to be signalled, the
engine starts another. Frames and pipes live in a folder of the host that the container sees read-only: one pipe for a
step's output, which ends when the last process lets go of it, and one for its answer. A frame holds a step's variables;
it lies in memory, in a folder that only this user can reach, and is gone as soon as the step runs.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import select
import shutil
import stat
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from runyard.job import MachineError, Usage
from runyard.sandbox import sh_frame
from runyard.sandbox.contract import Exit, FileBack, StepCommand

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from runyard.sandbox.contract import ExitReason, FileOut, SignalKind

HELLO_S: Final = 10.0
PIPE_BYTES: Final = 1 << 20
_LANES: Final = 64
_READERS: Final = ThreadPoolExecutor(max_workers=_LANES, thread_name_prefix="output")


class Limits(Protocol):
    """What the supervisor asks of the one who knows the sandbox's limits."""

    def before(self) -> object:
        """A note of the counters before a step."""

    def transferred(self) -> tuple[int, int] | None:
        """Bytes read and written so far, None where nobody counts them."""

    def why(self, before: object) -> tuple[ExitReason | None, str | None]:
        """Which limit was hit since `before`, and the words with peak and limit."""

    def peak_memory(self) -> int | None:
        """The most memory the sandbox held so far, in bytes."""


def runtime_folder() -> Path:
    """Where this user's pipes and frames live: in memory where the machine has such a place; made with mode 0700."""
    named = os.environ.get("RUNYARD_RUNTIME_DIR")
    user = os.geteuid()
    wanted = [
        Path(folder) / "runyard"
        for folder in (os.environ.get("XDG_RUNTIME_DIR"), "/run" if user == 0 else None)
        if folder
    ]
    wanted = [Path(named)] if named else [*wanted, Path(f"/dev/shm/runyard-{user}")]
    for folder in [*wanted, Path(tempfile.gettempdir()) / f"runyard-{user}"]:
        if named or _in_memory(folder.parent):
            break
    folder.mkdir(mode=0o700, parents=bool(named), exist_ok=True)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != user or facts.st_mode & 0o077:
        raise MachineError(
            f"{folder} is not a folder of this user alone",
            code="sandbox.runtime",
            remedy="name another with RUNYARD_RUNTIME_DIR",
        )
    return folder


def _in_memory(folder: Path) -> bool:
    """Whether the folder is there, writable, and on a memory-backed file system."""
    if not os.access(folder, os.W_OK):
        return False
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
        kinds = {fields[4]: fields[fields.index("-") + 1] for fields in (line.split() for line in lines)}
    while str(folder) not in kinds:
        folder = folder.parent
    return kinds[str(folder)] == "tmpfs"


class Lane:
    """One shell inside."""

    def __init__(self, number: int, ask: int, told: int) -> None:
        self.number = number
        self.ask = ask
        self.told = told
        self.pid: int | None = None
        self.cpu_s = 0.0
        self.step: ShRunning | None = None
        self.is_lost = False
        self.ready = asyncio.Event()


class ShSupervisor:
    """The lanes of one container and the steps on them.

    `open_lane(argv)` has the engine start a shell in the container; the first lane is started by the container itself.
    """

    def __init__(
        self,
        folder: Path,
        shell: str,
        names: tuple[str, ...],
        search_path: str,
        open_lane: Callable[[list[str]], Awaitable[None]],
    ) -> None:
        self.folder = folder
        self.limits: Limits | None = None
        self.on_lost: Callable[[], None] = lambda: None
        self._shell, self._names, self._search_path = shell, names, search_path
        self._open_lane = open_lane
        self._ending = secrets.token_hex(16)
        self._lanes: list[Lane] = []
        self._latest: ShRunning | None = None
        self._running: set[ShRunning] = set()
        self._number = 0
        self._opening = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        folder.mkdir(mode=0o755)
        folder.chmod(0o755)

    # lanes

    def lane_argv(self) -> list[str]:
        """Prepare the next lane; returns what has to be run inside."""
        number = len(self._lanes)
        if number >= _LANES:
            raise MachineError(f"more than {_LANES} steps at a time in one sandbox", code="sandbox.lanes")
        ask, told = self.folder / f"ask.{number}", self.folder / f"told.{number}"
        for pipe in (ask, told):
            os.mkfifo(pipe)
            pipe.chmod(0o666)
        lane = Lane(
            number, os.open(ask, os.O_RDWR | os.O_CLOEXEC), os.open(told, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        )
        self._lanes.append(lane)
        self._loop.add_reader(lane.told, self._hear, lane)
        program = sh_frame.loop_program(self._shell, number, self._ending, self._names, self._search_path)
        self._write(f"loop.{number}", program)
        return [self._shell, f"{sh_frame.RENDEZVOUS}/loop.{number}"]

    async def wait_ready(self, timeout_s: float = HELLO_S) -> None:
        """Wait until the newest lane has said hello. Raises MachineError."""
        lane = self._lanes[-1]
        try:
            async with asyncio.timeout(timeout_s):
                await lane.ready.wait()
        except TimeoutError as late:
            self._lose(lane)
            raise MachineError(
                f"the shell inside did not answer within {timeout_s:g} s",
                code="sandbox.supervisor",
                remedy="the engine has to run on this machine and see this user's files",
            ) from late
        if lane.is_lost:
            raise MachineError("the shell inside ended at once", code="sandbox.supervisor")

    def _hear(self, lane: Lane) -> None:
        try:
            said = os.read(lane.told, 4096)
        except BlockingIOError:
            return
        if not said:
            self._lose(lane)
            return
        for line in said.decode("utf-8", "replace").splitlines():
            if line.startswith("hello "):
                # A second hello: the shell could not fork, ended, and began again in its own place.
                try:
                    lane.pid = sh_frame.parse_stat(line.removeprefix("hello "))[0]
                except (ValueError, IndexError):
                    continue
                lane.cpu_s = 0.0
                lane.ready.set()

    def _lose(self, lane: Lane) -> None:
        if lane.is_lost:
            return
        lane.is_lost = True
        self._loop.remove_reader(lane.told)
        os.close(lane.told)
        os.close(lane.ask)
        lane.ready.set()
        if lane.step is not None:
            lane.step.end_lost()
        if lane.number == 0:
            self.on_lost()

    async def open_spare(self) -> None:
        """Open another lane before it is needed."""
        async with self._opening:
            await self._open_lane(self.lane_argv())
            await self.wait_ready()

    @property
    def is_idle(self) -> bool:
        """Whether the container's first shell runs no step, so that it ends when it is let go of."""
        return bool(self._lanes) and not self._lanes[0].is_lost and self._lanes[0].step is None

    async def _free_lane(self) -> Lane:
        """A lane without a step; opens one where all are busy. Raises MachineError when the sandbox is gone."""
        async with self._opening:
            if not self._lanes or self._lanes[0].is_lost:
                raise MachineError("the sandbox is gone", code="sandbox.lost")
            for lane in self._lanes:
                if lane.step is None and not lane.is_lost:
                    return lane
            await self._open_lane(self.lane_argv())
            await self.wait_ready()
            return self._lanes[-1]

    # steps

    async def start(self, command: StepCommand, *, run: bool = True) -> ShRunning:
        """Start a command; without `run` only its files travel."""
        lane = await self._free_lane()
        self._number += 1
        number = self._number
        try:
            frame = sh_frame.write_step(number, command, run=run, has_input=command.stdin is not None)
        except ValueError as bad:
            return self._never_ran(number, command, str(bad))
        step = self._step(number, lane, command.files_out, has_output=run)
        if run:
            if self._latest is not None:
                self._latest.following = step
            self._latest = step
            for other in self._running:
                other.mixed = step.mixed = True
            self._running.add(step)
            step.before = self.limits.before() if self.limits else None
            step.moved = self.limits.transferred() if self.limits else None
        if command.stdin is not None:
            self._write(f"{number}.in", command.stdin)
        self._ask(lane, number, frame)
        return step

    def _never_ran(self, number: int, command: StepCommand, why: str) -> ShRunning:
        step = ShRunning(self, number, None, sh_frame.Answer(command.files_out, self._ending), (-1, -1))
        step.finish(Exit(code=126, problem=why))
        return step

    def _step(self, number: int, lane: Lane, files_out: tuple[FileOut, ...], *, has_output: bool) -> ShRunning:
        fds = []
        for kind in ("back", "out"):
            if kind == "out" and not has_output:
                fds.append(-1)
                continue
            path = f"{self.folder}/{number}.{kind}"
            os.mkfifo(path)
            os.chmod(path, 0o666)  # noqa: PTH101 - a few microseconds on each step's path
            fds.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        back, out = fds
        if out >= 0:
            _widen(out)
        step = ShRunning(self, number, lane, sh_frame.Answer(files_out, self._ending), (back, out))
        lane.step = step
        self._loop.add_reader(back, step.hear)
        return step

    def _ask(self, lane: Lane, number: int, frame: bytes) -> None:
        self._write(str(number), frame)
        os.write(lane.ask, b"%d\n" % number)

    def _write(self, name: str, data: bytes) -> None:
        fd = os.open(f"{self.folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.fchmod(fd, 0o644)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)

    def forget(self, number: int) -> None:
        """Remove the names of a frame and its pipes; what is open stays open."""
        for name in (str(number), f"{number}.out", f"{number}.back", f"{number}.in"):
            try:
                os.unlink(f"{self.folder}/{name}")  # noqa: PTH108 - a few microseconds on each step's path
            except FileNotFoundError:
                continue

    def ended(self, step: ShRunning) -> None:
        """A step is over: its lane is free."""
        self._running.discard(step)
        self.forget(step.number)

    async def signal(self, step: ShRunning, kind: SignalKind | None, *, everyone: bool) -> bool:
        """Signal a step's processes from another lane; whether one was reached. Without a kind it only looks.

        Raises MachineError when no lane can be opened.
        """
        if step.lane is None or step.told.pid is None or not self._lanes or self._lanes[0].is_lost:
            return False
        lane = await self._free_lane()
        self._number += 1
        frame = sh_frame.write_signal(
            self._number,
            kind,
            step.told,
            lane=step.lane.pid or 1,
            lanes=[lane.pid for lane in self._lanes if lane.pid is not None],
            before=step.following.told if step.following is not None and step.following.told.pid else None,
            mixed=step.mixed,
            everyone=everyone,
        )
        order = self._step(self._number, lane, (), has_output=False)
        self._ask(lane, self._number, frame)
        try:
            async with asyncio.timeout(HELLO_S):
                return (await order.wait()).code == 1
        except TimeoutError as late:
            raise MachineError("the sandbox did not take a signal in time", code="sandbox.supervisor") from late

    def close(self) -> None:
        """Let go of every lane: the shells end, and the container with them. Safe to repeat."""
        for lane in self._lanes:
            self._lose(lane)
        shutil.rmtree(self.folder, ignore_errors=True)


class ShRunning:
    """A step on a lane."""

    def __init__(
        self, supervisor: ShSupervisor, number: int, lane: Lane | None, answer: sh_frame.Answer, pipes: tuple[int, int]
    ) -> None:
        self.number = number
        self.lane = lane
        self.following: ShRunning | None = None
        self.mixed = False
        self.before: object = None
        self.moved: tuple[int, int] | None = None
        self._supervisor = supervisor
        self._answer = answer
        self._back, self._out = pipes
        self._began = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._started = asyncio.Event()
        self._exit: asyncio.Future[Exit] = self._loop.create_future()
        self._reading = asyncio.Lock()
        self._read: asyncio.Future[bytes | None] | None = None
        self._rest = b""

    @property
    def told(self) -> sh_frame.Wire:
        """What the answer has said so far."""
        return self._answer.told

    # answers

    def hear(self) -> None:
        """The pipe of the answer has something."""
        try:
            data = os.read(self._back, 1 << 18)
        except BlockingIOError:
            return
        try:
            self._answer.feed(data)
        except sh_frame.GarbledError as bad:
            self._end(self._lost_exit(f"{bad}; the job wrote into its supervisor's pipe"))
            return
        if self.told.pid is not None and not self._started.is_set():
            self._started.set()
            self._supervisor.forget(self.number)
        if self.told.done:
            self._end(self._exit_told())
        elif not data:
            self.end_lost()

    def end_lost(self) -> None:
        """The shell went away, or began anew because it could not fork."""
        self._end(self._lost_exit("the process that supervises the sandbox has ended"))

    def _lost_exit(self, words: str) -> Exit:
        reason, detail = self._why()
        if self.lane is not None and not self.lane.is_lost and reason is None and self.told.pid is None:
            # It still listens but could not start anything: only a full process table does that.
            reason, detail = "too_many_processes", "no process could be started"
        if reason is None:
            return Exit(code=137, signal=9, usage=self._usage(), reason="sandbox_lost", detail=words)
        return Exit(code=137, signal=9, usage=self._usage(), reason=reason, detail=detail)

    def _exit_told(self) -> Exit:
        told = self.told
        code = told.code if told.code is not None else 137
        # A shell says 128 + n both for a signal and for a process that chose that number.
        signal = code - 128 if 128 < code <= 128 + 64 and told.problem is None else None
        reason, detail = self._why() if code else (None, None)
        return Exit(
            code=code,
            signal=signal,
            usage=self._usage(),
            files=self._files(),
            problem=told.problem,
            reason=reason,
            detail=detail,
        )

    def _files(self) -> Mapping[str, FileBack]:
        return {
            out.path: self.told.files.get(at, FileBack(problem="missing")) for at, out in enumerate(self._answer.files)
        }

    def _why(self) -> tuple[ExitReason | None, str | None]:
        limits = self._supervisor.limits
        return limits.why(self.before) if limits is not None and self.before is not None else (None, None)

    def _usage(self) -> Usage:
        cpu_s = 0.0
        if self.lane is not None and self.told.cpu_s is not None:
            cpu_s = max(0.0, self.told.cpu_s - self.lane.cpu_s)
            self.lane.cpu_s = self.told.cpu_s
        limits = self._supervisor.limits
        read, written = None, None
        if limits is not None and self.moved is not None and (now := limits.transferred()) is not None:
            read, written = now[0] - self.moved[0], now[1] - self.moved[1]
        return Usage(
            wall_s=time.monotonic() - self._began,
            cpu_s=cpu_s,
            peak_memory=limits.peak_memory() if limits else None,
            read_bytes=read,
            written_bytes=written,
        )

    def _end(self, how: Exit) -> None:
        if self._exit.done():
            return
        if self._back >= 0:
            self._loop.remove_reader(self._back)
            os.close(self._back)
            self._back = -1
        if self.lane is not None and self.lane.step is self:
            self.lane.step = None
        self._supervisor.ended(self)
        self.finish(how)

    def finish(self, how: Exit) -> None:
        """Say how it ended. What never ran never opened its output, whose end would not be seen."""
        if self.told.pid is None and self._out >= 0:
            self._close_output()
        self._exit.set_result(how)
        self._started.set()

    # Running

    async def read(self, limit: int = 65536) -> bytes:
        """The next bytes of output, or b"" at its end."""
        async with self._reading:
            await self._started.wait()
            while not self._rest and self._out >= 0:
                if self._read is None:
                    if not await _has_data(self._loop, self._out):
                        self._close_output()
                        break
                    self._read = self._loop.run_in_executor(_READERS, _read_some, self._out, limit)
                data = await asyncio.shield(self._read)
                self._read = None
                if data == b"":
                    self._close_output()
                self._rest = data or b""
            data, self._rest = self._rest[:limit], self._rest[limit:]
            return data

    def _close_output(self) -> None:
        os.close(self._out)
        self._out = -1

    async def write(self, data: bytes) -> None:
        """There is no keyboard."""
        raise MachineError("this command has no terminal", code="sandbox.terminal")

    async def wait(self) -> Exit:
        """How it ended."""
        return await asyncio.shield(self._exit)

    async def signal(self, kind: SignalKind, *, everyone: bool = True) -> None:
        """Send to every process of this command, or to its first alone."""
        if not everyone and self._exit.done():
            return
        try:
            async with asyncio.timeout(HELLO_S):
                await self._started.wait()
        except TimeoutError:
            return
        await self._supervisor.signal(self, kind, everyone=everyone)

    async def left(self) -> bool:
        """Whether a process of this command is still there."""
        return not self._exit.done() or await self._supervisor.signal(self, None, everyone=True)

    def __del__(self) -> None:
        if self._out >= 0 and self._read is None:
            self._close_output()


async def _has_data(loop: asyncio.AbstractEventLoop, fd: int) -> bool:
    """Wait until a pipe has something (True) or has ended (False). Asks without touching the pipe's lock."""
    ready: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(fd, tell)
    try:
        await ready
    finally:
        loop.remove_reader(fd)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return any(events & select.POLLIN for _, events in poll.poll(0))


def _read_some(fd: int, limit: int) -> bytes | None:
    """Read in a thread.

    While a job's process splices into its output from a socket that is quiet, the kernel holds the lock of the pipe,
    and whoever reads waits without being interruptible. That must not be the loop that serves the socket.
    """
    try:
        return os.read(fd, limit)
    except BlockingIOError:
        return None


def _widen(pipe: int) -> None:
    """A larger pipe means fewer wake-ups for a step that writes a lot; users have a quota of them."""
    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        return
