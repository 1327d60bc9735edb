# ruff: noqa: PTH100, PTH120
# On the way of every job, where a path object costs more than the call.

"""Starts the helper process that supervisors are forked from: a small interpreter of its own.

Light on purpose (not even `socket`), so that a command line can start it before anything else is loaded.
"""

from __future__ import annotations

import _socket  # the plain module: `socket` builds enumerations, which takes longer than the start itself
import os
import sys
from typing import Final

_BOOT: Final = (
    "import sys\n"
    "for name, path in (('runyard', {top!r}), ('runyard.sandbox', {room!r})):\n"
    "    module = sys.modules[name] = type(sys)(name)\n"
    "    module.__path__ = [path]\n"
    "from runyard.sandbox.enter.zygote import main\n"
    "main(3)\n"
)
"""Loads the supervisor without running the packages' own beginnings, whose imports it must not have."""

_ENVIRONMENT: Final = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}

_waiting: list[_socket.socket] = []


def start_early(log: str) -> None:
    """Start a helper that the next `take` gives; what it has to say goes to the file `log`.

    Quiet where there is one already, or where none can be started.
    """
    if not _waiting:
        try:
            _waiting.append(_spawn(log))
        except OSError:  # told by whoever needs a sandbox
            return


def forget() -> None:
    """Let go of a helper that was started early: it belongs to the process that was forked meanwhile."""
    while _waiting:
        _waiting.pop().close()


def take() -> _socket.socket:
    """The socket of the helper that was started early, else of a new one; requests wait in it. Raises OSError.

    The helper ends when nobody holds this socket any more.
    """
    return _waiting.pop() if _waiting else _spawn()


def _spawn(log: str = "") -> _socket.socket:
    room = os.path.dirname(os.path.abspath(__file__))
    boot = _BOOT.format(top=os.path.dirname(room), room=room)
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", *_byte_code(), "-c", boot],
        _ENVIRONMENT,
        file_actions=[*_streams(log), *_moved(theirs.fileno())],
        setsid=True,
    )
    theirs.close()
    return ours


def _byte_code() -> list[str]:
    """Byte code as it is used here: an interpreter that ignores its environment has to be told."""
    words = ["-B"] if sys.dont_write_bytecode else []
    return [*words, "-X", f"pycache_prefix={sys.pycache_prefix}"] if sys.pycache_prefix else words


def _streams(log: str) -> list[tuple[int, int, str, int, int]]:
    """Nothing to read, nowhere to print: a program that reads our output must not wait for the helper's end."""
    streams = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1)]
    if log:
        streams.append((os.POSIX_SPAWN_OPEN, 2, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    return streams


def _moved(fd: int) -> list[tuple[int, ...]]:
    # A descriptor that already has the wanted number would keep its close-on-exec flag, so it moves away first.
    if fd == 3:
        return [(os.POSIX_SPAWN_DUP2, 3, 4), (os.POSIX_SPAWN_DUP2, 4, 3), (os.POSIX_SPAWN_CLOSE, 4)]
    return [(os.POSIX_SPAWN_DUP2, fd, 3)]
