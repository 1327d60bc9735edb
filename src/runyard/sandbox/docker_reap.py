"""Removes what dead owners left on an engine and in our folders. Safe to call at any time, and by several at once.

Everything we make on an engine is labelled with its owner in the call that makes it, so there is no moment in which
something exists and is nobody's. An owner is a pid with its start, so a pid that is used again is somebody else.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

from runyard.sandbox import docker_now, records, sh
from runyard.sandbox.docker_config import LABEL_OWNER
from runyard.sandbox.network import ruleset
from runyard.sandbox.network.levels import find_program

BRIDGE: Final = re.compile(r"ry[0-9a-f]{10}")
"""A bridge's name, as `docker_network.bridge_name` makes it; other bridges are not ours to judge."""

_GUARD: Final = (
    "import sys\n"
    "for name, path in (('runyard', {top!r}), ('runyard.sandbox', {room!r})):\n"
    "    module = sys.modules[name] = type(sys)(name)\n"
    "    module.__path__ = [path]\n"
    "from runyard.sandbox.docker_guard import main\n"
    "main({socket!r}, {owner})\n"
)
"""Loads the guard without running the packages' own beginnings, whose imports would cost more than the guard."""


def owner_mark() -> str:
    """This process as labels and folders say it."""
    return f"{os.getpid()}-{records.started_at(os.getpid()) or 0}"


def is_dead(mark: str) -> bool:
    """Whether an owner has ended; False for what isn't an owner's mark."""
    pid, _, start = mark.partition("-")
    if not (pid.isdigit() and start.isdigit()):
        return False
    return records.started_at(int(pid)) != int(start)


def reap_engine(socket_path: str, state: str | None = None) -> records.Reaped:
    """Remove containers, networks, volumes and folders of dead owners; folders only where no engine answers."""
    removed: list[str] = []
    left: list[str] = []
    try:
        found = docker_now.listed(socket_path, LABEL_OWNER)
        orphans = {
            kind: [(name, labels) for name, labels in rows if is_dead(labels.get(LABEL_OWNER, ""))]
            for kind, rows in found.items()
        }
        left += docker_now.remove(socket_path, orphans)
        removed += [f"{kind.removesuffix('s')} {name[:12]}" for kind, rows in orphans.items() for name, _ in rows]
    except docker_now.Unanswered:
        pass
    removed += _reap_rules()
    folders = (sh.runtime_folder(), Path(state or records.state_folder()) / "layers")
    for folder in folders:
        for entry in folder.iterdir() if folder.is_dir() else ():
            mark = "-".join(entry.name.split("-")[:2])
            if is_dead(mark):
                shutil.rmtree(entry, ignore_errors=True)
                (left if entry.exists() else removed).append(str(entry))
    return records.Reaped(tuple(removed), tuple(left))


def _reap_rules() -> list[str]:
    """The rules of bridges that are no more; a bridge is always made before its rules are loaded."""
    nft = find_program("nft") if os.geteuid() == 0 else None
    if nft is None:
        return []
    removed = []
    listed = subprocess.run([nft, "-j", "list", "tables"], capture_output=True, text=True, timeout=10, check=False)
    try:
        tables = ruleset.parse_tables(listed.stdout)
    except ValueError:
        return []
    for table in tables:
        bridge = table.removeprefix("runyard_")
        if BRIDGE.fullmatch(bridge) and not Path(f"/sys/class/net/{bridge}").exists():
            text = ruleset.render_removal(table)
            subprocess.run([nft, "-f", "-"], input=text, capture_output=True, text=True, timeout=10, check=False)
            removed.append(f"rules {table}")
    return removed


class Guard:
    """The guard of this process for one engine, started with its first sandbox."""

    def __init__(self, socket_path: str) -> None:
        self._socket_path = socket_path
        self.pid = 0
        self._pipe = -1
        self._lock = threading.Lock()
        self._names: set[str] = set()

    def watch(self, name: str) -> None:
        """A sandbox is about to be made."""
        with self._lock:
            self._names.add(name)
            if not self._runs():
                self._start()
                self._tell("".join(f"+{one}\n" for one in self._names))
            else:
                self._tell(f"+{name}\n")

    def forget(self, name: str) -> None:
        """A sandbox is gone."""
        with self._lock:
            self._names.discard(name)
            self._tell(f"-{name}\n")

    def _runs(self) -> bool:
        if not self.pid:
            return False
        try:
            return os.waitpid(self.pid, os.WNOHANG) == (0, 0)
        except ChildProcessError:
            return False

    def _start(self) -> None:
        """Spawned, not forked, and its beginning isn't waited for: a job starts meanwhile."""
        room = Path(__file__).resolve().parent
        boot = _GUARD.format(top=str(room.parent), room=str(room), socket=self._socket_path, owner=os.getpid())
        read, write = os.pipe2(os.O_CLOEXEC)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        # What is open at one of the three numbers would be closed by exec, so both move out of their way first.
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (read, null)]
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", "-B", "-c", boot],
                {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, ends[0], 0),
                    (os.POSIX_SPAWN_DUP2, ends[1], 1),
                    (os.POSIX_SPAWN_DUP2, ends[1], 2),
                ],
                setsid=True,
                setsigmask=[],
            )
        except BaseException:
            os.close(write)
            raise
        finally:
            for fd in (read, null, *ends):
                os.close(fd)
        if self._pipe >= 0:
            os.close(self._pipe)
        self._pipe = write

    def _tell(self, text: str) -> None:
        try:
            os.write(self._pipe, text.encode())
        except OSError:
            return  # it was killed; the reaper does its work then


_GUARDS: Final[dict[tuple[int, str], Guard]] = {}


def guard_of(socket_path: str) -> Guard:
    """The one guard of this process (a forked child has its own)."""
    key = (os.getpid(), socket_path)
    if key not in _GUARDS:
        _GUARDS[key] = Guard(socket_path)
    return _GUARDS[key]
