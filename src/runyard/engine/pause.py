"""What a job asks of its parent: a person at a paused step (`--pause-on failure`), the repository for a checkout.

The person gets a shell under the step's exact environment, then chooses.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from runyard.engine.state import JobHooks
from runyard.engine.wire import NeedRepository, Paused, TerminalEnded, TerminalOutput
from runyard.job import MachineError, RunyardError
from runyard.sandbox.contract import StepCommand

if TYPE_CHECKING:
    from collections.abc import Callable

    from runyard.engine.state import Frame
    from runyard.engine.wire import PauseAction, Repository
    from runyard.sandbox.contract import Running

_SHELL = ("/bin/sh", "-c", "command -v bash >/dev/null 2>&1 && exec bash --norc --noprofile -i; exec sh -i")
_KEYS_QUEUED = 1024
REPOSITORY_S = 1800.0


class PersonHooks(JobHooks):
    """Carries a pause to the parent and back. One step is paused at a time, with one shell at a time."""

    def __init__(self, send: Callable[[object], None]) -> None:
        self._send = send
        self._choice: asyncio.Future[PauseAction] | None = None
        self._frame: Frame | None = None
        self._shell: asyncio.Task[None] | None = None
        self._keys: asyncio.Queue[bytes] = asyncio.Queue(_KEYS_QUEUED)
        self._repository: asyncio.Future[Repository] | None = None
        self._one_repository = asyncio.Lock()

    async def repository(self, depth: int) -> str:
        """Ask the parent, which holds the token for it; one at a time."""
        async with self._one_repository:
            self._repository = asyncio.get_running_loop().create_future()
            self._send(NeedRepository(depth))
            try:
                async with asyncio.timeout(REPOSITORY_S):
                    answer = await self._repository
            except TimeoutError:
                raise MachineError(
                    f"the repository did not come within {REPOSITORY_S:g} s", code="action.no_repository"
                ) from None
        if answer.problem:
            raise MachineError(answer.problem, code="action.no_repository")
        return answer.git_dir

    def repository_came(self, answer: Repository) -> None:
        """The parent's answer."""
        if self._repository is not None and not self._repository.done():
            self._repository.set_result(answer)

    async def pause(self, frame: Frame) -> PauseAction:
        """Tell the parent, wait for the choice; a cancellation meanwhile means going on."""
        mask = frame.job.masker.mask_text
        frame.log.settle()
        self._frame = frame
        self._choice = asyncio.get_running_loop().create_future()
        self._send(Paused(frame.log.step, mask(frame.name), mask(frame.reason or ""), mask(frame.shown_command)))
        try:
            return await self._choice
        finally:
            self._choice = self._frame = None
            if self._shell is not None:
                self._shell.cancel()
                self._shell = None

    def decided(self, action: PauseAction) -> None:
        """The choice came."""
        if self._choice is not None and not self._choice.done():
            self._choice.set_result(action)

    def interrupt_pause(self) -> None:
        """See JobHooks."""
        self.decided("go_on")

    def open_terminal(self, rows: int, columns: int) -> None:
        """Start the shell; quiet when nothing is paused or one is open."""
        if self._frame is not None and (self._shell is None or self._shell.done()):
            self._shell = asyncio.create_task(self._run_shell(self._frame, rows, columns))

    def type_keys(self, data: bytes) -> None:
        """Keys for the shell; more than a person can type is dropped."""
        if not self._keys.full():
            self._keys.put_nowait(data)

    async def _run_shell(self, frame: Frame, rows: int, columns: int) -> None:
        env, cwd = frame.last_command or (dict(frame.job.base_environment), frame.job.layout.workspace)
        command = StepCommand(argv=_SHELL, env={"TERM": "xterm-256color", **env}, cwd=cwd, terminal=(rows, columns))
        try:
            running = await frame.job.session.start(command)
        except RunyardError as error:
            self._send(TerminalEnded(1, str(error)))
            return
        typing = asyncio.create_task(self._type(running))
        try:
            while data := await running.read():
                self._send(TerminalOutput(data))
            end = await running.wait()
            self._send(TerminalEnded(end.code, end.problem or ""))
        finally:
            typing.cancel()
            await running.signal("kill")

    async def _type(self, running: Running) -> None:
        while True:
            await running.write(await self._keys.get())
