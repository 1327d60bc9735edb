"""The built-in checkout as a step: inputs read, tree made outside, shown in the workspace (job-semantics 9; D10)."""

from __future__ import annotations

import asyncio
import posixpath
from typing import TYPE_CHECKING

import msgspec

from runyard.action.checkout import TreeCache, plan_checkout
from runyard.engine.actions import action_prelude
from runyard.engine.evaluate import texts_of
from runyard.engine.place import place_tree
from runyard.engine.programs import ask
from runyard.engine.results import Result
from runyard.engine.run_step import fail

if TYPE_CHECKING:
    from runyard.engine.state import Frame
    from runyard.job import ActionStep

_EMPTY = 'mkdir -p -- "$1" && find "$1" -mindepth 1 -delete 2>&1; printf "."'


async def run_checkout(frame: Frame, step: ActionStep) -> Result:
    """The handler of `uses: actions/checkout`. Its outputs are `ref` and `commit`."""
    job = frame.job
    frame.github["action_repository"] = step.repository
    frame.github["action_ref"] = step.ref
    inputs = await texts_of(frame, step.inputs)
    frame.shown_command = step.uses
    repository = str(job.scope.github.get("repository") or "")
    shown = {"repository": repository, **inputs, **({"token": "***"} if inputs.get("token") else {})}
    frame.log.say(action_prelude(step.uses, shown, frame.env), "command")
    plan = plan_checkout(inputs, repository)
    source = job.claim.checkout
    if source is None:
        return fail(frame, "actions/checkout: this job came without a repository")
    if len(step.ref) == 40:
        frame.log.say("The built-in checkout stands for this commit of actions/checkout; --no-native runs the original")
    if source.git_dir is None:
        source = msgspec.structs.replace(source, git_dir=await job.hooks.repository(plan.depth))
    server = str(job.scope.github.get("server_url") or "https://github.com")
    ref = str(job.scope.github.get("ref") or "")
    cache = TreeCache(job.settings.cache_dir or job.scratch())
    tree = await asyncio.to_thread(cache.get, source, plan, ref=ref, server_url=server)
    target = posixpath.normpath(posixpath.join(job.layout.workspace, plan.path))
    frame.log.say(f"Syncing repository: {source.repository}")
    if job.touched or target != job.layout.workspace:
        answer = await ask(job.session, ("/bin/sh", "-c", _EMPTY, "sh", target), job.base_environment)
        if not answer.endswith(b"."):
            return fail(frame, f"the folder {target} can't be emptied: {answer.decode('utf-8', 'replace').strip()}")
    await place_tree(job.session, tree.folder, target, empty=target not in job.placed)
    job.placed.add(target)
    job.touched = True
    frame.log.say(f"HEAD is now at {tree.commit[:10]}" + (f" ({tree.ref})" if tree.ref else ""))
    frame.outputs["ref"] = tree.ref
    frame.outputs["commit"] = tree.commit
    return Result.SUCCESS
