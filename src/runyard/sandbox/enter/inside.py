# ruff: noqa: PTH116
# The supervisor imports as little as it can, and every call here is on the way of a step.

"""A listening socket inside a network namespace that someone else made (an engine's container).

Enters the namespace's owner first, where it isn't ours already, then the namespace; binds to loopback; passes the
socket back. Nothing of it remains inside. A sandbox's own supervisor needs no such detour: it lives there.
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import os

from runyard.sandbox.enter import system, wire


def listen(port: int) -> _socket.socket:
    """A listening socket on 127.0.0.1 of the namespace we are in."""
    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen(128)
    return sock


def serve(control: _socket.socket, pid: int, port: int) -> None:
    """Answer with a socket that listens inside the network namespace of `pid`, or with why there is none."""
    try:
        net = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        owner = fcntl.ioctl(net, system.NS_GET_USERNS)
        if os.fstat(owner).st_ino != os.stat("/proc/self/ns/user").st_ino:
            system.setns(owner, system.CLONE_NEWUSER)
        system.setns(net, system.CLONE_NEWNET)
        sock = listen(port)
    except OSError as err:
        word = errno.errorcode.get(err.errno or 0, "")
        wire.send(control, wire.pack(["failed", 0, word, str(err)]))
        return
    wire.send(control, wire.pack(["listening", 0, sock.getsockname()[1]]), (sock.fileno(),))
