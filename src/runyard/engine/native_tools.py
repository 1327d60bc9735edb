"""The tool-cache part of `actions/setup-python` and `actions/setup-node`, as steps: only where the tool is there.

Everything is decided before anything is changed: a step that the tool cache can't serve is left to the original action
as if there were no adapter.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from runyard.action import setup_node, setup_python
from runyard.action.toolcache import (
    INPUT_FILE_LIMIT,
    NODE,
    PYTHON,
    FoundTool,
    Original,
    architecture,
    find_tool,
    manifest_of,
)
from runyard.engine.actions import action_prelude
from runyard.engine.environment import effective_path
from runyard.engine.evaluate import texts_of
from runyard.engine.programs import ask, exchange
from runyard.engine.results import Result
from runyard.sandbox.contract import FileOut

if TYPE_CHECKING:
    from runyard.engine.state import Frame, Job
    from runyard.job import ActionStep


async def run_tools(frame: Frame, step: ActionStep, name: str) -> Result | None:
    """Set the tool up. None: the original action has to run, and the log says why."""
    inputs = await texts_of(frame, step.inputs)
    try:
        if name == "setup_python":
            found = await _find_pythons(frame, inputs)
            _begin(frame, step, inputs)
            return _use_pythons(frame, *found)
        tool = await _find_node(frame, step, inputs)
        _begin(frame, step, inputs)
        return await _use_node(frame, tool)
    except Original as why:
        frame.log.say(f"{step.uses} is not built in here, since {why}: the original runs")
        return None


def _begin(frame: Frame, step: ActionStep, inputs: dict[str, str]) -> None:
    frame.github["action_repository"] = step.repository
    frame.github["action_ref"] = step.ref
    frame.shown_command = step.uses
    frame.log.say(action_prelude(step.uses, inputs, frame.env), "command")


async def _file(job: Job, path: str) -> bytes | None:
    """A file of the workspace, None where there is none. Raises Original for a link, or one that is too long."""
    inside = job.layout.in_workspace(path)
    back = (await exchange(job.session, files_out=(FileOut(inside, INPUT_FILE_LIMIT),))).get(inside)
    if back is None or back.problem == "missing":
        return None
    if back.problem is not None:
        raise Original(f"{path} is no plain file")
    return back.data


async def _look(job: Job, name: str, wanted: str, arch: str) -> FoundTool:
    found = await asyncio.to_thread(find_tool, job.settings.tools, name, wanted, arch)
    if found is None:
        raise Original(f"the tool cache has no {name} {wanted} for {arch}")
    return found


# Python ---------------------------------------------------------------------------------------------------------------


async def _find_pythons(
    frame: Frame, inputs: dict[str, str]
) -> tuple[setup_python.PythonPlan, list[tuple[FoundTool, str]]]:
    job = frame.job
    plan = setup_python.plan_python(inputs, architecture(job.spec.platform))
    versions = plan.versions
    if not versions:
        data = await _file(job, plan.file)
        if data is None:
            raise Original(f"there is no {plan.file}")
        versions = setup_python.versions_in(plan.file, data)
    found: list[tuple[FoundTool, str]] = []
    for version in versions:
        wanted = setup_python.wanted_python(version, plan)
        found.append((await _look(job, PYTHON, wanted.range, wanted.arch), wanted.suffix))
    return plan, found


def _use_pythons(frame: Frame, plan: setup_python.PythonPlan, found: list[tuple[FoundTool, str]]) -> Result:
    job, log = frame.job, frame.log
    if plan.versions and plan.named:
        log.issue("warning", "Both python-version and python-version-file are given: python-version is used.")
    log.say("##[group]Installed versions")
    for tool, suffix in found:
        folder = f"{job.layout.tool_cache}/{tool.path}"
        if plan.updates:
            before = frame.env.get("LD_LIBRARY_PATH") or job.base_environment.get("LD_LIBRARY_PATH") or ""
            for name, value in setup_python.variables(folder, before).items():
                job.set_env(name, value)
            job.add_path((folder, f"{folder}/bin"))
        frame.outputs["python-version"] = f"{tool.version}{suffix}"
        frame.outputs["python-path"] = f"{folder}/bin/python"
        log.say(f"Successfully set up CPython ({tool.version}{suffix})")
    log.say("##[endgroup]")
    job.matchers.add(setup_python.MATCHER)
    return Result.SUCCESS


# Node -----------------------------------------------------------------------------------------------------------------


async def _find_node(frame: Frame, step: ActionStep, inputs: dict[str, str]) -> FoundTool:
    job = frame.job
    plan = setup_node.plan_node(inputs, step.ref, architecture(job.spec.platform))
    version = plan.version
    if not version:
        data = await _file(job, plan.file)
        if data is None:
            raise Original(f"there is no {plan.file}")
        version = setup_node.version_in(plan.file, data)
        frame.log.say(f"Resolved {plan.file} as {version}")
    if plan.looks_at_package:
        package = await _file(job, "package.json")
        if package is not None and setup_node.asks_for_cache(package):
            raise Original("package.json names a package manager, whose cache the action restores")
    releases = await asyncio.to_thread(manifest_of, job.settings.tools, NODE) if version.startswith("lts/") else None
    return await _look(job, NODE, setup_node.range_of(version, releases), plan.arch)


async def _use_node(frame: Frame, tool: FoundTool) -> Result:
    job, log = frame.job, frame.log
    folder = f"{job.layout.tool_cache}/{tool.path}"
    log.say(f"Found in cache @ {folder}")
    job.add_path((f"{folder}/bin",))
    path = effective_path(job.prepends, frame.env, job.base_environment)
    answer = await ask(job.session, ("/bin/sh", "-c", "exec node --version", "sh"), {"PATH": path})
    told = answer.decode("utf-8", "replace").strip()
    version = told if told.startswith("v") else ""
    if not version:
        log.issue("warning", f"node {tool.version} of the tool cache doesn't start in this image")
    log.say(f"##[group]Environment details\nnode: {version}\n##[endgroup]")
    frame.outputs["node-version"] = version
    for matcher in setup_node.MATCHERS:
        job.matchers.add(matcher)
    return Result.SUCCESS
