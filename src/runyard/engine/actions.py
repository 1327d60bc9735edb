"""Steps that use an action: resolve it, then hand over to its kind (job-semantics 9).

Local actions are read when their step starts, from the workspace as it is then. Remote ones come from an ActionStore,
before the first step. A few common ones have a native adapter here instead.
"""

from __future__ import annotations

import asyncio
import posixpath
from typing import TYPE_CHECKING, Protocol

import msgspec

from runyard.action.closure import MOST_NESTED, Use, uses_below, uses_of
from runyard.action.manifest import (
    MANIFEST_LIMIT,
    MANIFEST_NAMES,
    ActionInput,
    CompositeRuns,
    DockerRuns,
    JavaScriptRuns,
    Manifest,
    dockerfile_manifest,
    read_manifest,
)
from runyard.action.native import built_in
from runyard.engine.admitting import judge_now, refuse_uses
from runyard.engine.evaluate import text_of, texts_of
from runyard.engine.programs import exchange
from runyard.engine.results import Result
from runyard.engine.run_step import fail
from runyard.engine.scripts import environment_lines
from runyard.engine.state import ActionInstance, Frame
from runyard.job import ActionStep, ContainerActionStep, MachineError, Refused
from runyard.sandbox.contract import FileOut

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from runyard.engine.state import Job
    from runyard.job import Step


class ActionFiles(msgspec.Struct, frozen=True, kw_only=True):
    """A remote action that was fetched: its manifest and its folder outside the sandbox, whole and unchanging."""

    manifest: Manifest
    folder: str
    root: str
    commit: str
    notes: tuple[str, ...] = ()
    """What the log should say about it."""


class ActionStore(Protocol):
    """Where remote actions come from. `resolve` is called once a job for each reference, outside the sandbox."""

    async def resolve(self, step: ActionStep) -> ActionFiles | Refused:
        """The action's files, or why it can't be used here."""


class NoActionStore:
    """The store of a job that has none: every remote action is refused by name."""

    async def resolve(self, step: ActionStep) -> ActionFiles | Refused:
        """See ActionStore."""
        return Refused(
            f"action {step.uses}",
            "this build of Runyard runs local actions and its built-in ones only",
            "copy the action into the repository and use it as ./path",
        )


# Preparation ----------------------------------------------------------------------------------------------------------


async def prepare_actions(frame: Frame) -> None:
    """Judge and fetch every remote action, nested ones too, before the first step (9.1). Raises MachineError.

    Level by level: what the policy refuses by its name is never asked for.
    """
    job = frame.job
    seen: set[str] = set()
    level = [use for use in uses_of(job.spec.steps) if _is_fetched(job, use)]
    while level:
        refuse_uses(job, level)
        new = {use.key: use for use in reversed(level) if use.key not in seen}
        level = [use for use in level if new.get(use.key) is use]
        seen.update(new)
        found = await asyncio.gather(*(resolve_remote(job, _action(use)) for use in level))
        refused = [each for each in found if isinstance(each, Refused)]
        if refused:
            raise MachineError("\n".join(str(each) for each in refused), code="refused.action")
        known: list[Use] = []
        for use, files in zip(level, found, strict=True):
            if isinstance(files, ActionFiles):
                step = _action(use)
                frame.log.say(f"Download action repository '{step.repository}@{step.ref}' (SHA:{files.commit})")
                for note in files.notes:
                    frame.log.say(note)
                known.append(msgspec.structs.replace(use, manifest=files.manifest))
        refuse_uses(job, known)
        level = [inner for use in known for inner in uses_below(use) if _is_fetched(job, inner)]


def _is_fetched(job: Job, use: Use) -> bool:
    step = use.step
    return isinstance(step, ActionStep) and step.repository is not None and not stands_in(job, step)


def stands_in(job: Job, step: ActionStep) -> bool:
    """Whether something built in may do without the original; nothing of it is fetched ahead then."""
    return native_name(job, step) is not None or tools_of(job, step) is not None


def _action(use: Use) -> ActionStep:
    assert isinstance(use.step, ActionStep)
    return use.step


def remote_steps(steps: tuple[Step, ...]) -> Iterator[ActionStep]:
    """Those that use an action of another repository."""
    for step in steps:
        if isinstance(step, ActionStep) and step.repository is not None:
            yield step


async def resolve_remote(job: Job, step: ActionStep) -> ActionFiles | Refused:
    """Ask the store once for each reference."""
    key = f"{(step.repository or '').lower()}/{step.path}@{step.ref}"
    if key not in job.resolved:
        job.resolved[key] = await job.actions.resolve(step)
    return job.resolved[key]


def native_name(job: Job, step: ActionStep) -> str | None:
    """The built-in adapter for this reference, None where the original is to run."""
    name = built_in(step) if job.settings.native else None
    return name if name == "checkout" or job.services.port is not None else None


def tools_of(job: Job, step: ActionStep) -> str | None:
    """The built-in set-up of a tool that may serve this step; the original is fetched when it turns out not to."""
    settings = job.settings
    if not settings.native or not settings.tools or step.repository is None:
        return None
    from runyard.action.tool_steps import tool_adapter

    return tool_adapter(step, settings.tools, job.spec.platform)


def steps_with_pre(job: Job) -> Iterator[ActionStep]:
    """The workflow's steps that have a pre phase, in their order; local actions never have one (9.4)."""
    for step in remote_steps(job.spec.steps):
        found = _resolved(job, step)
        if found is not None and _has_pre(job, found.manifest):
            yield step


def _resolved(job: Job, step: ActionStep) -> ActionFiles | None:
    if native_name(job, step) is not None:
        return None
    found = job.resolved.get(f"{(step.repository or '').lower()}/{step.path}@{step.ref}")
    return found if isinstance(found, ActionFiles) else None


def _has_pre(job: Job, manifest: Manifest, depth: int = 0) -> bool:
    runs = manifest.runs
    if isinstance(runs, JavaScriptRuns):
        return bool(runs.pre)
    if isinstance(runs, DockerRuns):
        return bool(runs.pre_entrypoint)
    nested = (_resolved(job, step) for step in remote_steps(runs.steps))
    return depth < MOST_NESTED and any(each is not None and _has_pre(job, each.manifest, depth + 1) for each in nested)


async def run_pre_step(frame: Frame, step: ActionStep) -> Result:
    """The pre phase of one of these steps, in the record of `frame`."""
    from runyard.engine.phases import run_pre

    job = frame.job
    found = _resolved(job, step)
    assert found is not None  # it is one of `steps_with_pre`
    result = await run_pre(frame, step, await place_remote(job, step, found))
    if result is Result.FAILURE:
        job.status = "failure"
        job.first_failure = job.first_failure or frame
        frame.result = Result.FAILURE
    return result


async def run_pre_steps(frame: Frame) -> None:
    """All of them, in the set-up record: of a job whose sandbox is there by then."""
    for step in steps_with_pre(frame.job):
        await run_pre_step(frame, step)


async def place_remote(job: Job, step: ActionStep, files: ActionFiles) -> ActionInstance:
    """Show an action's files inside the sandbox, once for each repository and ref."""
    target = f"{job.layout.actions}/{step.repository}/{step.ref}"
    if target not in job.placed:
        from runyard.engine.place import place_tree

        await place_tree(job.session, files.root, target)
        job.placed.add(target)
    folder = f"{target}/{step.path}" if step.path else target
    return ActionInstance(files.manifest, folder, local=False)


# A step ---------------------------------------------------------------------------------------------------------------


async def run_action(frame: Frame, step: ActionStep | ContainerActionStep) -> Result:
    """The handler of a step that uses an action."""
    job = frame.job
    if isinstance(step, ContainerActionStep):
        from runyard.engine.docker_action import run_container_step

        refusal = judge_now(frame, step)
        return await run_container_step(frame, step) if refusal is None else fail(frame, str(refusal))
    native = native_name(job, step) if step.repository is not None else None
    if native is not None:
        return await _run_native(frame, step, native)
    tools = tools_of(job, step)
    if tools is not None:
        from runyard.engine.native_tools import run_tools

        result = await run_tools(frame, step, tools)
        if result is not None:
            return result
    if frame.scope.depth >= MOST_NESTED:
        return fail(frame, f"{step.uses}: actions are nested deeper than {MOST_NESTED} levels")
    instance = frame.scope.actions.get(step.id)
    if instance is None:
        found = await _find(frame, step)
        if isinstance(found, str):
            return fail(frame, found)
        instance = frame.scope.actions[step.id] = found
    if not instance.local:
        frame.github["action_repository"] = step.repository
        frame.github["action_ref"] = step.ref
    frame.state = instance.state
    from runyard.engine.phases import run_main

    return await run_main(frame, step, instance)


async def _run_native(frame: Frame, step: ActionStep, name: str) -> Result:
    """The built-in adapter of that name; those of caches and artifacts need the services of the job."""
    if name == "checkout":
        from runyard.engine.checkout_step import run_checkout

        return await run_checkout(frame, step)
    stores = frame.job.services.port
    assert stores is not None
    if name.startswith("cache"):
        from runyard.engine.native_cache import run_cache

        return await run_cache(frame, step, name, stores)
    from runyard.engine.native_artifacts import run_artifacts

    return await run_artifacts(frame, step, name, stores)


async def _find(frame: Frame, step: ActionStep) -> ActionInstance | str:
    """The action behind a reference, judged as far as it is known now: by its name, then by its manifest."""
    job = frame.job
    refusal = judge_now(frame, step)
    if refusal is not None:
        return str(refusal)
    if step.repository is None:
        instance = await _find_local(job, step)
    else:
        found = await resolve_remote(job, step)
        instance = str(found) if isinstance(found, Refused) else await place_remote(job, step, found)
    if isinstance(instance, str):
        return instance
    refusal = judge_now(frame, step, instance.manifest)
    return instance if refusal is None else str(refusal)


async def _find_local(job: Job, step: ActionStep) -> ActionInstance | str:
    """A local action as it is in the workspace now; relative to the workspace, also inside composites (9.8)."""
    folder = posixpath.normpath(posixpath.join(job.layout.workspace, step.path.replace("\\", "/")))
    wanted = tuple(FileOut(f"{folder}/{name}", MANIFEST_LIMIT) for name in MANIFEST_NAMES)
    files = await exchange(job.session, files_out=wanted)
    for name in MANIFEST_NAMES:
        back = files.get(f"{folder}/{name}")
        if back is None or back.problem == "missing":
            continue
        shown = f"{step.path.rstrip('/')}/{name}"
        if back.problem is not None:
            return f"{shown} can't be read: {back.problem.replace('_', ' ')}"
        if name.lower() == "dockerfile":
            return ActionInstance(dockerfile_manifest(shown), folder, local=True)
        return ActionInstance(read_manifest(back.data, shown), folder, local=True)
    return (
        f"Can't find 'action.yml', 'action.yaml' or 'Dockerfile' under '{folder}'. "
        "Did you forget to run actions/checkout before running your local action?"
    )


# Inputs ---------------------------------------------------------------------------------------------------------------


async def action_inputs(frame: Frame, step: ActionStep, manifest: Manifest) -> dict[str, str]:
    """The values of `with` over the defaults, by name as declared or given (9.3). Warns where GitHub does."""
    given = await texts_of(frame, step.inputs)
    by_name = {name.lower(): (name, value) for name, value in given.items()}
    values: dict[str, str] = {}
    for each in manifest.inputs:
        if each.name.lower() in by_name:
            values[each.name] = by_name.pop(each.name.lower())[1]
            if each.deprecation:
                frame.log.issue("warning", f"Input '{each.name}' has been deprecated with message: {each.deprecation}")
        else:
            values[each.name] = await _default(frame, each, manifest)
    unknown = [name for name, _ in by_name.values() if not _always_valid(manifest, name)]
    if unknown:
        valid = ", ".join(f"'{each.name}'" for each in manifest.inputs)
        found = ", ".join(f"'{name}'" for name in unknown)
        frame.log.issue("warning", f"Unexpected input(s) {found}, valid inputs are [{valid}]")
    values.update(dict(by_name.values()))
    if step.repository is not None:
        from runyard.engine.originals import complete_inputs

        await complete_inputs(frame, step, values)
    return values


async def _default(frame: Frame, wanted: ActionInput, manifest: Manifest) -> str:
    if wanted.default is None:
        return ""
    files, frame.positions = frame.positions, (manifest.path,)
    try:
        return await text_of(frame, wanted.default)
    finally:
        frame.positions = files


def _always_valid(manifest: Manifest, name: str) -> bool:
    return isinstance(manifest.runs, DockerRuns) and name.lower() in {"entrypoint", "args"}


def action_prelude(uses: str, inputs: Mapping[str, str], env: Mapping[str, str]) -> str:
    """What the log shows before an action runs (8.4)."""
    lines = [f"##[group]Run {uses}"]
    shown = {name: value for name, value in inputs.items() if value}
    if shown:
        lines += ["with:", *(f"  {name}: {value}" for name, value in shown.items())]
    lines += [*environment_lines(env), "##[endgroup]"]
    return "\n".join(lines)


__all__ = [
    "ActionFiles",
    "ActionStore",
    "CompositeRuns",
    "JavaScriptRuns",
    "NoActionStore",
    "action_inputs",
    "action_prelude",
    "prepare_actions",
    "run_action",
    "run_pre_steps",
]
