"""The declared stores of a job: laid under its folders before the steps, published after it succeeded.

What a store brings is a layer below the job's own folder: two jobs that begin with the same generation never see each
other. Rule kept: a job that fails, is cancelled or killed publishes nothing, and a store that can't be used makes a job
slower, never wrong.
"""

from __future__ import annotations

import asyncio
import posixpath
from typing import TYPE_CHECKING, Final

from runyard.engine.declared_stores import COMPILERS
from runyard.engine.place import place_tree
from runyard.engine.programs import ask
from runyard.engine.results import Result
from runyard.job import ActionStep, RunyardError
from runyard.sandbox.stores import Identity, Store

if TYPE_CHECKING:
    from runyard.engine.declared_stores import DeclaredStore, StoreSettings
    from runyard.engine.state import Frame, Job
    from runyard.job import Step
    from runyard.sandbox.stores import Generation, Staging

_HOME: Final = "~/"
# Makes the folder; says nothing where something is in it, or where it is a link.
_EMPTY: Final = '[ -L "$1" ] && exit; mkdir -p -- "$1" && [ -z "$(ls -A -- "$1")" ] && printf .'
_SIZE: Final = '[ -L "$1" ] && exit; [ -d "$1" ] && du -sk -- "$1" 2>/dev/null'


class _Open:
    """A store in use by this job."""

    def __init__(self, declared: DeclaredStore, path: str, store: Store) -> None:
        self.declared = declared
        self.path = path
        self.store = store
        self.laid = False
        self.generation: Generation | None = None


class JobStores:
    """The stores of one job. Everything it has to say goes to the record that runs."""

    def __init__(self, job: Job, settings: StoreSettings) -> None:
        self._job = job
        self._settings = settings
        self._open: list[_Open] = []
        self.after = max((step.number for step in job.spec.steps if is_checkout(step)), default=0)
        """The step after which stores in the workspace are laid; 0: before the first."""

    async def begin(self, frame: Frame) -> Result:
        """Open what is declared; lay what is not in the workspace, and the rest where nothing is checked out."""
        job, settings = self._job, self._settings
        for declared in settings.declared:
            identity = self._identity(declared)
            if (part := identity.unknown) is not None:
                frame.log.say(f"Store {declared.name}: left out, since the {part} is not known")
                continue
            path = _place(declared.path, job.layout.workspace, job.layout.home)
            self._open.append(_Open(declared, path, Store(settings.folder, identity)))
            if declared.kind == "compiler":
                job.base_environment = {**job.base_environment, COMPILERS[declared.tool]: path}
        await self.lay(frame, workspace=False)
        if not self.after:
            await self.lay(frame, workspace=True)
        return Result.SUCCESS

    def _identity(self, declared: DeclaredStore) -> Identity:
        job, spec, settings = self._job, self._job.spec, self._job.settings
        image = settings.image if job.containers.job is None else job.containers.job.image
        return Identity(
            repository=self._settings.repository,
            workflow="*" if declared.scope == "repository" and spec.workflow_path else spec.workflow_path,
            name=declared.name,
            place=f"{spec.platform} {settings.sandbox} {image}",
            trust=spec.trust,
            job=spec.key if declared.scope == "job" else "",
            extra=f"{declared.path} {declared.extra}",
        )

    async def lay(self, frame: Frame, *, workspace: bool) -> None:
        """Lay those that wait: in the workspace, or elsewhere."""
        for each in self._open:
            if not each.laid and _is_in_workspace(each.declared) is workspace:
                each.laid = True
                try:
                    await self._lay(frame, each)
                except (RunyardError, OSError) as error:
                    self._let_go(each)
                    frame.log.issue("warning", f"Store {each.declared.name}: not used: {error}")

    async def _lay(self, frame: Frame, each: _Open) -> None:
        job, say = self._job, frame.log.say
        name, shown = each.declared.name, each.declared.path
        answer = await ask(job.session, ("/bin/sh", "-c", _EMPTY, "sh", each.path), job.base_environment)
        if answer != b".":
            say(f"Store {name}: {shown} is not an empty folder: it is left as it is, and not kept")
            self._open.remove(each)
            return
        each.generation = await asyncio.to_thread(each.store.open)
        if each.generation is None:
            say(f"Store {name}: nothing is kept for {shown} yet")
            return
        mark = each.generation.mark
        await place_tree(job.session, each.generation.tree, each.path)
        say(f"Store {name}: {shown} begins with what was kept: {mark.members} files and folders, {mark.size} bytes")

    async def publish(self, frame: Frame) -> None:
        """Keep what the stores' folders hold now; for a job that has succeeded so far."""
        for each in list(self._open):
            if not each.laid or not self._wanted:
                continue
            try:
                await self._publish(frame, each)
            except (RunyardError, OSError) as error:
                frame.log.issue("warning", f"Store {each.declared.name}: nothing new is kept: {error}")

    @property
    def _wanted(self) -> bool:
        job = self._job
        return job.status == "success" and not job.skips_everything

    async def _publish(self, frame: Frame, each: _Open) -> None:
        job, declared = self._job, each.declared
        size = await ask(job.session, ("/bin/sh", "-c", _SIZE, "sh", each.path), job.base_environment)
        word = size.split(b"\t")[0].strip()
        if not word.isdigit():
            frame.log.say(f"Store {declared.name}: {declared.path} is no folder any more: nothing new is kept")
            return
        if int(word) * 1024 > declared.max_bytes:
            frame.log.issue(
                "warning",
                f"Store {declared.name}: nothing new is kept: {int(word) * 1024} bytes are more than its max_size of "
                f"{declared.max_bytes}",
            )
            return
        context = each.store.staging()
        staging: Staging = await asyncio.to_thread(context.__enter__)
        try:
            await job.session.get(each.path, staging.tar)
            mark = await asyncio.to_thread(staging.unpack, limit=declared.max_bytes, before=each.generation)
            if each.generation is not None and mark == each.generation.mark:
                frame.log.say(f"Store {declared.name}: unchanged")
            elif self._wanted:  # an order may have come meanwhile
                await asyncio.to_thread(staging.publish)
                frame.log.say(f"Store {declared.name}: kept {mark.members} files and folders, {mark.size} bytes")
        finally:
            await asyncio.to_thread(context.__exit__, None, None, None)

    def _let_go(self, each: _Open) -> None:
        if each in self._open:
            self._open.remove(each)
        if each.generation is not None:
            each.generation.close()
            each.generation = None

    def close(self) -> None:
        """When the sandbox is closed. Safe to repeat."""
        for each in list(self._open):
            self._let_go(each)


def is_checkout(step: Step) -> bool:
    """Whether a step of the workflow checks a repository out."""
    return isinstance(step, ActionStep) and (step.repository or "").lower() == "actions/checkout"


def _is_in_workspace(declared: DeclaredStore) -> bool:
    return not declared.path.startswith(_HOME)


def _place(path: str, workspace: str, home: str) -> str:
    """Where a store's folder is inside; paths were judged when the declaration was read."""
    base, rest = (home, path.removeprefix(_HOME)) if path.startswith(_HOME) else (workspace, path)
    return posixpath.normpath(posixpath.join(base, rest))
