"""Job hooks that run on the host, as the user who started Runyard: a setting of its own, said as a warning in each job.

Nothing of the job is run here: the script is this machine's. It gets the machine's own environment without what
is a secret of the job, the `GITHUB_*` and `RUNNER_*` variables as text, and command files.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from typing import TYPE_CHECKING, Final

from runyard.engine.command_files import COMMAND_FILES, DEFAULT_FILE_LIMIT
from runyard.engine.environment import github_variables, runner_variables
from runyard.engine.output import StepOutput
from runyard.engine.processes import run_process
from runyard.engine.run_step import CommandFiles, fail, obey_files, result_of
from runyard.job import MachineError
from runyard.sandbox.contract import Exit, FileBack, StepCommand

if TYPE_CHECKING:
    from runyard.engine.results import Result
    from runyard.engine.state import Frame
    from runyard.sandbox.contract import SignalKind

_SIGNALS: Final = {"interrupt": signal.SIGINT, "terminate": signal.SIGTERM, "kill": signal.SIGKILL}
_PROGRAMS: Final = {".sh": ("/bin/bash", "-e"), ".js": ("node",), ".ps1": ("pwsh", "-File")}


async def run_on_host(frame: Frame, which: str) -> Result:
    """Run the hook `host_started` or `host_completed`, in an empty folder of its own."""
    job = frame.job
    path: str = getattr(job.settings.hooks, f"host_{which}")
    frame.log.issue(
        "warning", f"This hook runs on the host, outside the sandbox, as uid {os.geteuid()} of this machine: {path}"
    )
    program = _program(path)
    if isinstance(program, str):
        return fail(frame, program)
    with tempfile.TemporaryDirectory(prefix="runyard-hook-", ignore_cleanup_errors=True) as folder:
        files = CommandFiles({each.kind: f"{folder}/{each.prefix}hook" for each in COMMAND_FILES})
        variables = {each.variable: files.paths[each.kind] for each in COMMAND_FILES}
        for made in files.paths.values():
            _make(made)
        secrets = {value for value in (*job.secrets.values(), *job.claim.tokens.values()) if value}
        env = {
            **{name: value for name, value in os.environ.items() if value not in secrets},
            **github_variables(frame.github),
            **runner_variables(job.runner),
            "GITHUB_ACTIONS": "true",
            "RUNYARD_HOOK": f"host_{which}",
            **variables,
        }
        argv = (*program, path)
        frame.shown_command = path
        output = StepOutput(frame)
        command = StepCommand(argv=argv, env=env, cwd=folder)
        end = await run_process(Host(), command, output.pump, frame.control, waits=job.waits, strict=job.strict)
        await output.finish()
        returned = {made: _read(made) for made in files.paths.values()}
        stale = list(job.stale_files)
        obey_files(frame, files, Exit(code=end.code, files=returned))
        job.stale_files = stale  # these are no files of the sandbox
        return result_of(frame, end, argv, folder)


def _program(path: str) -> tuple[str, ...] | str:
    """What runs the hook, or why it can't be run."""
    program = _PROGRAMS.get(os.path.splitext(path)[1])  # noqa: PTH122
    if program is None or not os.path.isabs(path):  # noqa: PTH117
        return f"the hook {path} has to be an absolute path that ends with .sh, .ps1 or .js"
    return program if os.path.isfile(path) else f"the hook {path} is not there"  # noqa: PTH113


def _make(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _read(path: str) -> FileBack:
    with open(path, "rb") as file:
        data = file.read(DEFAULT_FILE_LIMIT + 1)
    if len(data) > DEFAULT_FILE_LIMIT:
        return FileBack(problem="too_large", size=os.path.getsize(path))  # noqa: PTH202
    return FileBack(data)


class Host:
    """Starts a command on the host, in a session of its own that ends with this process."""

    async def start(self, command: StepCommand) -> HostRunning:
        """See Session."""
        from runyard.sandbox.enter.system import die_with_parent

        try:
            process = await asyncio.create_subprocess_exec(
                *command.argv,
                env=dict(command.env),
                cwd=command.cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(signal.SIGKILL),
            )
        except OSError as error:
            raise MachineError(
                f"{command.argv[0]} can't be started on the host: {error.strerror}", code="hook.start"
            ) from error
        return HostRunning(process)


class HostRunning:
    """See Running."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def read(self, limit: int = 65536) -> bytes:
        """See Running."""
        assert self._process.stdout is not None
        return await self._process.stdout.read(limit)

    async def write(self, data: bytes) -> None:
        """See Running. There is no terminal."""
        raise MachineError("this command has no terminal", code="hook.terminal")

    async def wait(self) -> Exit:
        """See Running."""
        code = await self._process.wait()
        return Exit(code=code if code >= 0 else 128 - code, signal=-code if code < 0 else None)

    async def signal(self, kind: SignalKind, *, everyone: bool = True) -> None:
        """See Running."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if everyone:
                os.killpg(self._process.pid, _SIGNALS[kind])
            elif self._process.returncode is None:
                self._process.send_signal(_SIGNALS[kind])

    async def left(self) -> bool:
        """See Running."""
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True
