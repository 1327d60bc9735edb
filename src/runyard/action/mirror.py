"""A mirror of actions: one bare repository for each, with the tags, branches and commits that workflows name.

It is a folder that can be carried to a machine without network, or be shared by many; `Remotes.mirror` names it.
Blocking; one writer at a time.
"""

from __future__ import annotations

import fcntl
import time
from typing import TYPE_CHECKING, Final

from runyard.action.git_call import GitCallError, run_git
from runyard.action.remotes import Remote, check_ref, check_repository, is_commit
from runyard.action.store import make_bare
from runyard.job import InputError, MachineError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_LOCK_DEADLINE_S: Final = 600.0


class Mirror:
    """The mirror in `folder`; `remote` gives the server's side of a repository."""

    def __init__(self, folder: Path, remote: Callable[[str], Remote]) -> None:
        self._folder = folder
        self._remote = remote

    def fill(self, repository: str, ref: str) -> tuple[str, bool]:
        """Bring what a reference means now; the commit, and whether anything was fetched. Safe to repeat.

        Raises InputError for what doesn't exist, MachineError for a server that can't be asked.
        """
        check_repository(repository)
        remote = self._remote(repository)
        if is_commit(ref):
            name, commit = f"refs/runyard/{ref}", ref
        else:
            check_ref(ref)
            found = remote.find_named(ref)
            if found is None:
                raise InputError(f"{repository} has no branch or tag {ref!r}", code="action.no_ref")
            name, commit = found
        bare = self._folder / f"{repository.lower()}.git"
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / ".lock").open("a+b") as lock:
            _lock(lock.fileno())
            make_bare(bare)
            if _points(bare, name) == commit:
                return commit, False
            remote.fetch(commit, bare, name, ref=ref)
            if _points(bare, name) != commit:
                run_git(["update-ref", "-d", name], git_dir=bare)
                raise MachineError(
                    f"{repository}@{ref} changed while it was fetched", code="action.moved", retryable=True
                )
        return commit, True


def _points(bare: Path, name: str) -> str | None:
    try:
        found = run_git(["rev-parse", "--verify", "-q", f"{name}^{{commit}}"], git_dir=bare)
    except GitCallError:
        return None
    return found.decode().strip()


def _lock(descriptor: int) -> None:
    deadline = time.monotonic() + _LOCK_DEADLINE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise MachineError(
                    "another command fills this mirror for too long", code="action.mirror_lock"
                ) from None
            time.sleep(0.05)
        else:
            return
