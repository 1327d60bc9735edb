"""The job process's end of a supervisor: frames out, answers in, on the running event loop.

Answers are decoded into types, because the supervisor lives beside the job. Whatever happens to it, every command that
was started gets its Exit: from the supervisor, or from here when the supervisor is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from runyard.job import MachineError, Usage
from runyard.sandbox import helper
from runyard.sandbox.contract import Exit, ExitReason, FileBack
from runyard.sandbox.enter import wire

if TYPE_CHECKING:
    from collections.abc import Mapping

_SIGNALS: Final = {"interrupt": signal.SIGINT, "terminate": signal.SIGTERM, "kill": signal.SIGKILL}

Back: TypeAlias = tuple[bytes, str | None, int]


class _Answer(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """One frame from the supervisor."""


class _Opened(_Answer, tag="opened", frozen=True):
    first: int
    bwrap: int


class _Failed(_Answer, tag="failed", frozen=True):
    number: int
    word: str
    text: str


class _Exited(_Answer, tag="exit", frozen=True):
    number: int
    code: int
    signal: int | None
    usage: tuple[int, int, int, int, int]
    files: dict[str, Back]
    problem: str | None
    reason: ExitReason | None
    detail: str | None


class _Terminal(_Answer, tag="terminal", frozen=True):
    number: int


class _Signalled(_Answer, tag="signalled", frozen=True):
    number: int


class _Done(_Answer, tag="done", frozen=True):
    number: int
    text: str


class _Listening(_Answer, tag="listening", frozen=True):
    number: int
    port: int


class _Used(_Answer, tag="usage", frozen=True):
    number: int
    counters: tuple[int, int]


class _Lost(_Answer, tag="lost", frozen=True):
    detail: str


class _Closed(_Answer, tag="closed", frozen=True):
    pass


_Any: TypeAlias = _Opened | _Failed | _Exited | _Terminal | _Signalled | _Done | _Listening | _Used | _Lost | _Closed
_DECODER: Final = msgspec.msgpack.Decoder(_Any)


class _Zygote:
    """The one helper process that supervisors are forked from; children of this process share it."""

    def __init__(self) -> None:
        self.sock: socket.socket | None = None
        self.lock = threading.Lock()

    def start(self) -> socket.socket:
        """Start it unless it runs; returns at once, requests wait in its socket."""
        with self.lock:
            if self.sock is None:
                self.sock = socket.socket(fileno=helper.take().detach())
            return self.sock

    def ask(self, request: tuple[object, ...], fds: tuple[int, ...]) -> None:
        """Send a request; a helper that was killed is started again once. Raises MachineError."""
        payload = wire.dump_down(request)
        for _ in range(2):
            sock = self.start()
            try:
                wire.send(sock, payload, fds)
            except (BrokenPipeError, ConnectionError):
                with self.lock:
                    sock.close()
                    self.sock = None
            else:
                return
        raise MachineError("the sandbox's helper process does not start", code="sandbox.helper")


_ZYGOTE: Final = _Zygote()


def warm() -> None:
    """Start the helper process that sandboxes are opened from, so that it is ready when the first one is. At once."""
    _ZYGOTE.start()


class Waiting:
    """A command as the link sees it: where its Exit goes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.exit: asyncio.Future[Exit] = loop.create_future()
        self.terminal: asyncio.Future[int] | None = None


class Link:
    """One supervisor."""

    def __init__(self, sock: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._number = 0
        self._commands: dict[int, Waiting] = {}
        self._answers: dict[int, asyncio.Future[tuple[_Answer, list[int]]]] = {}
        self._opened: asyncio.Future[tuple[int, int, int, int]] = self._loop.create_future()
        self._writable: asyncio.Future[None] | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.lost: str | None = None
        self._loop.add_reader(sock.fileno(), self._readable)

    @classmethod
    def open(cls, plan: dict[str, object], fds: tuple[int, ...]) -> Link:
        """Ask for a sandbox; `opened` tells when it is there. The descriptors may be closed afterwards."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                _ZYGOTE.ask(("open", plan), (theirs.fileno(), *fds))
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        return cls(ours)

    async def opened(self, seconds: float) -> tuple[int, int, int, int]:
        """The first process's pid, bubblewrap's, a descriptor of the owning user namespace and of the network's.

        Raises MachineError with what was said by whoever refused, TimeoutError.
        """
        return await asyncio.wait_for(asyncio.shield(self._opened), seconds)

    # answers

    def _readable(self) -> None:
        for _ in range(16):
            try:
                got = wire.receive(self._sock)
            except BlockingIOError:
                return
            except OSError:
                got = None
            if got is None:
                self._over("the sandbox's supervisor ended")
                return
            payload, fds = got
            try:
                answer = _DECODER.decode(payload)
            except msgspec.DecodeError as err:
                for fd in fds:
                    os.close(fd)
                self._over(f"the sandbox's supervisor said something that can't be read: {err}")
                return
            self._take(answer, fds)

    def _take(self, answer: _Any, fds: list[int]) -> None:
        if isinstance(answer, _Exited):
            waiting = self._commands.pop(answer.number, None)
            if waiting is not None and not waiting.exit.done():
                waiting.exit.set_result(_exit_of(answer))
            if waiting is not None and waiting.terminal is not None and not waiting.terminal.done():
                waiting.terminal.cancel()
        elif isinstance(answer, _Terminal) and fds:
            waiting = self._commands.get(answer.number)
            if waiting is not None and waiting.terminal is not None and not waiting.terminal.done():
                waiting.terminal.set_result(fds.pop())
        elif isinstance(answer, _Opened) and len(fds) == 2 and not self._opened.done():
            self._opened.set_result((answer.first, answer.bwrap, fds[0], fds[1]))
            fds = []
        elif isinstance(answer, _Failed) and answer.number == 0 and not self._opened.done():
            self._opened.set_exception(_refusal(answer))
        elif isinstance(answer, _Lost):
            self.lost = answer.detail
        elif isinstance(answer, (_Failed, _Signalled, _Done, _Listening, _Used)):
            future = self._answers.pop(answer.number, None)
            if future is not None and not future.done():
                future.set_result((answer, fds))
                fds = []
            elif isinstance(answer, _Failed) and (waiting := self._commands.pop(answer.number, None)) is not None:
                waiting.exit.set_result(Exit(code=126, problem=answer.text))
        for fd in fds:
            os.close(fd)

    def _over(self, why: str) -> None:
        """The supervisor is gone: everything that waits for it is told."""
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        self.lost = self.lost or why
        if not self._opened.done():
            self._opened.set_exception(MachineError(f"the sandbox did not open: {why}", code="sandbox.open"))
            self._opened.exception()
        for waiting in self._commands.values():
            if not waiting.exit.done():
                waiting.exit.set_result(Exit(code=137, signal=9, reason="sandbox_lost", detail=self.lost))
            if waiting.terminal is not None and not waiting.terminal.done():
                waiting.terminal.cancel()
        self._commands.clear()
        for future in self._answers.values():
            if not future.done():
                future.set_exception(MachineError(f"the sandbox is gone: {self.lost}", code="sandbox.lost"))
        self._answers.clear()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        if not self.ended.done():
            self.ended.set_result(None)

    # requests

    async def _send(self, frame: tuple[object, ...], fds: tuple[int, ...] = ()) -> None:
        payload = wire.dump_down(frame)
        while True:
            if self.ended.done():
                raise MachineError(f"the sandbox is gone: {self.lost}", code="sandbox.lost")
            try:
                wire.send(self._sock, payload, fds)
            except BlockingIOError:
                await self._until_writable()
            except OSError as err:
                raise MachineError(f"the sandbox is gone: {self.lost or err}", code="sandbox.lost") from err
            else:
                return

    async def _until_writable(self) -> None:
        if self._writable is None or self._writable.done():
            self._writable = self._loop.create_future()
            self._loop.add_writer(self._sock.fileno(), self._now_writable)
        await asyncio.shield(self._writable)

    def _now_writable(self) -> None:
        self._loop.remove_writer(self._sock.fileno())
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def _next(self) -> int:
        self._number += 1
        return self._number

    async def start(self, order: Mapping[str, object], output: int | None) -> tuple[int, Waiting]:
        """Start a command with its output pipe's writing end, or on a terminal; its number and where its Exit comes."""
        if self.lost is not None:
            raise MachineError(f"the sandbox is gone: {self.lost}", code="sandbox.lost")
        number = self._next()
        waiting = self._commands[number] = Waiting(self._loop)
        if output is None:
            waiting.terminal = self._loop.create_future()
        try:
            await self._send(("start", number, order), () if output is None else (output,))
        except BaseException:
            self._commands.pop(number, None)
            raise
        return number, waiting

    async def ask(
        self, kind: str, *rest: object, fds: tuple[int, ...] = (), seconds: float, about: int | None = None
    ) -> tuple[_Answer, list[int]]:
        """Send a request and await its answer. Raises MachineError, also when there is none in time."""
        number = self._next()
        future: asyncio.Future[tuple[_Answer, list[int]]] = self._loop.create_future()
        self._answers[number] = future
        frame = (kind, number, *rest) if about is None else (kind, about, number, *rest)
        try:
            await self._send(frame, fds)
            answer, back = await asyncio.wait_for(future, seconds)
        except TimeoutError as err:
            raise MachineError(f"the sandbox did not answer {kind} in {seconds:g} s", code="sandbox.slow") from err
        finally:
            self._answers.pop(number, None)
        if isinstance(answer, _Failed):
            raise MachineError(f"{kind}: {answer.text}", code="sandbox.call")
        return answer, back

    async def signal(self, number: int, kind: str, *, everyone: bool) -> None:
        """Signal a command; quiet when the sandbox is gone."""
        with contextlib.suppress(MachineError):
            await self.ask("signal", int(_SIGNALS[kind]), everyone, seconds=10, about=number)

    async def left(self, number: int) -> bool:
        """Whether a process of a command is still there; False when the sandbox is gone."""
        with contextlib.suppress(MachineError):
            answer, _ = await self.ask("left", seconds=10, about=number)
            return isinstance(answer, _Done) and answer.text.startswith("ok left")
        return False

    async def listen(self, port: int) -> tuple[socket.socket, int]:
        """A socket that listens inside."""
        answer, fds = await self.ask("listen", port, seconds=10)
        assert isinstance(answer, _Listening)
        sock = socket.socket(fileno=fds[0])
        sock.setblocking(False)
        return sock, answer.port

    async def work(self, kind: str, path: str, fd: int, seconds: float) -> None:
        """`put` or `get` at `path` with a descriptor of the tar. Raises MachineError with what was refused."""
        answer, _ = await self.ask(kind, path, fds=(fd,), seconds=seconds)
        if isinstance(answer, _Done) and not answer.text.startswith("ok"):
            raise MachineError(f"{kind} {path}: {answer.text.removeprefix('failed: ')}", code=f"sandbox.{kind}")

    async def usage(self) -> tuple[int, int]:
        """Peak bytes of memory and microseconds of CPU, 0 where not counted."""
        answer, _ = await self.ask("usage", seconds=10)
        assert isinstance(answer, _Used)
        return answer.counters

    async def close(self, seconds: float) -> bool:
        """End the sandbox; whether the supervisor said so in time."""
        if self.ended.done():
            return True
        with contextlib.suppress(MachineError, TimeoutError):
            await asyncio.wait_for(self._send(("close", 0)), seconds)
        done, _ = await asyncio.wait({self.ended}, timeout=seconds)
        if not done:
            self._over("it was closed")
        return bool(done)


def _exit_of(answer: _Exited) -> Exit:
    wall, cpu, peak, read, written = answer.usage
    usage = Usage(wall_s=wall / 1e6, cpu_s=cpu / 1e6, peak_memory=peak or None, read_bytes=read, written_bytes=written)
    return Exit(
        code=answer.code,
        signal=answer.signal,
        usage=usage,
        files={path: _back(*back) for path, back in answer.files.items()},
        problem=answer.problem,
        reason=answer.reason,
        detail=answer.detail,
    )


_PROBLEMS: Final[dict[str, Literal["missing", "link", "not_a_file", "too_large"]]] = {
    "missing": "missing",
    "link": "link",
    "not_a_file": "not_a_file",
    "too_large": "too_large",
}


def _back(data: bytes, problem: str | None, size: int) -> FileBack:
    return FileBack(data, _PROBLEMS.get(problem) if problem else None, size)


def _refusal(answer: _Failed) -> MachineError:
    from runyard.sandbox import refused

    return refused.explain(answer.word, answer.text)


def _ask_helper(request: tuple[object, ...], seconds: float) -> tuple[_Any, list[int]]:
    """One request to the helper process, one answer. Blocks. Raises MachineError when there is none in time."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            _ZYGOTE.ask(request, (theirs.fileno(),))
        ours.settimeout(seconds)
        try:
            got = wire.receive(ours)
        except TimeoutError as err:
            raise MachineError(f"the sandbox's helper did not answer in {seconds:g} s", code="sandbox.helper") from err
    if got is None:
        raise MachineError("the sandbox's helper ended", code="sandbox.helper")
    return _DECODER.decode(got[0]), got[1]


def listen_inside(pid: int, port: int, seconds: float = 10.0) -> socket.socket:
    """A socket that listens on 127.0.0.1:`port` (0: any) in the network namespace of the process `pid`.

    For sandboxes that have no supervisor of ours, such as an engine's container. Blocks for milliseconds, at most
    `seconds`. Raises MachineError.
    """
    answer, fds = _ask_helper(("listen", pid, port), seconds)
    if isinstance(answer, _Listening) and fds:
        return socket.socket(fileno=fds[0])
    text = answer.text if isinstance(answer, _Failed) else "the helper said something else"
    raise MachineError(f"can't listen inside process {pid}: {text}", code="sandbox.listen")


def overlay_inside(where: tuple[int, int, int | None, str], source: str, target: str, name: str) -> str | None:
    """Lay a folder of the host over one of an open sandbox; None when done, else why not. Blocks, at most 10 s."""
    answer, _ = _ask_helper(("overlay", where, (source, target, name)), 10.0)
    return answer.text if isinstance(answer, _Failed) else None
