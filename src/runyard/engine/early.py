"""Starts the fork server first of all: it loads what jobs need while the input is still read.

Light on purpose (no asyncio, no msgspec, not even `socket`), because a run waits for its fork server longest. The
server dies with the process that started it, whatever becomes of that.
"""

from __future__ import annotations

import _socket  # the plain module: `socket` builds enumerations, which takes longer than all of this
import fcntl
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import NoReturn

_SIGPIPE = 13
CONTROL_FD = 3
"""Where a server that was started as a program finds its socket."""

_waiting: list[tuple[_socket.socket, int]] = []


def fork(*also: str) -> None:
    """Fork a server that the next `take` gives; it loads the modules `also` too. Quiet where there is one already.

    For the first lines of a program, which has one thread and no state yet: what both sides need is imported first, and
    so it is loaded once for both.
    """
    if _waiting:
        return
    from runyard.sandbox import helper

    helper.start_early(_log())  # so early that it is ready when the first sandbox is: it is a start of Python too
    _load_without("asyncio", "ssl")
    _load_without("msgspec", "typing_extensions")
    import runyard.action.closure
    import runyard.action.native
    import runyard.admission
    import runyard.engine.launch
    import runyard.engine.services
    import runyard.expression.positioned_yaml
    import runyard.report.open
    import runyard.sandbox.bubblewrap
    import runyard.sandbox.registry  # noqa: F401 - all of them loaded for both

    here, there = _pair()
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError:  # told by whoever needs a job process
        helper.forget()
        return
    if pid == 0:
        here.close()
        _become_server(parent, there, also)
    there.close()
    helper.forget()  # the server has it, and job processes after it
    _waiting.append((here, pid))


def _load_without(module: str, costly: str) -> None:
    """Load a module that can do without another one, which is costly to load and which no run needs.

    asyncio without `ssl` has no TLS, which no loop of a run speaks; msgspec without `typing_extensions` takes the same
    names from `typing`. Who imports the other one later has it.
    """
    if module in sys.modules or costly in sys.modules:
        return
    sys.modules[costly] = None  # type: ignore[assignment]  # says "not here" to an import
    try:
        __import__(module)
    finally:
        del sys.modules[costly]


def start() -> None:
    """Start a server as a program that the next `take` gives. Quiet where there is one already.

    To be called by the main thread: the server dies with the thread that started it.
    """
    if not _waiting:
        _waiting.append(_spawn())


def take() -> tuple[socket.socket, int]:
    """The server that was started, or a new one: its socket and process id. Raises OSError where none can be."""
    import socket

    control, pid = _waiting.pop() if _waiting else _spawn()
    control.setblocking(False)
    return socket.socket(fileno=control.detach()), pid


def _pair() -> tuple[_socket.socket, _socket.socket]:
    return _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)


def _log() -> str:
    return os.environ.get("RUNYARD_ENGINE_LOG") or os.devnull


def _become_server(parent: int, control: _socket.socket, also: tuple[str, ...]) -> NoReturn:
    try:
        from runyard.engine.server import main

        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        log = os.open(_log(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        # Where we were started with closed ones, what we opened may have got their numbers: it moves away first.
        null, log, held = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (null, log, control.detach()))
        for number, source in enumerate((null, null, log)):
            os.dup2(source, number)
        main(parent, held, also)
        os._exit(0)
    finally:
        os._exit(70)  # never back into the program that this is a copy of


def _spawn() -> tuple[_socket.socket, int]:
    here, there = _pair()
    argv = [sys.executable, "-P", "-m", "runyard.engine.server", str(os.getpid())]
    actions: list[tuple[int, int, str, int, int] | tuple[int, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, _log(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
    ]
    # A descriptor that already has the wanted number would keep its close-on-exec flag, so it moves away first.
    source = there.fileno()
    if source == CONTROL_FD:
        source = os.dup(source)
    actions.append((os.POSIX_SPAWN_DUP2, source, CONTROL_FD))
    pid = os.posix_spawn(
        sys.executable, argv, dict(os.environ), file_actions=actions, setsid=True, setsigdef=[_SIGPIPE]
    )
    if source != there.fileno():
        os.close(source)
    there.close()
    return here, pid
