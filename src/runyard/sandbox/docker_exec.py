"""The `exec` supervisor: the engine starts each step in the container itself.

For an image without a shell, and for what a shell can't do: a terminal, and variables whose names no shell can export.
An exec costs some sixty milliseconds where a frame costs two, and the engine keeps the step's variables in its memory
until the container is gone (they are in no file, no inspect output and no event), so it is never used unasked.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any, Final

from runyard.job import MachineError, Usage
from runyard.sandbox import docker_tar
from runyard.sandbox.contract import Exit, FileBack
from runyard.sandbox.docker_ask import NoSuchObjectError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from runyard.sandbox.contract import ExitReason, FileOut, SignalKind, StepCommand
    from runyard.sandbox.docker_api import EngineApi, Stream

SIGNALS: Final = {"interrupt": signal.SIGINT, "terminate": signal.SIGTERM, "kill": signal.SIGKILL}

RELEASE_S: Final = 2.0

_REFUSED: Final = "exec failed"
_POLL_S: Final = (0.002, 0.05)


def exec_body(
    command: StepCommand, argv: Iterable[str], started_with: Iterable[str], user: str | None = None
) -> dict[str, Any]:
    """The engine's words for a step. A name without `=` takes a variable of the container away."""
    gone = [name for name in started_with if name not in command.env]
    body: dict[str, Any] = {
        "AttachStdin": command.terminal is not None or command.stdin is not None,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": command.terminal is not None,
        "Cmd": list(argv),
        "WorkingDir": command.cwd,
        "Env": [*(f"{name}={value}" for name, value in command.env.items()), *gone],
        "Privileged": False,
    }
    if user is not None:
        body["User"] = user
    return body


class ExecRunning:
    """A step that the engine started.

    `collect` returns the files out once it has ended; `signal_inside(pid, kind, everyone)` reaches its processes, where
    `pid` is the host's number of its first process.
    """

    def __init__(
        self,
        api: EngineApi,
        process: str,
        stream: Stream,
        *,
        collect: Callable[[], Awaitable[Mapping[str, FileBack]]],
        signal_inside: Callable[[int, SignalKind | None, bool], Awaitable[bool]],
        why: Callable[[], tuple[ExitReason | None, str | None]],
    ) -> None:
        self._api, self._process, self._stream = api, process, stream
        self._collect, self._signal_inside, self._why = collect, signal_inside, why
        self._began = time.monotonic()
        self._head = bytearray()
        self._pid = 0
        self._ended = asyncio.create_task(self._watch(), name=f"exec {process[:12]}")
        self._output: asyncio.Queue[bytes] = asyncio.Queue(maxsize=16)
        self._pump = asyncio.create_task(self._read_stream(), name=f"output of {process[:12]}")
        self._reading = asyncio.Lock()
        self._rest = b""
        self._is_over = False

    async def _read_stream(self) -> None:
        """Both streams of the process in the order of arrival; the last item is empty."""
        while True:
            _, data = await self._stream.read()
            if len(self._head) < 4096:
                self._head += data[:4096]
            await self._output.put(data)
            if not data:
                return

    async def _watch(self) -> Exit:
        """Ask how it goes: often at first, since most steps are short. The stream may outlive the process."""
        pause = _POLL_S[0]
        while True:
            try:
                state = await self._api.exec_state(self._process)
            except NoSuchObjectError:
                return Exit(code=137, signal=9, reason="sandbox_lost", detail="the container is gone")
            self._pid = state.pid or self._pid
            if not state.running and (state.exit_code is not None or self._pid):
                break
            await asyncio.sleep(pause)
            pause = min(_POLL_S[1], pause * 1.5)
        return await self._told(state.exit_code if state.exit_code is not None else 137)

    async def _told(self, code: int) -> Exit:
        problem = None
        if code in (126, 127):
            await asyncio.sleep(0)
            said = self._head.decode("utf-8", "replace").strip()
            if _REFUSED in said:
                problem = said.rpartition("exec: ")[2].removesuffix(": unknown")
                code = 127 if "no such file" in said or "not found" in said else 126
        reason, detail = self._why() if code else (None, None)
        number = code - 128 if 128 < code <= 192 and problem is None else None
        usage = Usage(wall_s=time.monotonic() - self._began)
        files = await self._collect()
        return Exit(code=code, signal=number, usage=usage, files=files, problem=problem, reason=reason, detail=detail)

    async def read(self, limit: int = 65536) -> bytes:
        """The next bytes of output, or b"" at its end."""
        async with self._reading:
            if not self._rest and not self._is_over:
                self._take(await self._output.get())
            data, self._rest = self._rest[:limit], self._rest[limit:]
            return data

    def _take(self, data: bytes) -> None:
        self._rest += data
        self._is_over = not data

    async def write(self, data: bytes) -> None:
        """Bytes for the terminal's keyboard, or for standard input."""
        await self._stream.write(data)

    async def wait(self) -> Exit:
        """How it ended."""
        return await asyncio.shield(self._ended)

    async def signal(self, kind: SignalKind, *, everyone: bool = True) -> None:
        """Send to every process of this command, or to its first alone."""
        if not everyone and self._ended.done():
            return
        for _ in range(200):
            if self._pid or self._ended.done():
                break
            await asyncio.sleep(0.01)
        if self._pid:
            await self._signal_inside(self._pid, kind, everyone)

    async def left(self) -> bool:
        """Whether a process of this command is still there."""
        if not self._ended.done():
            return True
        return bool(self._pid) and await self._signal_inside(self._pid, None, True)

    async def release(self) -> None:
        """When the container is gone: keep what was written and not read yet, and let go of the connection."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_S):
                await asyncio.shield(self._ended)
                while not self._is_over and not self._reading.locked():
                    self._take(await self._output.get())
                await self._pump
        self._stream.close()
        for task in (self._pump, self._ended):
            task.cancel()
        await asyncio.gather(self._pump, self._ended, return_exceptions=True)


async def read_files(api: EngineApi, container: str, wanted: Iterable[FileOut]) -> dict[str, FileBack]:
    """Files out by way of the engine: its archive names a link as one, and nothing over the limit is kept."""
    return {file.path: await _read_file(api, container, file) for file in wanted}


async def _read_file(api: EngineApi, container: str, wanted: FileOut) -> FileBack:
    held = bytearray()
    pieces = api.get_archive(container, wanted.path)
    try:
        async for piece in pieces:
            held += piece
            found = docker_tar.first_member(held)
            if found is None:
                continue
            if found.kind == "link":
                return FileBack(problem="link")
            if found.kind != "file":
                return FileBack(problem="not_a_file")
            if found.size > wanted.limit:
                return FileBack(problem="too_large", size=found.size)
            if len(held) >= found.begin + found.size:
                return FileBack(data=bytes(held[found.begin : found.begin + found.size]), size=found.size)
    except NoSuchObjectError:
        return FileBack(problem="missing")
    finally:
        await pieces.aclose()
    return FileBack(problem="missing")


def signal_from_outside(pid: int, init: int, kind: SignalKind | None, *, everyone: bool) -> bool:
    """Signal a step by the host's process table, or only look; whether there was a process. For root.

    The step's processes are the descendants of `pid`, and the container's orphans that are younger than it. Raises
    MachineError for a user who may not signal them.
    """
    number = SIGNALS[kind] if kind is not None else 0
    if not everyone:
        return _kill(pid, number) > 0
    hit = 0
    for _ in range(40):
        table = _table()
        began = table.get(pid, (0, _start_of(pid)))[1]
        ours = [one for one in table if one != init and _is_ours(one, table, pid, init, began)]
        hit = sum(_kill(one, number) for one in ours)
        if not hit or number != signal.SIGKILL:
            break
    return hit > 0


def _is_ours(one: int, table: Mapping[int, tuple[int, int]], root: int, init: int, began: int) -> bool:
    at = one
    while at in table:
        if at == root:
            return True
        parent, start = table[at]
        if parent == init:
            return began > 0 and start >= began
        at = parent
    return False


def _table() -> dict[int, tuple[int, int]]:
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - hundreds of names, no path is made of them
        if name.isdigit() and (facts := _facts(int(name))) is not None:
            found[int(name)] = facts
    return found


def _facts(pid: int) -> tuple[int, int] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read(1024).rpartition(b") ")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else (int(fields[1]), int(fields[19]))


def _start_of(pid: int) -> int:
    facts = _facts(pid)
    return facts[1] if facts else 0


def _kill(pid: int, number: int) -> int:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return 0
    except PermissionError as refused:
        raise MachineError(
            "this user may not signal the processes of an engine's container",
            code="sandbox.signal",
            remedy="use an image with a shell, or run as root",
        ) from refused
    return 1
