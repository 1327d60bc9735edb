"""A `run` step: its script in a shell, with fresh command files, in one round trip (job-semantics 8 and 11)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from runyard.engine.command_files import COMMAND_FILES, DEFAULT_FILE_LIMIT, FileKind, read_command_files
from runyard.engine.environment import effective_path, process_environment
from runyard.engine.evaluate import text_of
from runyard.engine.output import StepOutput
from runyard.engine.processes import run_process
from runyard.engine.results import Result
from runyard.engine.scripts import (
    ShellError,
    choose_shell,
    command_arguments,
    first_line,
    prelude,
    script_body,
)
from runyard.job import Summary
from runyard.sandbox.contract import FileBack, FileIn, FileOut, StepCommand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runyard.engine.command_files import FileEffects
    from runyard.engine.services import Kind
    from runyard.engine.state import Frame, Job
    from runyard.job import RunStep
    from runyard.sandbox.contract import Exit


_EVENT_AGAIN_BYTES = 256 << 10


class CommandFiles(msgspec.Struct, frozen=True):
    """The command files of one step phase, by the key that the `github` context has for them."""

    paths: dict[FileKind, str]

    @property
    def written(self) -> tuple[FileIn, ...]:
        """Made empty before the process starts."""
        return tuple(FileIn(path, b"") for path in self.paths.values())

    @property
    def read(self) -> tuple[FileOut, ...]:
        """Returned when it has ended."""
        return tuple(FileOut(path, DEFAULT_FILE_LIMIT) for path in self.paths.values())


_CONTEXT_KEYS: dict[FileKind, str] = {
    "env": "env",
    "output": "output",
    "path": "path",
    "state": "state",
    "summary": "step_summary",
}


def fresh_command_files(frame: Frame) -> CommandFiles:
    """New names for this phase, set in its `github` context."""
    suffix = fresh_name()
    folder = frame.job.layout.command_files
    paths: dict[FileKind, str] = {}
    for each in COMMAND_FILES:
        paths[each.kind] = f"{folder}/{each.prefix}{suffix}"
        frame.github[_CONTEXT_KEYS[each.kind]] = paths[each.kind]
    return CommandFiles(paths)


def fresh_name() -> str:
    """A name nobody can guess, in the form that GitHub's files have."""
    digits = os.urandom(16).hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


async def run_script(frame: Frame, step: RunStep) -> Result:
    """The handler of a `run` step. Problems before launch are logged and fail the step."""
    job = frame.job
    script = await text_of(frame, step.script)
    nested = frame.scope.composite
    shell_text = await text_of(frame, step.shell) or ("" if nested else job.shell or "")
    folder = await text_of(frame, step.working_directory) or ("" if nested else job.working_directory or "")
    try:
        shell = choose_shell(shell_text or None, container=job.in_container)
        base = job.session.environment
        path = effective_path(job.prepends, frame.env, base)
        program = await job.programs.first(shell.programs, path)
        script_path = f"{job.layout.temp}/{fresh_name()}{shell.extension}"
        arguments = command_arguments(shell.arguments, script_path)
    except ShellError as error:
        return fail(frame, str(error))
    frame.shown_command = script
    frame.log.say(prelude(script, f"{program or shell.programs[0]} {shell.arguments}", frame.env)[:-1], "command")
    if program is None:
        return fail(frame, f"{shell.programs[0]}: command not found")
    return await run_command(
        frame,
        argv=(program, *arguments),
        cwd=job.layout.in_workspace(folder),
        files=(FileIn(script_path, script_body(script, shell)),),
    )


async def run_command(
    frame: Frame,
    *,
    argv: tuple[str, ...],
    cwd: str,
    files: tuple[FileIn, ...] = (),
    inputs: Mapping[str, str] | None = None,
    kind: Kind = "script",
    without: tuple[str, ...] = (),
    say_exit: bool = True,
) -> Result:
    """Run a process of this step and obey what it printed and wrote. Its environment is made up here (section 6)."""
    job = frame.job
    job.touched = True
    command_files = fresh_command_files(frame)
    env = process_environment(
        base=job.base_environment,
        env=frame.env,
        state=frame.state,
        inputs=inputs or {},
        prepends=job.prepends,
        github=frame.github,
        runner=job.runner,
        services=await job.services.variables(job, frame, kind),
    )
    for name in without:
        env.pop(name, None)
    frame.last_command = (env, cwd)
    output = StepOutput(frame)
    command = StepCommand(
        argv=argv,
        env=env,
        cwd=cwd,
        files_in=(*event_file(job), *emptied_files(job), *command_files.written, *files),
        files_out=command_files.read,
    )
    end = await run_process(job.session, command, output.pump, frame.control, waits=job.waits, strict=job.strict)
    await output.finish()
    obey_files(frame, command_files, end)
    return result_of(frame, end, argv, cwd, say_exit=say_exit)


def event_file(job: Job, *, always: bool = False) -> tuple[FileIn, ...]:
    """The payload, written anew before each step as on GitHub, but a large one for the first alone.

    `always`: for a container that has none yet.
    """
    if not always:
        if job.event_is_there and len(job.event_json) > _EVENT_AGAIN_BYTES:
            return ()
        job.event_is_there = True
    return (FileIn(job.layout.event_path, job.event_json),)


def emptied_files(job: Job) -> tuple[FileIn, ...]:
    """Command files of earlier steps that held something: they live in memory, and nobody reads them again."""
    stale, job.stale_files = job.stale_files, []
    return tuple(FileIn(path, b"") for path in stale)


def obey_files(frame: Frame, files: CommandFiles, end: Exit) -> None:
    """What the command files ask for, whatever became of the process (11.1)."""
    job = frame.job
    missing = FileBack(problem="missing")
    returned = {kind: end.files.get(path, missing) for kind, path in files.paths.items()}
    job.stale_files += [
        files.paths[kind] for kind, back in returned.items() if back.data or back.problem == "too_large"
    ]
    if all(back.problem is not None or not back.data for back in returned.values()) and not _oversized(returned):
        return
    effects = read_command_files(returned, strict=job.strict, mask=job.masker.mask_text)
    for name, value in effects.env:
        job.set_env(name, value)
    if effects.path:
        job.add_path(effects.path)
    frame.outputs.update(effects.outputs)
    for name, value in effects.state:
        frame.set_state(name, value)
    _summarise(frame, effects)
    for issue in effects.issues:
        if issue.annotation:
            frame.log.issue("error", issue.message)
        else:
            frame.log.say(issue.message)
    if effects.failed:
        frame.command_failed = True
        frame.explain("command_error", effects.issues[-1].message if effects.issues else "a command file is wrong")


def _oversized(returned: Mapping[FileKind, FileBack]) -> bool:
    return any(back.problem not in {None, "missing", "link"} for back in returned.values())


def _summarise(frame: Frame, effects: FileEffects) -> None:
    summary = effects.summary
    if summary is None:
        return
    now = frame.job.now_ns()
    frame.log.emit(Summary(frame.log.step, summary.text, now, summary.truncated_from, summary.whole))


def result_of(frame: Frame, end: Exit, argv: tuple[str, ...], cwd: str, *, say_exit: bool = True) -> Result:
    """What the end of a step's process means for the step."""
    frame.exit_code = end.code
    frame.count(end.usage)
    control = frame.control
    if control.why in {"cancelled", "forced"}:
        return Result.CANCELLED
    if control.why == "timed_out":
        return Result.FAILURE
    if end.problem is not None:
        return fail(frame, f"{argv[0]} could not be started in {cwd}: {end.problem}")
    if end.reason is not None:
        detail = end.detail or end.reason.replace("_", " ")
        frame.log.issue("error" if end.code else "warning", detail)
        if end.code:
            frame.explain(end.reason, detail)
    if end.code == 0:
        return Result.SUCCESS
    if say_exit:
        frame.log.issue("error", f"Process completed with exit code {end.code}.")
    frame.explain("exit_code", f"exit code {end.code}")
    return Result.FAILURE


def fail(frame: Frame, message: str) -> Result:
    """Log why this step fails, as an error."""
    frame.log.issue("error", message)
    frame.explain("startup_error", message)
    return Result.FAILURE


def script_title(script: str) -> str:
    """The default name of a `run` step (4.4)."""
    return f"Run {first_line(script)}"
