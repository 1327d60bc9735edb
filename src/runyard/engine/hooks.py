"""Job hooks: scripts of this machine that run before the first step and after the last one (job-semantics 16).

Inside the sandbox, shown read-only, in both modes (deviation D14). A hook that is to run on the host is another setting
(`engine.host_hooks`) with a warning in each job's log.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
import posixpath
import shutil
import tempfile
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.action.node import INSIDE
from runyard.engine.nodes import node_for
from runyard.engine.phases import node_version
from runyard.engine.results import Result
from runyard.engine.run_step import fail, run_command
from runyard.engine.scripts import command_arguments
from runyard.engine.state import PostStep
from runyard.job import Refused, RunStep, TextToken
from runyard.sandbox.contract import Mount

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from runyard.engine.state import Frame, Job

STARTED: Final = "Set up runner"
COMPLETED: Final = "Complete runner"
HOOK_LIMIT: Final = 4 << 20
"""Bytes of a hook."""

_KINDS: Final = (".sh", ".ps1", ".js")
_WHICH: Final = ("started", "completed")


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """A hook as the job sees it. `problem` says why it can't be run; then it fails, as on GitHub."""

    path: str
    inside: str = ""
    problem: str = ""


async def place_hooks(job: Job) -> tuple[Mount, ...]:
    """Copy the hooks to where the sandbox can be shown them; before it opens. Fills `job.hook_files`."""
    mounts: list[Mount] = []
    for which in _WHICH:
        path: str = getattr(job.settings.hooks, which)
        if not path:
            continue
        keep = f"{job.settings.cache_dir or job.scratch()}/hooks"
        try:
            folder = await asyncio.to_thread(_copy, path, keep)
        except OSError as error:
            job.hook_files[which] = Hook(path=path, problem=f"the hook {path} can't be read: {error.strerror or error}")
            continue
        except ValueError as error:
            job.hook_files[which] = Hook(path=path, problem=str(error))
            continue
        target = f"{INSIDE}/hooks/{which}"
        mounts.append(Mount(source=folder, target=target))
        job.hook_files[which] = Hook(path=path, inside=f"{target}/{posixpath.basename(path)}")
    return tuple(mounts)


def _copy(path: str, keep: str) -> str:
    """A folder with a copy of the script alone, named by what is in it: what a job is shown doesn't change under it."""
    if not path.startswith("/"):
        raise ValueError(f"the hook {path!r} has to be an absolute path")
    name = posixpath.basename(path)
    if posixpath.splitext(name)[1] not in _KINDS:
        raise ValueError(f"the hook {path} has to end with {', '.join(_KINDS)}")
    with open(path, "rb") as file:
        data = file.read(HOOK_LIMIT + 1)
    if len(data) > HOOK_LIMIT:
        raise ValueError(f"the hook {path} is larger than {HOOK_LIMIT >> 20} MiB")
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape") + b"\0" + data).hexdigest()
    folder = f"{keep}/{digest}"
    if _holds(f"{folder}/{name}", data):
        return folder
    os.makedirs(keep, mode=0o755, exist_ok=True)  # noqa: PTH103
    made = tempfile.mkdtemp(prefix="new-", dir=keep)
    with open(f"{made}/{name}", "wb") as file:
        file.write(data)
    os.chmod(f"{made}/{name}", 0o555)  # noqa: PTH101
    os.chmod(made, 0o755)  # noqa: PTH101
    try:
        os.rename(made, folder)  # noqa: PTH104
    except OSError:
        if not _holds(f"{folder}/{name}", data):
            return made  # somebody changed the copy that was kept; this job gets its own
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _holds(path: str, data: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(data) + 1) == data
    except OSError:
        return False


def started_hooks(job: Job) -> list[tuple[str, Callable[[Frame], Awaitable[Result]]]]:
    """The records to run before the first step, with their names; those of the host first."""
    found: list[tuple[str, Callable[[Frame], Awaitable[Result]]]] = []
    if job.settings.hooks.host_started:
        found.append((f"{STARTED} on the host", functools.partial(_run_on_host, which="started")))
    if job.settings.hooks.started:
        found.append((STARTED, functools.partial(run_hook, which="started")))
    return found


def register_completed(job: Job) -> None:
    """Put the completed hooks below all post steps: they run last, the host's at the very end."""
    step = RunStep(id="", number=0, script=TextToken(""), condition="always()")
    wanted: list[PostStep] = []
    if job.settings.hooks.host_completed:
        run = functools.partial(_run_on_host, which="completed")
        wanted.append(PostStep(f"{COMPLETED} on the host", step, job.scope, {}, run))
    if job.settings.hooks.completed:
        wanted.append(PostStep(COMPLETED, step, job.scope, {}, functools.partial(run_hook, which="completed")))
    job.posts[:0] = wanted


async def run_hook(frame: Frame, which: str) -> Result:
    """A hook in the sandbox: neither the workflow's nor the job's `env`; what it writes to command files counts."""
    job = frame.job
    _prepare(frame)
    if job.skips_everything:
        return Result.SKIPPED
    hook = job.hook_files[which]
    frame.log.say(f"A hook of this machine for jobs that have {which}: {hook.path}")
    if hook.problem:
        return fail(frame, hook.problem)
    argv = await _arguments(frame, hook.inside)
    if isinstance(argv, str):
        return fail(frame, argv)
    frame.shown_command = hook.inside
    frame.log.say(f"##[group]Run '{hook.inside}'\nshell: {argv[0]}\n##[endgroup]", "command")
    result = await run_command(frame, argv=argv, cwd=job.layout.workspace)
    return Result.FAILURE if frame.command_failed and result is Result.SUCCESS else result


async def _run_on_host(frame: Frame, which: str) -> Result:
    from runyard.engine.host_hooks import run_on_host

    _prepare(frame)
    if frame.job.skips_everything:
        return Result.SKIPPED
    return await run_on_host(frame, which)


def _prepare(frame: Frame) -> None:
    frame.condition = "always()"
    frame.env.clear()
    frame.own_env.clear()


async def _arguments(frame: Frame, path: str) -> tuple[str, ...] | str:
    """The command for a hook by its ending, or why there is none."""
    job = frame.job
    ending = posixpath.splitext(path)[1]
    if ending == ".js":
        node = await node_for(job, node_version("node20", {}, job.settings.runner_env))
        return f"the hook {path} needs {node}" if isinstance(node, Refused) else (node, path)
    programs = ("bash", "sh") if ending == ".sh" else ("pwsh", "powershell")
    program = await job.programs.first(programs, job.base_environment["PATH"])
    if program is None:
        return f"the hook {path} needs {' or '.join(programs)}, which this image doesn't have"
    template = "-e {0}" if ending == ".sh" else "-command \". '{0}'\""
    return (program, *command_arguments(template, path))
