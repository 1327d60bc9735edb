"""What the steps of a job use, down to the last nested action, as data.

The engine gathers it level by level, so that each level can be judged before anything of it is fetched; admission
judges it; commands list it. Rule kept: gathering decides nothing, and it ends, whatever includes what: each reference
is looked into once.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.action.git_call import GitCallError, run_git
from runyard.action.manifest import (
    MANIFEST_LIMIT,
    MANIFEST_NAMES,
    CompositeRuns,
    Manifest,
    dockerfile_manifest,
    read_manifest,
)
from runyard.job import ActionStep, Checkout, ContainerActionStep, RunStep, Step, TextToken

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

MOST_NESTED: Final = 10
"""Levels of composites in composites; GitHub resolves nine below the workflow's own step (9.1)."""


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """One use of an action by a step: which step of the workflow, and through which actions.

    `chain` are references as written, the workflow's own first, this use last. `manifest` is None as long as it isn't
    known. `native` says that a built-in adapter stands for it.
    """

    number: int
    name: str
    chain: tuple[str, ...]
    step: ActionStep | ContainerActionStep
    manifest: Manifest | None = None
    native: bool = False

    @property
    def uses(self) -> str:
        """The reference itself."""
        return self.chain[-1]

    @property
    def includes_itself(self) -> bool:
        """Whether the same reference stands around it already."""
        return self.uses.lower() in {each.lower() for each in self.chain[:-1]}

    @property
    def key(self) -> str:
        """The same for every use of the same reference; GitHub compares names without case."""
        if isinstance(self.step, ContainerActionStep):
            return self.step.uses
        return f"{(self.step.repository or '').lower()}/{self.step.path}@{self.step.ref}"


def uses_of(steps: Iterable[Step]) -> Iterator[Use]:
    """The uses of a workflow's own steps."""
    for step in steps:
        if not isinstance(step, RunStep):
            name = step.name.value if isinstance(step.name, TextToken) and step.name.value else f"Run {step.uses}"
            yield Use(number=step.number, name=name, chain=(step.uses,), step=step)


def uses_below(outer: Use) -> Iterator[Use]:
    """The uses of a composite's own steps; none where it is no composite or not known."""
    if outer.manifest is not None and isinstance(outer.manifest.runs, CompositeRuns):
        for step in outer.manifest.runs.steps:
            if not isinstance(step, RunStep):
                yield Use(number=outer.number, name=outer.name, chain=(*outer.chain, step.uses), step=step)


class CommittedActions:
    """Local actions as they are in the commit of a run: what a job will find, unless a step changes it."""

    def __init__(self, checkout: Checkout | None) -> None:
        self._checkout = checkout
        self._known: dict[str, Manifest | None] = {}

    def manifest(self, path: str) -> Manifest | None:
        """The manifest at `./path`, None where there is none that can be read. Blocking; a few ms a look."""
        source = self._checkout
        folder = posixpath.normpath(path.replace("\\", "/"))
        if source is None or source.git_dir is None or folder.startswith(("/", "..")):
            return None
        if folder not in self._known:
            self._known[folder] = self._read(source, source.git_dir, folder)
        return self._known[folder]

    def _read(self, source: Checkout, git_dir: str | Path, folder: str) -> Manifest | None:
        from pathlib import Path

        from runyard.job import InputError

        for name in MANIFEST_NAMES:
            file = name if folder == "." else f"{folder}/{name}"
            try:
                data = run_git(["cat-file", "blob", f"{source.tree or source.commit}:{file}"], git_dir=Path(git_dir))
            except GitCallError:
                continue
            if name.lower() == "dockerfile":
                return dockerfile_manifest(file)
            try:
                return read_manifest(data, file) if len(data) <= MANIFEST_LIMIT else None
            except InputError:
                return None  # the step says what is wrong with it, if it gets there
        return None


def committed_closure(steps: Iterable[Step], committed: CommittedActions) -> tuple[Use, ...]:
    """Everything that is known without fetching: the workflow's own uses, and local actions below each other."""
    found: list[Use] = []
    looked: set[str] = set()
    level = list(uses_of(steps))
    while level:
        following: list[Use] = []
        for use in level:
            known = use
            if isinstance(use.step, ActionStep) and use.step.repository is None:
                known = msgspec.structs.replace(use, manifest=committed.manifest(use.step.path))
            found.append(known)
            if known.key not in looked:
                looked.add(known.key)
                following += uses_below(known)
        level = following
    return tuple(found)
