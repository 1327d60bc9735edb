"""Which programs a sandbox has: one look for several names, remembered while PATH stays the same."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from runyard.sandbox.contract import StepCommand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runyard.job import Refused
    from runyard.sandbox.contract import FileBack, FileIn, FileOut, Session

# Goes through PATH itself: reading what `command -v` says takes a process for each name, and where a shell runs its own
# applets (busybox) it tells a bare name.
_LOOK = r"""IFS=:
for name; do
  at=
  for folder in $PATH; do [ -f "$folder/$name" ] && [ -x "$folder/$name" ] && { at=$folder/$name; break; }; done
  printf "%s\n" "$at"
done"""
_COMMON = ("bash", "sh", "python", "pwsh", "node")
ASK_TIMEOUT_S = 20.0
_ANSWER_LIMIT = 1 << 20


class Programs:
    """Looks programs up as a step with that PATH would find them. What was not found is looked up again."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._found: dict[tuple[str, str], str] = {}
        self.nodes: dict[str, str | Refused] = {}
        """What `engine.nodes` decided, by `node20` and `node24`."""

    async def first(self, names: tuple[str, ...], path: str) -> str | None:
        """The absolute path of the first of `names` that is found on `path`; an absolute name stands for itself."""
        for name in names:
            if "/" in name:
                return name
            if (name, path) in self._found:
                return self._found[(name, path)]
        await self._look(names, path)
        return next((self._found[(name, path)] for name in names if (name, path) in self._found), None)

    async def _look(self, names: tuple[str, ...], path: str) -> None:
        asked = tuple(dict.fromkeys((*names, *_COMMON)))
        answer = await ask(self._session, ("/bin/sh", "-c", _LOOK, "sh", *asked), {"PATH": path})
        for name, line in zip(asked, answer.decode("utf-8", "replace").split("\n"), strict=False):
            if line.startswith("/"):
                self._found[(name, path)] = line


async def ask(session: Session, argv: tuple[str, ...], env: Mapping[str, str], cwd: str = "/") -> bytes:
    """What a short command of ours prints; empty when it can't be started. Bounded in time and size."""
    running = await session.start(StepCommand(argv=argv, env=env, cwd=cwd))
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            while (data := await running.read()) and size < _ANSWER_LIMIT:
                parts.append(data)
                size += len(data)
            await running.wait()
    except TimeoutError:
        await running.signal("kill")
    return b"".join(parts)


async def exchange(
    session: Session, *, files_in: tuple[FileIn, ...] = (), files_out: tuple[FileOut, ...] = ()
) -> Mapping[str, FileBack]:
    """Write and read files of the sandbox without running anything of the job's."""
    running = await session.start(StepCommand(argv=("/bin/true",), files_in=files_in, files_out=files_out))
    async with asyncio.timeout(ASK_TIMEOUT_S):
        return (await running.wait()).files
