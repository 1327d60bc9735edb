"""A small process beside each process with sandboxes on an engine: when that one ends, however, it clears up at once.

An engine keeps containers for clients that are gone. The guard holds the other end of a pipe: a line `+NAME` per
sandbox that is open, `-NAME` when it is closed. At the pipe's end it removes what carries those names. It also looks at
its owner once a second: a process that was killed while the kernel holds it in a read can't end, and so can't close the
pipe, before the container that it reads from is gone. It is started by `docker_reap.Guard`, without the packages' own
beginnings, and imports nothing but the standard library.
"""

from __future__ import annotations

import os
import select

from runyard.sandbox import docker_now


def main(socket_path: str, owner: int) -> None:
    """Until the owner is gone and its sandboxes are removed."""
    os.chdir("/")
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # what our owner's starter left open would wait for our end
    names: set[str] = set()
    held = b""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    while not is_killed(owner):
        if not poll.poll(1000):
            continue
        data = os.read(0, 65536)
        if not data:
            break
        *lines, held = (held + data).split(b"\n")
        for line in lines:
            (names.add if line[:1] == b"+" else names.discard)(line[1:].decode())
    for name in names:
        try:
            docker_now.remove(socket_path, docker_now.listed(socket_path, f"runyard.sandbox={name}"))
        except docker_now.Unanswered:
            continue


def is_killed(pid: int) -> bool:
    """Whether a process has a SIGKILL that it could not follow yet; False where it is simply gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            text = file.read()
    except OSError:
        return False
    return has_pending_kill(text)


def has_pending_kill(status: bytes) -> bool:
    """Whether the text of `/proc/PID/status` tells of a SIGKILL that waits, for a thread or for the process."""
    waiting = (line.split()[1] for line in status.splitlines() if line.startswith((b"SigPnd:", b"ShdPnd:")))
    return any(int(mask, 16) >> 8 & 1 for mask in waiting)
