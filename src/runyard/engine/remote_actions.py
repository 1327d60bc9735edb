"""The engine's store of actions: `runyard.action.store` behind the port of `engine.actions`, outside every sandbox."""

from __future__ import annotations

import asyncio
import tempfile
from typing import TYPE_CHECKING

from runyard.engine.actions import ActionFiles
from runyard.job import InputError, Refused, RunyardError

if TYPE_CHECKING:
    from collections.abc import Callable

    from runyard.action.store import ActionStore
    from runyard.engine.wire import JobSettings
    from runyard.job import ActionStep, Claim

TOKEN = "actions"
"""The name, among a claim's tokens, of one that is for fetching actions alone."""


class StoredActions:
    """Actions for one job. `stop` says when nobody waits any more."""

    def __init__(self, claim: Claim, settings: JobSettings) -> None:
        self._claim = claim
        self._settings = settings
        self._store: ActionStore | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self.stop: Callable[[], bool] = lambda: False

    async def resolve(self, step: ActionStep) -> ActionFiles | Refused:
        """See ActionStore of `engine.actions`."""
        return await asyncio.to_thread(self._resolve, step)

    def _resolve(self, step: ActionStep) -> ActionFiles | Refused:
        from runyard.action.git_call import StoppedError

        repository, uses = step.repository or "", step.uses
        pins = self._settings.action_pins
        try:
            if pins is not None:
                self._check_lock(step, pins)
            store = self._open()
            commit = store.resolve(repository, step.ref)
            stored = store.get(repository, commit, step.ref)
            manifest = store.manifest(stored, step.path, uses)
        except StoppedError:
            return Refused(f"action {uses}", "the job was cancelled")
        except RunyardError as error:
            message = error.message if not isinstance(error, InputError) or error.path is None else str(error)
            return Refused(f"action {uses}", message, error.remedy or "")
        folder = f"{stored.root}/{step.path}" if step.path else stored.root
        return ActionFiles(
            manifest=manifest,
            folder=folder,
            root=stored.root,
            commit=commit,
            notes=_notes(uses, stored.entry.written.flattened),
        )

    def _stopped(self) -> bool:
        return self.stop()

    def _check_lock(self, step: ActionStep, pins: dict[str, str]) -> None:
        from runyard.action.lock import LOCK_FILE, not_locked

        if not_locked([f"{step.repository}@{step.ref}"], pins):
            raise InputError(f"it is not in {LOCK_FILE}", code="lock.missing", remedy="runyard actions lock adds it")

    def _open(self) -> ActionStore:
        if self._store is None:
            from runyard.action.remotes import host_of
            from runyard.action.store import ActionStore

            claim, settings = self._claim, self._settings
            folder = settings.cache_dir
            if not folder:
                self._scratch = tempfile.TemporaryDirectory(prefix="runyard-actions-", ignore_cleanup_errors=True)
                folder = self._scratch.name
            server = str(claim.context.github.get("server_url") or "https://github.com")
            own = claim.tokens.get(TOKEN, "")
            self._store = ActionStore(
                folder,
                settings.remotes,
                offline=settings.offline,
                token=own or claim.secrets.get("GITHUB_TOKEN", ""),
                token_host=host_of(settings.remotes.url if own else server),
                pins=settings.action_pins,
                stop=self._stopped,
            )
        return self._store


def _notes(uses: str, flattened: tuple[str, ...]) -> tuple[str, ...]:
    if not flattened:
        return ()
    shown = ", ".join(flattened[:5]) + (" …" if len(flattened) > 5 else "")
    return (f"{uses}: links that lead out of it are plain files here: {shown}",)
