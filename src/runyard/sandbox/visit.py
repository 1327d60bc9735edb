"""A shell in an open sandbox for who owns it: `python -m runyard.sandbox.visit PID`, PID of its first process.

It enters as a step does, with the same rights, which are none, and on a terminal of the sandbox's own, so that the
job's processes get no hold of the one in front of the user.
"""

from __future__ import annotations

import fcntl
import os
import resource  # noqa: F401 - nothing may be imported once the sandbox was entered
import select
import signal
import sys
import termios
import tty
from typing import NoReturn

from runyard.sandbox.enter import opening, system

_SHELLS = ("/bin/bash", "/bin/sh")


def main() -> int:
    """Visit; the shell's exit code."""
    if len(sys.argv) != 2 or not sys.argv[1].isdigit():
        sys.stderr.write("usage: python -m runyard.sandbox.visit PID\n")
        return 2
    with open(os.path.join(os.path.dirname(__file__), "filters", f"{os.uname().machine}.bpf"), "rb") as file:  # noqa: PTH118, PTH120
        seccomp = file.read()
    opened = opening.Opened(0, int(sys.argv[1]))
    try:
        opening.enter(opened, mapped=os.geteuid() == 0, seccomp=seccomp)
    except OSError as err:
        sys.stderr.write(f"runyard: there is no sandbox to enter behind process {sys.argv[1]}: {err}\n")
        return 3
    sys.path.clear()
    master, slave = os.openpty()
    _take_size(master)
    child = os.fork()
    if child == 0:
        _shell(slave)
    os.close(slave)
    return _relay(master, child)


def _shell(slave: int) -> NoReturn:
    try:
        os.setsid()
        fcntl.ioctl(slave, system.TIOCSCTTY, 0)
        for fd in (0, 1, 2):
            os.dup2(slave, fd)
        os.closerange(3, 256)
        home = "/home/runner"
        env = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": home,
            "USER": "runner",
            "TERM": os.environ.get("TERM", "dumb"),
            "LANG": "C.UTF-8",
        }
        os.chdir(home if os.path.isdir(home) else "/")  # noqa: PTH112
        for shell in _SHELLS:
            if os.access(shell, os.X_OK):
                os.execve(shell, [shell], env)
    finally:
        os._exit(127)


def _take_size(master: int) -> None:
    if os.isatty(0):
        fcntl.ioctl(master, termios.TIOCSWINSZ, fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)))


def _relay(master: int, child: int) -> int:
    """Pass bytes both ways until the shell ends."""
    before = termios.tcgetattr(0) if os.isatty(0) else None
    if before is not None:
        tty.setraw(0)
        signal.signal(signal.SIGWINCH, lambda *_: _take_size(master))
    sources = [0, master]
    try:
        while master in sources:
            ready, _, _ = select.select(sources, [], [])
            for fd in ready:
                try:
                    data = os.read(fd, 65536)
                except OSError:
                    data = b""  # a terminal whose last user went away says EIO
                if fd == master:
                    if not data:
                        sources.remove(master)
                    os.write(1, data)
                elif data:
                    os.write(master, data)
                else:
                    sources.remove(0)
                    os.write(master, b"\x04")
    finally:
        if before is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, before)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
