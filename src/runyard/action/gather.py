"""Everything that steps use, followed through a store, for commands: what a mirror needs, a lock pins, a run lacks.

With a store that may fetch it fetches; with one that is offline it only looks. What can't be had is collected, never
raised, so that a list is whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from runyard.action.closure import MOST_NESTED, Use, uses_below, uses_of
from runyard.action.native import built_in
from runyard.job import ActionStep, RunyardError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runyard.action.manifest import Manifest
    from runyard.action.store import ActionStore
    from runyard.job import Step


class LocalActions(Protocol):
    """Where local actions are read."""

    def manifest(self, path: str) -> Manifest | None:
        """The manifest at `./path`, None where there is none."""


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """`commits` are by `owner/repo@ref` as first written; `missing` are reasons by reference."""

    uses: tuple[Use, ...] = ()
    commits: dict[str, str] = {}
    missing: dict[str, str] = {}


def gather(steps: Iterable[Step], local: LocalActions, store: ActionStore | None, *, native: bool) -> Gathered:
    """Follow every use. `native`: built-in adapters stand for what they declare, and nothing of it is looked up.

    Without a store remote actions stay names. Blocking.
    """
    uses: list[Use] = []
    commits: dict[str, str] = {}
    missing: dict[str, str] = {}
    looked: set[str] = set()
    level = list(uses_of(steps))
    while level:
        following: list[Use] = []
        for use in level:
            known = use if use.key in looked else _known(use, local, store, commits, missing, native=native)
            uses.append(known)
            if known.key not in looked and len(known.chain) <= MOST_NESTED:
                following += uses_below(known)
            looked.add(known.key)
        level = following
    return Gathered(uses=tuple(uses), commits=commits, missing=missing)


def _known(
    use: Use,
    local: LocalActions,
    store: ActionStore | None,
    commits: dict[str, str],
    missing: dict[str, str],
    *,
    native: bool,
) -> Use:
    step = use.step
    if not isinstance(step, ActionStep):
        return use
    if step.repository is None:
        return msgspec.structs.replace(use, manifest=local.manifest(step.path))
    if native and built_in(step) is not None:
        return msgspec.structs.replace(use, native=True)
    if store is None:
        return use
    try:
        commit = store.resolve(step.repository, step.ref)
        stored = store.get(step.repository, commit, step.ref)
        manifest = store.manifest(stored, step.path, use.uses)
    except RunyardError as error:
        missing[use.uses] = error.message
        return use
    name = f"{step.repository}@{step.ref}"
    if name.lower() not in {each.lower() for each in commits}:
        commits[name] = commit
    return msgspec.structs.replace(use, manifest=manifest)
