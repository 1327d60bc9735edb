"""The built-in checkout as a step: inputs read, tree made outside, shown in the workspace (job-semantics 9; D10)."""

from __future__ import annotations

import asyncio
import posixpath
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runyard.action.checkout import Reach, TreeCache
from runyard.action.checkout_build import must
from runyard.action.checkout_inputs import major_of, plan_checkout, refuse_fork
from runyard.action.git_call import StoppedError
from runyard.engine.actions import action_prelude
from runyard.engine.checkout_credentials import Credentials
from runyard.engine.evaluate import texts_of
from runyard.engine.place import place_tree
from runyard.engine.programs import ask
from runyard.engine.results import Result
from runyard.engine.run_step import fail
from runyard.job import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runyard.action.checkout import CheckedOut
    from runyard.action.checkout_inputs import CheckoutPlan
    from runyard.engine.state import Frame, Job
    from runyard.job import ActionStep

_EMPTY = 'mkdir -p -- "$1" && find "$1" -mindepth 1 -delete 2>&1; printf "."'
_REPLACE = r"""
cd -- "$1" && shift && find .git -mindepth 1 -maxdepth 1 ! -name modules -exec rm -rf {} + 2>&1 &&
{ [ $# -eq 0 ] || rm -f -- "$@" 2>/dev/null; printf .; }
"""
"""A folder that stays, as that of a submodule does, is no reason to fail."""

_MOST_NAMES = 1000


async def run_checkout(frame: Frame, step: ActionStep) -> Result:
    """The handler of `uses: actions/checkout`. Its outputs are `ref` and `commit`."""
    job = frame.job
    frame.github["action_repository"] = step.repository
    frame.github["action_ref"] = step.ref
    inputs = await texts_of(frame, step.inputs)
    frame.shown_command = step.uses
    own = str(job.scope.github.get("repository") or "")
    frame.log.say(action_prelude(step.uses, _shown(inputs, own), frame.env), "command")
    plan = plan_checkout(inputs, own)
    refuse_fork(plan, str(job.scope.github.get("event_name") or ""), job.scope.github.get("event"), own)
    if job.claim.checkout is None and not plan.repository:
        return fail(frame, "actions/checkout: this job came without a repository")
    if len(step.ref) == 40:
        frame.log.say("The built-in checkout stands for this commit of actions/checkout; --no-native runs the original")
    credentials = Credentials(frame, plan, major_of(step.ref))
    _register_post(frame, step, credentials)
    frame.log.say(f"Syncing repository: {plan.repository or own}")
    try:
        tree = await _tree(frame, plan, credentials)
    except StoppedError:
        return Result.FAILURE if frame.control.why == "timed_out" else Result.CANCELLED
    target = posixpath.normpath(posixpath.join(job.layout.workspace, plan.path))
    problem = await _place(job, plan, tree, target)
    if problem:
        return fail(frame, f"the folder {target} can't be emptied: {problem}")
    await credentials.persist(tree.folder, target)
    frame.log.say(f"HEAD is now at {tree.commit[:10]}" + (f" ({tree.ref})" if tree.ref else ""))
    frame.outputs["ref"] = plan.told_ref if plan.ref else tree.ref
    frame.outputs["commit"] = tree.commit
    return Result.SUCCESS


def _shown(inputs: Mapping[str, str], own: str) -> dict[str, str]:
    """The inputs for the log; a token is hidden whether it is known as a secret or not."""
    hidden = {name: "***" for name, value in inputs.items() if name.lower() == "token" and value}
    return {"repository": own, **inputs, **hidden}


async def _tree(frame: Frame, plan: CheckoutPlan, credentials: Credentials) -> CheckedOut:
    job, settings = frame.job, frame.job.settings
    cache = TreeCache(settings.cache_dir or job.scratch(), stop=lambda: frame.control.why is not None)
    reach = Reach(
        remotes=settings.remotes,
        server_url=credentials.run_server,
        token=plan.token or job.secrets["GITHUB_TOKEN"],
        offline=settings.offline,
    )
    ref = str(job.scope.github.get("ref") or "")
    source = job.claim.checkout
    if source is not None and source.git_dir is None and not plan.repository:
        # Only here the repository is asked for: a job without a checkout never fetches it.
        whole = plan.tags or (plan.ref and plan.ref not in {ref, source.commit})
        source = msgspec.structs.replace(source, git_dir=await job.hooks.repository(0 if whole else plan.depth))
    return await asyncio.to_thread(cache.get, source, plan, ref=ref, reach=reach)


async def _place(job: Job, plan: CheckoutPlan, tree: CheckedOut, target: str) -> str:
    """Show the tree; what stood in its place is gone, unless it was the same repository and `clean` is off."""
    before = job.checkouts.get(target)
    repository = plan.repository.lower()
    keeps = not plan.clean and before is not None and before[0] == repository
    if keeps and before is not None:
        gone = await asyncio.to_thread(_gone, before[1], tree.folder)
        for at in range(0, len(gone) or 1, _MOST_NAMES):
            words = ("/bin/sh", "-c", _REPLACE, "sh", target, *gone[at : at + _MOST_NAMES])
            answer = await ask(job.session, words, job.base_environment)
            if not answer.endswith(b"."):
                return answer.decode("utf-8", "replace").strip()
    elif job.touched or target != job.layout.workspace:
        answer = await ask(job.session, ("/bin/sh", "-c", _EMPTY, "sh", target), job.base_environment)
        if not answer.endswith(b"."):
            return answer.decode("utf-8", "replace").strip()
    await place_tree(job.session, tree.folder, target, empty=target not in job.placed and not keeps)
    job.placed.add(target)
    job.touched = True
    job.checkouts[target] = (repository, tree.folder)
    return ""


def _gone(before: str, now: str) -> list[str]:
    """Files of the one commit that the other doesn't have."""
    old, new = (set(must(["ls-files", "-z"], Path(each, ".git")).split("\0")) for each in (before, now))
    return sorted(old - new - {""})


def _register_post(frame: Frame, step: ActionStep, credentials: Credentials) -> None:
    from runyard.engine.phases import register_native_post

    async def run(post: Frame) -> Result:
        post.condition = "always()"
        if post.job.skips_everything:
            post.explain("condition_false", "the job is over")
            return Result.SKIPPED
        try:
            post.add_own_env(await texts_of(post, step.env))
            shown = _shown(await texts_of(post, step.inputs), str(post.job.scope.github.get("repository") or ""))
        except InputError as error:
            post.log.issue("error", str(error))
            return Result.FAILURE
        post.log.say("Post job cleanup.", "command")
        post.log.say(action_prelude(step.uses, shown, post.env), "command")
        await credentials.remove(post.log)
        return Result.SUCCESS

    register_native_post(frame, step, {}, run)
