"""What a built-in action reads out of a sandbox: a program's output as a stream, the files below some paths.

The program is the image's own and runs as the job; what it prints is the job's word and is only ever data here.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from runyard.job import MachineError, RunyardError, WorkError
from runyard.sandbox.contract import FileOut, StepCommand

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Mapping

    from runyard.engine.state import Frame
    from runyard.sandbox.contract import FileIn, Session

_CHUNK: Final = 1 << 20
_SAID_LIMIT: Final = 4096
_LIST_LIMIT: Final = 64 << 20
STALL_S: Final = 300.0
"""How long a program may print nothing."""

_SHELL: Final = 'log=$1; shift; exec "$@" 2>"$log"'
_FIND: Final = 'for each; do if [ -e "$each" ]; then find -L "$each" -type "$kind" -print0; fi; done; :'


class StoppedError(Exception):
    """The step is to end; what was under way has been ended."""


async def stream(
    session: Session,
    argv: tuple[str, ...],
    *,
    env: Mapping[str, str],
    cwd: str,
    scratch: str,
    files: tuple[FileIn, ...] = (),
    good: tuple[int, ...] = (0,),
) -> AsyncIterator[bytes]:
    """What a program prints, as it comes. `scratch` is a name inside for what it says beside that.

    Raises WorkError with those words when it fails, MachineError when it stalls. Abandoned, it is killed.
    """
    running = await session.start(
        StepCommand(
            argv=("/bin/sh", "-c", _SHELL, "sh", scratch, *argv),
            env=env,
            cwd=cwd,
            files_in=files,
            files_out=(FileOut(scratch, _SAID_LIMIT),),
        )
    )
    ended = False
    try:
        while True:
            async with asyncio.timeout(STALL_S):
                data = await running.read(_CHUNK)
            if not data:
                break
            yield data
        async with asyncio.timeout(STALL_S):
            end = await running.wait()
        ended = True
    except TimeoutError as error:
        raise MachineError(f"{argv[0]} printed nothing for {STALL_S:g} s", code="engine.stalled") from error
    finally:
        if not ended:
            with contextlib.suppress(MachineError):
                await running.signal("kill")
    if end.code not in good:
        back = end.files.get(scratch)
        said = back.data.decode("utf-8", "replace").strip() if back is not None else ""
        raise WorkError(f"{argv[0]} failed with exit code {end.code}: {said or end.problem or end.reason or ''}")


async def files_below(session: Session, paths: tuple[str, ...], kind: str, *, env: Mapping[str, str]) -> list[str]:
    """All paths of a kind (`f` or `d`) at and below some, links followed. Raises WorkError beyond 64 MiB of names."""
    parts: list[bytes] = []
    size = 0
    command = ("/bin/sh", "-c", f"kind={kind}; {_FIND}", "sh", *paths)
    async for data in stream(session, command, env=env, cwd="/", scratch="/dev/null"):
        size += len(data)
        if size > _LIST_LIMIT:
            raise WorkError(f"there are too many files below {', '.join(paths)}")
        parts.append(data)
    return [name.decode("utf-8", "surrogateescape") for name in b"".join(parts).split(b"\0") if name]


async def unless_stopped(frame: Frame, work: Awaitable[None]) -> None:
    """Do some work of a step; it is cancelled when the step is to end. Raises StoppedError then."""
    doing = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(frame.control.stopped.wait())
    try:
        await asyncio.wait({doing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            doing.cancel()
            with contextlib.suppress(asyncio.CancelledError, RunyardError):
                await doing
            raise StoppedError
        doing.result()
    finally:
        stopping.cancel()
