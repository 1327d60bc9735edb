"""Docker actions: an image pulled or built, and one process in a container of its own (job-semantics 9.6).

The container is on the job's network and sees the job's folders at the paths of GitHub's table; the variables that hold
paths are rewritten for it. Its environment travels to its process and is never a part of the engine's configuration.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import tempfile
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.engine.actions import ActionFiles, action_inputs, action_prelude, resolve_remote
from runyard.engine.containers import engine_image
from runyard.engine.environment import process_environment
from runyard.engine.evaluate import text_of, texts_of
from runyard.engine.initialize import Stopped, support_of, told_to, unless_stopped
from runyard.engine.output import StepOutput
from runyard.engine.processes import run_process
from runyard.engine.results import Result
from runyard.engine.run_step import event_file, fail, fresh_command_files, obey_files, result_of
from runyard.engine.scripts import split_arguments
from runyard.engine.setup import cannot
from runyard.engine.state import Control, Frame, Scope
from runyard.job import ActionStep, ContainerActionStep, InputError, WorkError
from runyard.sandbox.contract import ContainerRun, FileIn, FileOut, ImageBuild, StepCommand

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from runyard.action.manifest import DockerRuns
    from runyard.engine.state import ActionInstance, Job
    from runyard.sandbox.contract import ContainerSupport, Running

BUILD_TIMEOUT_S: Final = 1800.0
WORKSPACE: Final = "/github/workspace"
HOME: Final = "/github/home"
WORKFLOW: Final = "/github/workflow"
FILE_COMMANDS: Final = "/github/file_commands"
RUNNER_TEMP: Final = "/github/runner_temp"
_PROXY: Final = ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "ftp_proxy")


class _Beside:
    """Starts a step's command in a container of its own; what `run_process` needs of a session."""

    def __init__(self, frame: Frame, support: ContainerSupport, run: ContainerRun) -> None:
        self._frame = frame
        self._support = support
        self._run = run

    async def start(self, command: StepCommand) -> Running:
        """See Session."""
        run = msgspec.structs.replace(
            self._run, env=command.env, cwd=command.cwd, files_in=command.files_in, files_out=command.files_out
        )
        return await self._support.run(run, told_to(self._frame))


# Steps ----------------------------------------------------------------------------------------------------------------


async def run_container_step(frame: Frame, step: ContainerActionStep) -> Result:
    """`uses: docker://image`: the image's own entrypoint, or the one of `with`."""
    support = support_of(frame.job)
    if support is None:
        return fail(frame, f"{step.uses} is a docker action, which {cannot(frame.job, 'run')}")
    inputs = await texts_of(frame, step.inputs)
    frame.shown_command = step.uses
    frame.log.say(action_prelude(step.uses, inputs, frame.env), "command")
    run = ContainerRun(
        image=engine_image(step.image, step.uses),
        entrypoint=_given(inputs, "entrypoint") or None,
        args=split_arguments(_given(inputs, "args")) or None,
    )
    return await _run(frame, support, run, inputs, {})


async def run_docker(frame: Frame, step: ActionStep, instance: ActionInstance, runs: DockerRuns) -> Result:
    """One phase of a docker action; which one the frame says."""
    job = frame.job
    support = support_of(job)
    if support is None:
        return fail(frame, f"{step.uses} is a docker action, which {cannot(job, 'run')}")
    inputs = await action_inputs(frame, step, instance.manifest)
    if frame.phase == "post":
        frame.log.say("Post job cleanup.", "command")
    frame.shown_command = step.uses
    frame.log.say(action_prelude(step.uses, inputs, frame.env), "command")
    if instance.image is None:
        try:
            instance.image = await unless_stopped(_image(frame, step, instance, runs, support), frame.control)
        except Stopped:
            return Result.FAILURE if frame.control.why == "timed_out" else Result.CANCELLED
        except WorkError as error:
            return fail(frame, error.message)
    inner = _inner(frame, instance, inputs)
    run = ContainerRun(
        image=instance.image,
        entrypoint=_entrypoint(frame, runs, inputs) or None,
        args=await _arguments(inner, runs, inputs) or None,
    )
    return await _run(frame, support, run, inputs, await texts_of(inner, runs.env))


def _given(inputs: Mapping[str, str], name: str) -> str:
    return next((value for key, value in inputs.items() if key.lower() == name), "")


def _entrypoint(frame: Frame, runs: DockerRuns, inputs: Mapping[str, str]) -> str:
    """The manifest's, else the caller's (O15); pre and post have their own."""
    if frame.phase == "pre":
        return runs.pre_entrypoint
    if frame.phase == "post":
        return runs.post_entrypoint
    return runs.entrypoint or _given(inputs, "entrypoint")


async def _arguments(inner: Frame, runs: DockerRuns, inputs: Mapping[str, str]) -> tuple[str, ...]:
    """The manifest's, each as one argument, else the caller's text cut into words (O16)."""
    if runs.args is None:
        return split_arguments(_given(inputs, "args"))
    return tuple([await text_of(inner, item) for item in runs.args.items])


def _inner(frame: Frame, instance: ActionInstance, inputs: dict[str, str]) -> Frame:
    """What the manifest's own templates see: the action's inputs."""
    scope = Scope(inputs=inputs, github=frame.github, composite=True, files=(instance.manifest.path,))
    inner = Frame(frame.job, frame.step, scope, frame.log, Control(frame.control), state=frame.state)
    inner.env = frame.env
    return inner


# The process ----------------------------------------------------------------------------------------------------------


async def _run(
    frame: Frame,
    support: ContainerSupport,
    run: ContainerRun,
    inputs: Mapping[str, str],
    own_env: Mapping[str, str],
) -> Result:
    job = frame.job
    job.touched = True
    files = fresh_command_files(frame)
    env = process_environment(
        base=_network_variables(job),
        env=frame.env,
        state=frame.state,
        inputs=inputs,
        prepends=(),
        github=frame.github,
        runner=job.runner,
        services=await job.services.variables(job, frame, "docker"),
    )
    if "PATH" not in frame.env:
        del env["PATH"]
    env["HOME"] = HOME
    for name, value in own_env.items():
        env.setdefault(name, value)
    moved = {name: translate(job, value) for name, value in env.items()}
    command = StepCommand(
        argv=(run.image,),
        env=moved,
        cwd=WORKSPACE,
        files_in=tuple(_file_in(job, each) for each in (*event_file(job, always=True), *files.written)),
        files_out=tuple(FileOut(translate(job, each.path), each.limit) for each in files.read),
    )
    run = msgspec.structs.replace(
        run,
        shares={
            job.layout.temp: RUNNER_TEMP,
            job.layout.action_home: HOME,
            job.layout.workspace: WORKSPACE,
        },
        directories=(WORKFLOW, FILE_COMMANDS),
    )
    output = StepOutput(frame)
    starts = _Beside(frame, support, run)
    end = await run_process(starts, command, output.pump, frame.control, waits=job.waits, strict=job.strict)
    await output.finish()
    own = {translate(job, path): path for path in files.paths.values()}
    end = msgspec.structs.replace(end, files={own.get(path, path): back for path, back in end.files.items()})
    obey_files(frame, files, end)
    # These files were the container's own, so there is nothing to empty in the job's folder.
    job.stale_files = [path for path in job.stale_files if path not in own.values()]
    return result_of(frame, end, (run.image,), WORKSPACE)


def _network_variables(job: Job) -> dict[str, str]:
    """What the job's network needs, where it is a proxy: an action shares the job's loopback."""
    return {name: value for name, value in job.base_environment.items() if name.lower() in _PROXY}


def _file_in(job: Job, file: FileIn) -> FileIn:
    return msgspec.structs.replace(file, path=translate(job, file.path))


def mapped_paths(job: Job) -> Iterator[tuple[str, str]]:
    """The job's folders and where a docker action sees them, the one that is tried first first (9.6)."""
    layout = job.layout
    yield layout.workspace, WORKSPACE
    yield layout.command_files, FILE_COMMANDS
    yield layout.event_folder, WORKFLOW
    yield layout.action_home, HOME
    yield layout.temp, RUNNER_TEMP


def translate(job: Job, value: str) -> str:
    """A value that is one of the job's folders or begins with one, as a docker action sees it."""
    for ours, theirs in mapped_paths(job):
        if value == ours or value.startswith(f"{ours}/"):
            return theirs + value[len(ours) :]
    return value


# Images ---------------------------------------------------------------------------------------------------------------


async def _image(
    frame: Frame, step: ActionStep, instance: ActionInstance, runs: DockerRuns, support: ContainerSupport
) -> str:
    """The image of an action, pulled or built once a job. Raises WorkError, InputError, MachineError."""
    job = frame.job
    if runs.image.startswith("docker://"):
        return engine_image(runs.image, step.uses)
    key = f"{instance.folder}:{runs.image}" if not instance.local else ""
    if key in job.images:
        return job.images[key]
    name = posixpath.basename(runs.image)
    if not (name.lower().endswith("dockerfile") or name.lower().startswith("dockerfile.")):
        raise InputError(
            f"{step.uses}: 'image' is docker:// and a name, or the path of a Dockerfile, not {runs.image!r}",
            code="action.image",
        )
    frame.log.say(f"##[group]Building docker image {runs.image}")
    try:
        image = await _build(frame, step, instance, runs.image, support)
    finally:
        frame.log.say("##[endgroup]")
    if key:
        job.images[key] = image
    return image


async def _build(
    frame: Frame, step: ActionStep, instance: ActionInstance, dockerfile: str, support: ContainerSupport
) -> str:
    folder, _, name = posixpath.normpath(dockerfile).rpartition("/")
    label = step.uses.rpartition("/")[2].partition("@")[0]
    if instance.local:
        context = posixpath.normpath(posixpath.join(instance.folder, folder))
        handle, tar = tempfile.mkstemp(prefix="runyard-build-", suffix=".tar")
        os.close(handle)
        try:
            await frame.job.session.get(context, tar)
            build = ImageBuild(context=tar, dockerfile=name, timeout_s=BUILD_TIMEOUT_S, name=label)
            return await support.build(build, told_to(frame))
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(tar)  # noqa: PTH108 - its name is a text here
    files = await resolve_remote(frame.job, step)
    assert isinstance(files, ActionFiles)  # it was placed from there
    outside = await asyncio.to_thread(_inside, files.root, posixpath.join(files.folder, folder), step.uses)
    build = ImageBuild(context=outside, dockerfile=name, timeout_s=BUILD_TIMEOUT_S, name=label)
    return await support.build(build, told_to(frame))


def _inside(root: str, folder: str, uses: str) -> str:
    """The folder of a Dockerfile, which has to be one of the action's own repository, links followed."""
    real, top = os.path.realpath(folder), os.path.realpath(root)
    if real != top and not real.startswith(f"{top}/"):
        raise InputError(f"{uses}: the Dockerfile is outside of the action's repository", code="action.image")
    return real
