"""Starts the fork server before anything else is imported: it loads what jobs need while the input is still read.

Light on purpose (no asyncio, no msgspec): a run waits for its fork server longest, so that is started first. The server
dies with the process that started it, whatever becomes of that.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Final, NamedTuple

CONTROL_FD: Final = 3
"""Where the fork server finds its socket."""


class Spawned(NamedTuple):
    """A fork server that was started: its socket and process id."""

    control: socket.socket
    pid: int


_waiting: list[Spawned] = []


def start() -> None:
    """Start a server that the next `take` gives. Safe to repeat: there is one at a time.

    To be called by the main thread: the server dies with the thread that started it.
    """
    if not _waiting:
        _waiting.append(spawn())


def take() -> Spawned:
    """The server that `start` started, or a new one."""
    return _waiting.pop() if _waiting else spawn()


def spawn() -> Spawned:
    """Start a fork server; returns at once. Raises OSError where no process can be started."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    argv = [sys.executable, "-P", "-m", "runyard.engine.server", str(os.getpid())]
    log = os.environ.get("RUNYARD_ENGINE_LOG") or os.devnull
    actions: list[tuple[int, int, str, int, int] | tuple[int, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
    ]
    # A descriptor that already has the wanted number would keep its close-on-exec flag, so it moves away first.
    source = there.fileno()
    if source == CONTROL_FD:
        source = os.dup(source)
    actions.append((os.POSIX_SPAWN_DUP2, source, CONTROL_FD))
    pid = os.posix_spawn(
        sys.executable, argv, dict(os.environ), file_actions=actions, setsid=True, setsigdef=[signal.SIGPIPE]
    )
    if source != there.fileno():
        os.close(source)
    there.close()
    here.setblocking(False)
    return Spawned(here, pid)
