"""What a command line knows about actions: where they come from, the lock, the policy, the nodes of this machine.

Asked before a run for what would stop it, and for each job for what its process needs. Nothing is fetched here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runyard.action.lock import LOCK_FILE, not_locked, read_lock
from runyard.cli.shapes import PlanNote
from runyard.job import ActionStep, InputError, MachineError, RunStep

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from runyard.action.gather import Gathered
    from runyard.action.manifest import Manifest
    from runyard.action.node import NodeProgram, PlacedNode
    from runyard.action.remotes import Remotes
    from runyard.cli.run_prepare import Files, Options, Prepared
    from runyard.job import Claim, Policy, Step
    from runyard.workflow import JobPlan

TOKEN: Final = "RUNYARD_ACTIONS_TOKEN"
NO_NODE: Final = "no_node"
"""The code of the note of a plan that refuses a job for lack of a node."""


class LocalFiles:
    """Local actions as the run will see them: of the working tree, or of a commit."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def manifest(self, path: str) -> Manifest | None:
        """See LocalActions."""
        import posixpath

        from runyard.action.manifest import MANIFEST_LIMIT, MANIFEST_NAMES, dockerfile_manifest, read_manifest

        folder = posixpath.normpath(path.replace("\\", "/"))
        if folder.startswith(("/", "..")):
            return None
        for name in MANIFEST_NAMES:
            file = name if folder == "." else f"{folder}/{name}"
            try:
                data = self._files.read(file)
                if data is not None and name.lower() == "dockerfile":
                    return dockerfile_manifest(file)
                if data is not None and len(data) <= MANIFEST_LIMIT:
                    return read_manifest(data, file)
            except InputError:
                return None
        return None


class Actions:
    """For one command line; everything is looked up once, when it is wanted."""

    def __init__(self, cache: str, *, offline: bool, native: bool, token: str = "", files: Files | None = None) -> None:
        self.cache = cache
        self.offline = offline
        self.native = native
        self._token = token
        self._files = files
        self._nodes: tuple[NodeProgram, ...] | None = None
        self._remotes: Remotes | None = None

    @property
    def remotes(self) -> Remotes:
        """Where actions come from. Raises InputError for an address that is none."""
        from runyard.action.remotes import remotes_from

        if self._remotes is None:
            self._remotes = remotes_from(os.environ)
        return self._remotes

    @property
    def own_token(self) -> str:
        """A token that is for fetching actions alone."""
        return os.environ.get(TOKEN, "")

    def nodes(self) -> tuple[NodeProgram, ...]:
        """The nodes of this machine."""
        from runyard.action.node import find_nodes

        if self._nodes is None:
            self._nodes = find_nodes(os.environ, self.cache)
        return self._nodes

    def with_token(self, claim: Claim) -> Claim:
        """The claim with the token for fetching actions, where one was given for that alone."""
        import msgspec

        if not self.own_token:
            return claim
        return msgspec.structs.replace(claim, tokens={**claim.tokens, "actions": self.own_token})

    def placed(self, image: str, platform: str) -> tuple[tuple[PlacedNode, ...], str]:
        """The nodes that a job in this image may run, and the image's C library where it is known."""
        from runyard.action.node import facts_of, place_nodes

        facts = facts_of(image, platform.split("/")[1] if "/" in platform else platform)
        return place_nodes(self.nodes(), facts, self.cache), facts.libc or ""

    def gather(self, steps: Iterable[Step], *, pins: dict[str, str] | None, fetch: bool) -> Gathered:
        """What steps use. Without `fetch` only what is here is looked at."""
        from runyard.action.gather import gather
        from runyard.action.remotes import host_of
        from runyard.action.store import ActionStore

        store = ActionStore(
            self.cache,
            self.remotes,
            offline=not fetch,
            token=self.own_token or self._token,
            token_host=host_of(self.remotes.url) if self.own_token else "github.com",
            pins=pins,
        )
        assert self._files is not None
        return gather(steps, LocalFiles(self._files), store, native=self.native)


def of_command(prepared: Prepared, options: Options) -> Actions:
    """The actions of `runyard run`."""
    return Actions(
        cache_folder(options.cache_dir),
        offline=options.offline,
        native=options.native,
        token=options.token,
        files=prepared.files,
    )


def cache_folder(given: str | None) -> str:
    """Where trees and actions are kept between runs: what was given, else the user's cache folder."""
    if given:
        return str(Path(given).absolute())
    return str(Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "runyard")


def read_pins(files: Files) -> dict[str, str] | None:
    """The repository's lock, None where it has none. Raises InputError for one that can't be read."""
    data = files.read(LOCK_FILE)
    return None if data is None else read_lock(data)


def steps_of(jobs: Iterable[JobPlan]) -> Iterator[Step]:
    """Every step of jobs and of the workflows that they call."""
    for job in jobs:
        yield from job.steps
        if job.call is not None:
            yield from steps_of(job.call.workflow.jobs)


def check_lock(steps: Iterable[Step], pins: dict[str, str] | None, *, native: bool) -> None:
    """Raises InputError naming every reference of these steps that the lock lacks."""
    from runyard.action.native import built_in

    if pins is None:
        return
    references = [
        f"{step.repository}@{step.ref}"
        for step in steps
        if isinstance(step, ActionStep) and step.repository is not None and not (native and built_in(step))
    ]
    lacking = not_locked(references, pins)
    if lacking:
        raise InputError(
            f"it does not have {', '.join(lacking)}", path=LOCK_FILE, code="lock.missing",
            remedy="runyard actions lock adds them.",
        )  # fmt: skip


def check_offline(
    actions: Actions, steps: Iterable[Step], pins: dict[str, str] | None, *, tools: str = "", platform: str = ""
) -> None:
    """Raises MachineError with everything that would have to be fetched. `tools` is the tool cache, which may serve."""
    steps = [step for step in steps if not (actions.native and _from_tools(step, tools, platform))]
    missing = actions.gather(steps, pins=pins, fetch=False).missing
    if missing:
        rows = "".join(f"\n  {uses}: {why}" for uses, why in sorted(missing.items()))
        raise MachineError(
            f"--offline: these actions are not on this machine:{rows}",
            code="actions.missing",
            remedy="While there is a network: runyard actions mirror, or one run without --offline.",
        )


def _from_tools(step: Step, tools: str, platform: str) -> bool:
    from runyard.action.tool_steps import tool_adapter

    return bool(tools) and isinstance(step, ActionStep) and tool_adapter(step, tools, platform) is not None


def node_notes(actions: Actions, steps: tuple[Step, ...], image: str, arch: str) -> list[PlanNote]:
    """A note for each step whose JavaScript action no node here can run in this image; as far as it is known."""
    from runyard.action.manifest import JavaScriptRuns
    from runyard.action.node import choose_node, facts_of
    from runyard.job import Refused

    if all(isinstance(step, RunStep) for step in steps):
        return []
    facts = facts_of(image, arch)
    if facts.libc is None:
        return []
    notes: dict[tuple[int, str], PlanNote] = {}
    for use in actions.gather(steps, pins=None, fetch=False).uses:
        if use.manifest is None or not isinstance(use.manifest.runs, JavaScriptRuns):
            continue
        found = choose_node(actions.nodes(), use.manifest.runs.using, facts.arch, facts.libc)
        if isinstance(found, Refused):
            message = f"{' → '.join(use.chain)} can't run here: {found}"
            notes[use.number, found.promise] = PlanNote(code=NO_NODE, message=message, step=use.number)
    return list(notes.values())


def needs_node(steps: Iterable[Step], *, native: bool) -> bool:
    """Whether some step could come to a JavaScript action; `native`: built-in ones are used."""
    from runyard.action.native import built_in

    return any(isinstance(step, ActionStep) and not (native and built_in(step) is not None) for step in steps)


def read_policy_file(path: str | None) -> Policy | None:
    """The policy of `--policy`. Raises InputError."""
    if path is None:
        return None
    from runyard.admission import read_policy
    from runyard.cli.check import read_bounded

    try:
        data = read_bounded(Path(path))
    except OSError as error:
        raise InputError(f"it can't be read: {error.strerror or error}", path=path, code="input.unreadable") from error
    return read_policy(data, path)
