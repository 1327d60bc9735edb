"""Pre, main and post of an action, in one scope and with one state (job-semantics 9.4, 9.7).

What has begun registers its post, which runs after everything else in reverse order; a composite's nested posts run
under its own one record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runyard.action.manifest import CompositeRuns, DockerRuns, JavaScriptRuns
from runyard.engine.actions import (
    ActionFiles,
    action_inputs,
    action_prelude,
    place_remote,
    remote_steps,
    resolve_remote,
    stands_in,
)
from runyard.engine.evaluate import decide, text_of, texts_of, value_of
from runyard.engine.nodes import node_for
from runyard.engine.results import Result, merge
from runyard.engine.run_step import fail, run_command
from runyard.engine.state import Control, Frame, PostStep, Scope
from runyard.engine.steps import default_name, run_nested_step
from runyard.expression.errors import ExpressionError
from runyard.job import ActionStep, InputError, Refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from runyard.engine.state import ActionInstance


# Main -----------------------------------------------------------------------------------------------------------------


async def run_main(frame: Frame, step: ActionStep, instance: ActionInstance) -> Result:
    """The main phase of an action."""
    runs = instance.manifest.runs
    if isinstance(runs, CompositeRuns):
        return await _run_composite(frame, step, instance, runs)
    pre, post = phases_of(runs)
    if pre and instance.local:
        frame.log.issue("warning", f"The pre phase of the local action {step.uses} is not run")
    if post:
        _register_post(frame, step, instance, runs.post_if)
    return await _run_process(frame, step, instance, runs)


def phases_of(runs: JavaScriptRuns | DockerRuns) -> tuple[str, str]:
    """What an action says for its pre and post phase, "" where it has none."""
    if isinstance(runs, DockerRuns):
        return runs.pre_entrypoint, runs.post_entrypoint
    return runs.pre, runs.post


async def _run_process(
    frame: Frame, step: ActionStep, instance: ActionInstance, runs: JavaScriptRuns | DockerRuns
) -> Result:
    """The process of the phase that the frame is in."""
    if isinstance(runs, DockerRuns):
        from runyard.engine.docker_action import run_docker

        return await run_docker(frame, step, instance, runs)
    script = {"pre": runs.pre, "main": runs.main, "post": runs.post}[frame.phase]
    return await _run_javascript(frame, step, instance, script, runs.using)


async def _run_javascript(frame: Frame, step: ActionStep, instance: ActionInstance, script: str, using: str) -> Result:
    job = frame.job
    inputs = await action_inputs(frame, step, instance.manifest)
    if frame.phase == "post":
        frame.log.say("Post job cleanup.", "command")
    frame.shown_command = step.uses
    frame.log.say(action_prelude(step.uses, inputs, frame.env), "command")
    version = node_version(using, frame.env, job.settings.runner_env)
    node = await node_for(job, version)
    if isinstance(node, Refused):
        return fail(frame, f"{step.uses} needs {node}")
    return await run_command(
        frame,
        argv=(node, f"{instance.folder}/{script}"),
        cwd=job.layout.workspace,
        inputs=inputs,
        kind="node",
        without=("NODE_ICU_DATA",),
        say_exit=False,
    )


def node_version(using: str, env: dict[str, str], runner_env: dict[str, str]) -> str:
    """The node that a declared one is run with (9.5): older ones are node20, which may be forced up."""
    if using == "node24":
        return "node24"
    for source in (env, runner_env):
        if source.get("FORCE_JAVASCRIPT_ACTIONS_TO_NODE24", "").strip().lower() in {"1", "true", "$true"}:
            unsecure = source.get("ACTIONS_ALLOW_USE_UNSECURE_NODE_VERSION", "").strip().lower()
            return "node20" if unsecure in {"1", "true", "$true"} else "node24"
    return "node20"


# Composite ------------------------------------------------------------------------------------------------------------


async def _scope_of(frame: Frame, step: ActionStep, instance: ActionInstance) -> Scope:
    """The one scope object of a composite step, its inputs and environment as they are in this phase."""
    inputs = await action_inputs(frame, step, instance.manifest)
    github = {**frame.github, "action_path": instance.folder}
    if instance.scope is None:
        instance.scope = Scope(
            inputs=inputs,
            github=github,
            composite=True,
            depth=frame.scope.depth + 1,
            files=(instance.manifest.path,),
        )
    instance.scope.inputs = inputs
    instance.scope.github = github
    instance.scope.own_env = dict(frame.own_env)
    return instance.scope


async def _run_composite(frame: Frame, step: ActionStep, instance: ActionInstance, runs: CompositeRuns) -> Result:
    scope = await _scope_of(frame, step, instance)
    shown = {name: value for name, value in scope.inputs.items() if value}
    frame.log.say(action_prelude(step.uses, shown, frame.env), "command")
    scope.action_status = "success"
    result = Result.SUCCESS
    for nested in runs.steps:
        if frame.control.why is not None:
            break
        try:
            conclusion, inner = await run_nested_step(frame, nested, scope, _state_of(scope, nested.id))
        except ExpressionError as error:
            frame.log.issue("error", f"The condition of a nested step could not be evaluated: {error}")
            frame.explain("condition_error", str(error))
            result = merge(result, Result.FAILURE)
            break
        if conclusion in {Result.FAILURE, Result.CANCELLED}:
            result = merge(result, conclusion)
            scope.action_status = "failure"
            frame.explain(inner.reason_code or "exit_code", inner.reason or "a nested step failed")
            frame.exit_code = inner.exit_code
        if inner.usage is not None:
            frame.count(inner.usage)
        frame.last_command = inner.last_command or frame.last_command
        frame.shown_command = inner.shown_command or frame.shown_command
    if frame.control.why is not None:
        return _stopped(frame)
    await _set_outputs(frame, scope, instance)
    return result


def _stopped(frame: Frame) -> Result:
    if frame.control.why == "timed_out":
        return Result.FAILURE
    return Result.CANCELLED


def _state_of(scope: Scope, nested_id: str) -> dict[str, str]:
    known = scope.actions.get(nested_id)
    return known.state if known is not None else {}


async def _set_outputs(frame: Frame, scope: Scope, instance: ActionInstance) -> None:
    """The declared outputs, from the nested steps; anything else that a nested step set stays inside (9.7)."""
    inner = Frame(frame.job, frame.step, scope, frame.log, Control(frame.control))
    for name, template in instance.manifest.outputs:
        frame.outputs[name] = await text_of(inner, template)


# Pre and post ---------------------------------------------------------------------------------------------------------


async def run_pre(outer: Frame, step: ActionStep, instance: ActionInstance, scope: Scope | None = None) -> Result:
    """The pre phase of a remote action, composites recursively, in the record of `outer`."""
    job = outer.job
    scope = scope or job.scope
    scope.actions[step.id] = instance
    runs = instance.manifest.runs
    frame = Frame(job, step, scope, outer.log, Control(outer.control), phase="pre", state=instance.state)
    frame.name = f"Pre {default_name(step)}"
    frame.github["action_repository"] = step.repository
    frame.github["action_ref"] = step.ref
    job.frames.append(frame)
    try:
        if isinstance(runs, CompositeRuns):
            return await _pre_of_composite(frame, step, instance, runs)
        pre, post = phases_of(runs)
        if not pre:
            return Result.SUCCESS
        frame.condition = runs.pre_if
        frame.add_own_env(await texts_of(frame, step.env))
        if not (await decide(frame, runs.pre_if)).runs:
            return Result.SKIPPED
        if post:
            _register_post(frame, step, instance, runs.post_if)
        frame.log.say(frame.name)
        result = await _run_process(frame, step, instance, runs)
    except InputError as error:
        outer.log.issue("error", f"{frame.name}: {error}")
        return Result.FAILURE
    finally:
        job.frames.remove(frame)
    return merge(result, Result.FAILURE) if frame.command_failed else result


async def _pre_of_composite(frame: Frame, step: ActionStep, instance: ActionInstance, runs: CompositeRuns) -> Result:
    scope = await _scope_of(frame, step, instance)
    result = Result.SUCCESS
    for nested in remote_steps(runs.steps):
        if stands_in(frame.job, nested):
            continue
        found = await resolve_remote(frame.job, nested)
        if not isinstance(found, ActionFiles):
            continue
        inner = await place_remote(frame.job, nested, found)
        outcome = await run_pre(frame, nested, inner, scope)
        if outcome is Result.FAILURE:
            result = Result.FAILURE
        if scope.actions[nested.id].post_pending:
            _register_nested(frame, step, instance, scope)
    return result


def _register_post(frame: Frame, step: ActionStep, instance: ActionInstance, condition: str) -> None:
    """Put the post phase on its stack, once. A nested one goes to its composite, which gets a record of its own."""
    if instance.post_pending:
        return
    instance.post_pending = True
    runs = instance.manifest.runs

    async def run(post: Frame) -> Result:
        assert not isinstance(runs, CompositeRuns)  # those have the posts of their nested steps
        return await _post_process(post, step, instance, runs, condition)

    made = PostStep(_post_name(frame), step, frame.scope, instance.state, run)
    frame.scope.posts.append(made) if frame.scope.composite else frame.job.posts.append(made)
    _pull_up(frame)


def register_native_post(
    frame: Frame, step: ActionStep, state: dict[str, str], run: Callable[[Frame], Awaitable[Result]]
) -> None:
    """The post phase of a built-in action, on the stack where that of the original would be."""
    made = PostStep(_post_name(frame), step, frame.scope, state, run)
    frame.scope.posts.append(made) if frame.scope.composite else frame.job.posts.append(made)
    _pull_up(frame)


def _pull_up(frame: Frame) -> None:
    """Every composite around a nested post has a post of its own, which runs the nested ones."""
    for outer in reversed(frame.job.frames):
        if outer is frame or not isinstance(outer.step, ActionStep):
            continue
        instance = outer.scope.actions.get(outer.step.id)
        if instance is not None and instance.scope is not None and instance.scope.posts:
            _register_nested(outer, outer.step, instance, instance.scope)


def _register_nested(frame: Frame, step: ActionStep, instance: ActionInstance, scope: Scope) -> None:
    if instance.post_pending or not scope.posts:
        return
    instance.post_pending = True

    async def run(post: Frame) -> Result:
        return await _post_composite(post, step, instance, scope)

    made = PostStep(_post_name(frame), step, frame.scope, instance.state, run)
    frame.scope.posts.append(made) if frame.scope.composite else frame.job.posts.append(made)


def _post_name(frame: Frame) -> str:
    return f"Post {frame.name.removeprefix('Pre ')}"


async def _post_process(
    post: Frame, step: ActionStep, instance: ActionInstance, runs: JavaScriptRuns | DockerRuns, condition: str
) -> Result:
    if phases_of(runs)[0] and instance.local:
        post.log.issue("warning", f"The pre phase of the local action {step.uses} is not run")
    if not instance.local:
        post.github["action_repository"] = step.repository
        post.github["action_ref"] = step.ref
    post.condition = condition
    try:
        post.add_own_env(await texts_of(post, step.env))
        decision = await decide(post, condition)
        if not decision.runs or post.job.skips_everything:
            post.explain("condition_false", decision.because())
            return Result.SKIPPED
        result = await _run_process(post, step, instance, runs)
        if post.command_failed:
            result = merge(result, Result.FAILURE)
        if result is Result.FAILURE and step.continue_on_error is not None:
            return Result.SUCCESS if await value_of(post, step.continue_on_error, "boolean") else result
    except InputError as error:
        post.log.issue("error", str(error))
        post.explain("evaluation_error", str(error))
        return Result.FAILURE
    return result


async def _post_composite(post: Frame, step: ActionStep, instance: ActionInstance, scope: Scope) -> Result:
    """Nested posts in reverse order, those that registered, under one record."""
    try:
        post.add_own_env(await texts_of(post, step.env))
    except InputError as error:
        post.log.issue("error", str(error))
        return Result.FAILURE
    scope.own_env = dict(post.own_env)
    result = Result.SUCCESS
    while scope.posts:
        nested = scope.posts.pop()
        frame = Frame(post.job, nested.step, scope, post.log, Control(post.control), phase="post", state=nested.state)
        frame.name = nested.name
        post.job.frames.append(frame)
        try:
            outcome = await nested.run(frame)
        finally:
            post.job.frames.remove(frame)
        if outcome is Result.FAILURE:
            result = Result.FAILURE
            post.explain(frame.reason_code or "exit_code", frame.reason or "a nested post step failed")
    return result
