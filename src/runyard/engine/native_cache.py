"""The built-in `actions/cache`, its restore and its save, as steps: archives made and unpacked by the image's own tar.

The archive is the one that the original's client would make, with the same key and version, so both see each other's
caches; only that it goes past HTTP, straight between the sandbox and the store, and that zstd takes its quickest level.
"""

from __future__ import annotations

import asyncio
import posixpath
from typing import TYPE_CHECKING

from runyard.action.cache import (
    DEPRECATED,
    GZIP,
    ZSTD,
    CachePlan,
    cache_version,
    check_keys,
    plan_cache,
    same_key,
)
from runyard.engine.actions import action_prelude
from runyard.engine.environment import effective_path
from runyard.engine.evaluate import decide, texts_of
from runyard.engine.glob_patterns import DIRECTORY, FILE, Matcher, Pattern, read_patterns, search_paths
from runyard.engine.place import place_tree
from runyard.engine.results import Result
from runyard.engine.run_step import fail, fresh_name
from runyard.engine.sandbox_streams import StoppedError, files_below, stream, unless_stopped
from runyard.expression.conditions import wrap_condition
from runyard.job import InputError, RunyardError, WorkError
from runyard.sandbox.contract import FileIn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from runyard.engine.services import FoundCache, Stores
    from runyard.engine.state import Frame, Job
    from runyard.job import ActionStep

_NO_PATHS = (
    "Path Validation Error: Path(s) specified in the action for caching do(es) not exist, "
    "hence no cache is being saved."
)


async def run_cache(frame: Frame, step: ActionStep, name: str, stores: Stores) -> Result:
    """The main phase of `cache`, `cache_restore` or `cache_save`."""
    frame.github["action_repository"] = step.repository
    frame.github["action_ref"] = step.ref
    inputs = await texts_of(frame, step.inputs)
    frame.shown_command = step.uses
    frame.log.say(action_prelude(step.uses, inputs, frame.env), "command")
    if any(each.lower() == "save-always" and value for each, value in inputs.items()):
        frame.log.issue("warning", f"Input 'save-always' has been deprecated with message: {DEPRECATED}")
    work = _Work(frame, stores)
    if name == "cache_save":
        try:
            plan = plan_cache(inputs)
            await unless_stopped(frame, work.save(plan))
        except StoppedError:
            return stopped(frame)
        except RunyardError as error:
            frame.log.issue("warning", str(error))
            frame.log.issue("warning", "Cache save failed.")
        return Result.SUCCESS
    return await _restore(frame, step, name, work, inputs)


def stopped(frame: Frame) -> Result:
    """How a built-in action ends that was told to."""
    return Result.FAILURE if frame.control.why == "timed_out" else Result.CANCELLED


async def _restore(frame: Frame, step: ActionStep, name: str, work: _Work, inputs: dict[str, str]) -> Result:
    state: dict[str, str] = {}
    try:
        plan = plan_cache(inputs)
        check_keys((plan.key, *plan.restore_keys))
    except InputError as error:
        return fail(frame, str(error))
    state["key"] = plan.key
    if name == "cache":
        _register_post(frame, step, work.stores, state)
    else:
        frame.outputs["cache-primary-key"] = plan.key
    try:
        await unless_stopped(frame, work.restore(plan))
    except StoppedError:
        return stopped(frame)
    except RunyardError as error:
        frame.log.issue("warning", f"Failed to restore: {error}")
        work.matched = None
    if work.matched is None:
        if plan.fail_on_miss:
            return fail(
                frame, f"Failed to restore cache entry. Exiting as fail-on-cache-miss is set. Input key: {plan.key}"
            )
        frame.log.say(f"Cache not found for input keys: {', '.join((plan.key, *plan.restore_keys))}")
        return Result.SUCCESS
    state["matched"] = work.matched
    frame.outputs["cache-hit"] = "true" if same_key(plan.key, work.matched) else "false"
    if name == "cache_restore":
        frame.outputs["cache-matched-key"] = work.matched
    said = "found and can be restored" if plan.lookup_only else "restored"
    frame.log.say(f"Cache {said} from key: {work.matched}")
    return Result.SUCCESS


def _register_post(frame: Frame, step: ActionStep, stores: Stores, state: dict[str, str]) -> None:
    from runyard.engine.phases import register_native_post

    condition = wrap_condition("success()")

    async def run(post: Frame) -> Result:
        post.condition = condition
        try:
            post.add_own_env(await texts_of(post, step.env))
            decision = await decide(post, condition)
            if not decision.runs or post.job.skips_everything:
                post.explain("condition_false", decision.because())
                return Result.SKIPPED
            post.log.say("Post job cleanup.", "command")
            inputs = await texts_of(post, step.inputs)
            post.log.say(action_prelude(step.uses, inputs, post.env), "command")
            key = state["key"]
            if same_key(key, state.get("matched", "")):
                post.log.say(f"Cache hit occurred on the primary key {key}, not saving cache.")
                return Result.SUCCESS
            plan = plan_cache({**inputs, "key": key})
            await unless_stopped(post, _Work(post, stores).save(plan))
        except StoppedError:
            return stopped(post)
        except RunyardError as error:
            post.log.issue("warning", str(error))
        return Result.SUCCESS

    register_native_post(frame, step, state, run)


class _Work:
    """One save or restore in one frame."""

    def __init__(self, frame: Frame, stores: Stores) -> None:
        self.frame = frame
        self.job: Job = frame.job
        self.stores = stores
        self.matched: str | None = None
        self._env = dict(self.job.base_environment)
        self._env["PATH"] = effective_path(self.job.prepends, frame.env, self._env)

    async def _compression(self) -> str:
        """What the original's client would take in this image."""
        found = await self.job.programs.first(("zstd",), self._env["PATH"])
        return ZSTD if found is not None else GZIP

    async def restore(self, plan: CachePlan) -> None:
        """Look up, and unpack where something was found; `matched` is its key then."""
        compression = await self._compression()
        version = cache_version(plan.paths, compression)
        found = await self.stores.find_cache((plan.key, *plan.restore_keys), version)
        if found is None:
            return
        if not plan.lookup_only:
            say = self.frame.log.say
            say(
                f"Cache hit for: {found.key}"
                if same_key(plan.key, found.key)
                else f"Cache hit for restore-key: {found.key}"
            )
            say(f"Cache Size: ~{round(found.size / (1024 * 1024))} MB ({found.size} B)")
            await self._unpack(found, compression)
            say("Cache restored successfully")
        self.matched = found.key

    async def _unpack(self, found: FoundCache, compression: str) -> None:
        """Show the archive inside and let the image's tar unpack it, as the original does."""
        self.job.touched = True
        name = "cache.tzst" if compression == ZSTD else "cache.tgz"
        inside = f"{self.job.layout.work}/_caches/{fresh_name()}"
        folder = await asyncio.to_thread(self.stores.hand_out, found.path, name)
        await self._run("mkdir", "-p", inside)
        await place_tree(self.job.session, folder, inside)
        program = ("--use-compress-program", "zstd -d") if compression == ZSTD else ("-z",)
        await self._run("tar", "-xf", f"{inside}/{name}", "-P", "-C", self.job.layout.workspace, *program)

    async def _run(self, *argv: str) -> None:
        scratch = f"{self.job.layout.temp}/{fresh_name()}.log"
        async for _ in stream(self.job.session, argv, env=self._env, cwd="/", scratch=scratch):
            continue

    async def save(self, plan: CachePlan) -> None:
        """Pack and store. Raises WorkError where there is nothing to save; a key that exists is only told."""
        check_keys((plan.key,))
        compression = await self._compression()
        paths = await self._resolve(plan.paths)
        if not paths:
            raise WorkError(_NO_PATHS)
        version = cache_version(plan.paths, compression)
        try:
            size = await self.stores.save_cache(plan.key, version, self._pack(paths, compression))
        except WorkError as error:
            if error.code != "service.already_exists":
                raise
            self.frame.log.say(
                f"Failed to save: Unable to reserve cache with key {plan.key}, another job may be creating this cache. "
                f"More details: {error.message}"
            )
            return
        self.frame.log.say(f"Cache Size: ~{round(size / (1024 * 1024))} MB ({size} B)")
        self.frame.log.say(f"Cache saved with key: {plan.key}")

    def _pack(self, paths: list[str], compression: str) -> AsyncIterator[bytes]:
        temp = self.job.layout.temp
        manifest = f"{temp}/{fresh_name()}.txt"
        program = ("--use-compress-program", "zstd -1 -T0") if compression == ZSTD else ("-z",)
        workspace = self.job.layout.workspace
        argv = ("tar", "--posix", "-cf", "-", "-P", "-C", workspace, *program, "--files-from", manifest)
        listed = FileIn(manifest, "\n".join(paths).encode("utf-8", "surrogateescape"))
        scratch = f"{temp}/{fresh_name()}.log"
        return stream(self.job.session, argv, env=self._env, cwd=workspace, scratch=scratch, files=(listed,))

    async def _resolve(self, patterns: tuple[str, ...]) -> list[str]:
        """What the patterns match, relative to the workspace; what is below a match is not named."""
        workspace = self.job.layout.workspace
        home = self._env.get("HOME")
        read = tuple(
            each for each in read_patterns("\n".join(patterns), workspace=workspace, home=home) if not each.implied
        )
        matcher = Matcher(read)
        found: dict[str, None] = {}
        for start in search_paths(read):
            for kind, wanted in (("d", DIRECTORY), ("f", FILE)):
                deep = any(not _is_literal(each) for each in read if not each.negated)
                for path in await self._paths(start, kind, deep=deep):
                    if matches(matcher, path) & wanted:
                        found[posixpath.relpath(path, workspace)] = None
        return list(found)

    async def _paths(self, start: str, kind: str, *, deep: bool) -> list[str]:
        if deep:
            return await files_below(self.job.session, (start,), kind, env=self._env)
        test = ("/bin/sh", "-c", f'if [ -{kind} "$1" ]; then printf . ; fi', "sh", start)
        said = b"".join(
            [part async for part in stream(self.job.session, test, env=self._env, cwd="/", scratch="/dev/null")]
        )
        return [start] if said else []


def _is_literal(pattern: Pattern) -> bool:
    return pattern.search == "/" + "/".join(pattern.segments)


def matches(matcher: Matcher, path: str) -> int:
    """Whether a whole path matches: FILE, DIRECTORY, both or 0."""
    progress = matcher.start()
    for name in path.split("/")[1:]:
        progress = matcher.step(progress, name)
    return matcher.matches(progress)
