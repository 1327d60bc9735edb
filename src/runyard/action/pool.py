"""A pool of bare repositories, one for each address, so that a second fetch of a repository brings only what is new.

Slots and jobs of this machine share it: a repository is written under its own lock. It holds no address and no
credential: its folder is a digest of the address, and both travel in the command and the environment of git. A pool
that is broken is made anew, and one that can't be used leaves the origin itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit, urlunsplit

from runyard.action.git_call import GitCallError, run_git
from runyard.action.remotes import is_commit
from runyard.action.store import make_bare
from runyard.job import InputError, MachineError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from runyard.action.remotes import Remote

LOCK_DEADLINE_S: Final = 600.0
KEPT: Final = 32
"""Commits that a repository of the pool keeps reachable; older ones go with git's own pruning."""

_POLL_S: Final = 0.05
_PREFIX: Final = "refs/pool/"
_PRIVATE: Final = "fetched-with-a-token"


class RepositoryPool:
    """The pool in one folder. Blocking; for use in a thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def bring(self, remote: Remote, commit: str, *, ref: str = "", private: bool = False) -> Path:
        """A bare repository that has the commit with its files, fetched as a delta to what is there.

        `private`: a token goes with `remote`. What was fetched with one is only given to who can read the origin now.
        Raises InputError for what is no commit id, MachineError where the origin doesn't give it.
        """
        if not is_commit(commit):
            raise InputError(f"{commit!r} is no whole commit id", code="action.commit")
        place = self._folder / hashlib.sha256(_plain(remote.url).encode()).hexdigest()[:40]
        with self._locked(place):
            if self._has(place, commit):
                if (place / _PRIVATE).exists():
                    remote.check_readable()
            else:
                self._fetch(place, remote, commit, ref)
                if private:
                    (place / _PRIVATE).touch(mode=0o600)
            self._remember(place, commit)
        return place

    def _fetch(self, place: Path, remote: Remote, commit: str, ref: str) -> None:
        if not _is_repository(place):
            shutil.rmtree(place, ignore_errors=True)
        try:
            make_bare(place)
            remote.fetch(commit, place, f"{_PREFIX}{commit}", ref=ref)
            if self._has(place, commit):
                return
            problem = f"{_plain(remote.url)} gave another commit than {commit}"
        except GitCallError as error:
            problem = error.message
        except MachineError as error:
            if error.code in {"action.no_access", "action.not_offered", "action.git_deadline"} or _is_sound(place):
                raise
            problem = error.message
        # The pool itself may be what is broken: once more, from nothing.
        shutil.rmtree(place, ignore_errors=True)
        make_bare(place)
        remote.fetch(commit, place, f"{_PREFIX}{commit}", ref=ref)
        if not self._has(place, commit):
            raise MachineError(f"the commit {commit} can't be had: {problem}", code="action.moved", retryable=True)

    @staticmethod
    def _has(place: Path, commit: str) -> bool:
        """Whether a commit is here with all its trees and files; a fetch that was cut short leaves no reference."""
        if not (place / "HEAD").is_file():
            return False
        try:
            found = run_git(["rev-parse", "--verify", "-q", f"{_PREFIX}{commit}^{{commit}}"], git_dir=place)
            run_git(["cat-file", "-e", f"{commit}^{{tree}}"], git_dir=place)
        except GitCallError:
            return False
        return found.decode().strip() == commit

    @staticmethod
    def _remember(place: Path, commit: str) -> None:
        """Put the commit at the end of those that are kept, and let the oldest go."""
        file = place / "kept"
        try:
            kept = [each for each in file.read_text("ascii").split() if each != commit]
        except (OSError, UnicodeDecodeError):
            kept = []
        kept.append(commit)
        for old in kept[:-KEPT]:
            with contextlib.suppress(GitCallError):
                run_git(["update-ref", "-d", f"{_PREFIX}{old}"], git_dir=place)
        made = file.with_name("kept.new")
        made.write_text("\n".join(kept[-KEPT:]) + "\n", "ascii")
        made.replace(file)
        if len(kept) > KEPT:
            with contextlib.suppress(GitCallError, MachineError):
                run_git(["gc", "--auto", "--quiet"], git_dir=place, deadline_s=60.0)

    @contextlib.contextmanager
    def _locked(self, place: Path) -> Iterator[None]:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(f"{place}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise MachineError(f"{self._folder} can't be written: {error.strerror}", code="action.pool") from error
        try:
            deadline = time.monotonic() + LOCK_DEADLINE_S
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise MachineError(
                            f"another job has been fetching {place.name} for {LOCK_DEADLINE_S:g} s",
                            code="action.pool_lock",
                            retryable=True,
                        ) from None
                    time.sleep(_POLL_S)
            yield
        finally:
            os.close(lock)


def _plain(url: str) -> str:
    """An address without user, password, query and fragment: whoever names the same repository finds the same pool."""
    parts = urlsplit(url)
    if not parts.scheme:
        return url
    host = (parts.hostname or "").lower() + (f":{parts.port}" if parts.port else "")
    return urlunsplit((parts.scheme.lower(), host, parts.path.rstrip("/").removesuffix(".git"), "", ""))


def _is_repository(place: Path) -> bool:
    try:
        run_git(["rev-parse", "--git-dir"], git_dir=place)
    except GitCallError:
        return False
    return True


def _is_sound(place: Path) -> bool:
    """Whether what is in the pool holds together; then it was the origin that failed."""
    try:
        run_git(["fsck", "--connectivity-only", "--no-dangling"], git_dir=place, deadline_s=60.0)
    except (GitCallError, MachineError):
        return False
    return True
