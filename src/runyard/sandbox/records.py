# ruff: noqa: PTH110, PTH116, PTH100, PTH101, PTH102, PTH103, PTH104, PTH108, PTH111, PTH112, PTH114, PTH120, PTH208
# On the way of every job, where a path object costs more than the call.

"""What each sandbox owns on this machine, written down before it is made, and removed when its owner is dead.

A record is a folder `sandboxes/NAME` with `record.json`, locked by its owner for as long as it lives; a lock that can
be taken is a dead owner. Mounts and network namespaces live in namespaces that end with their last process, so groups,
files and whatever network helpers were named are what there is to remove.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import time
from typing import Final

import msgspec

from runyard.sandbox import limits

_RECORD: Final = "record.json"
_ENGINES: Final = "engines"
"""A file that says that sandboxes of an engine were made for this state folder."""


class Record(msgspec.Struct, kw_only=True):
    """What one sandbox owns. `processes` are (pid, start time in ticks), so that a pid used again is left alone."""

    name: str
    backend: str
    owner_pid: int
    groups: tuple[str, ...] = ()
    processes: tuple[tuple[int, int], ...] = ()
    containers: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    job_key: str = ""


class Reaped(msgspec.Struct, frozen=True):
    """What `reap` removed: names of sandboxes, and what could not be removed."""

    removed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def state_folder() -> str:
    """Where this user's sandboxes are kept: RUNYARD_STATE_DIR, `/var/lib/runyard` or the user's state folder."""
    if told := os.environ.get("RUNYARD_STATE_DIR"):
        return os.path.abspath(told)
    if os.geteuid() == 0:
        return "/var/lib/runyard"
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return f"{base}/runyard"


def note_engines(state: str) -> None:
    """Say that an engine is used from now on. Safe to repeat; quiet where nothing can be written (a reap then asks)."""
    with contextlib.suppress(OSError):
        os.makedirs(state, mode=0o700, exist_ok=True)
        os.close(os.open(f"{state}/{_ENGINES}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def uses_engines(state: str) -> bool:
    """Whether an engine may hold something of this state folder's owners."""
    return os.path.exists(f"{state}/{_ENGINES}") or (os.path.isdir(state) and not os.access(state, os.W_OK))


class Owned:
    """A record that this process holds."""

    def __init__(self, folder: str, record: Record, lock: int) -> None:
        self.folder = folder
        self.record = record
        self._lock = lock

    def write(self) -> None:
        """Put the record's present state on disk, whole or not at all."""
        path = f"{self.folder}/{_RECORD}"
        with open(f"{path}.new", "wb") as file:
            file.write(msgspec.json.encode(self.record))
        os.rename(f"{path}.new", path)

    def empty(self) -> None:
        """Remove all but the record, which a reaper needs while anything else lives. `remove` says what is left."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.folder):
                if name != _RECORD:
                    _removed(f"{self.folder}/{name}")

    def remove(self) -> list[str]:
        """Remove the folder and with it the record; what could not be removed."""
        left = _remove_tree(self.folder)
        os.close(self._lock)
        return left


def own(state: str, name: str, backend: str) -> Owned:
    """Make and lock the folder of a new sandbox. Raises OSError."""
    parent = f"{state}/sandboxes"
    os.makedirs(parent, mode=0o700, exist_ok=True)
    folder = f"{parent}/{name}"
    path = f"{folder}.lock"
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        # A reaper may have found the lock free in between, taken it for a dead owner's and removed it.
        if os.path.exists(path) and os.path.samestat(os.stat(path), os.fstat(lock)):
            break
        os.close(lock)
    os.mkdir(folder, 0o700)
    return Owned(folder, Record(name=name, backend=backend, owner_pid=os.getpid()), lock)


def started_at(pid: int) -> int | None:
    """When a process started, in ticks since boot; None where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def reap(state: str | None = None) -> Reaped:
    """Remove what dead owners left; safe to call at any time and by several at once. Bounded in time."""
    parent = f"{state or state_folder()}/sandboxes"
    removed: list[str] = []
    left: list[str] = []
    try:
        names = sorted(name.removesuffix(".lock") for name in os.listdir(parent) if name.endswith(".lock"))
    except FileNotFoundError:
        return Reaped()
    for name in names:
        try:
            lock = os.open(f"{parent}/{name}.lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # its owner lives
        else:
            remains = _reap_one(f"{parent}/{name}")
            left += remains
            if not remains:
                removed.append(name)
        finally:
            os.close(lock)
    return Reaped(tuple(removed), tuple(left))


def _reap_one(folder: str) -> list[str]:
    left: list[str] = []
    try:
        with open(f"{folder}/{_RECORD}", "rb") as file:
            record = msgspec.json.decode(file.read(), type=Record)
    except (OSError, msgspec.DecodeError):
        record = None
    if record is not None:
        for pid, start in record.processes:
            if started_at(pid) == start:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        left += limits.remove(record.groups)
    return left + _remove_tree(folder)


def _remove_tree(folder: str) -> list[str]:
    """The folder, then its lock."""
    if not _removed(folder):
        return [folder]
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{folder}.lock")
    return []


def _removed(path: str) -> bool:
    """Whether a tree or file is gone; a mount that is still being torn down gets a moment."""
    deadline = time.monotonic() + 2.0
    while os.path.lexists(path):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, onerror=_make_removable)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        if not os.path.lexists(path):
            break
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _make_removable(function: object, path: str, _why: object) -> None:
    """A folder that its job made unreadable is made ours again, and tried once more."""
    del function
    with contextlib.suppress(OSError):
        os.chmod(os.path.dirname(path), 0o700)
        if os.path.isdir(path) and not os.path.islink(path):
            os.chmod(path, 0o700)
