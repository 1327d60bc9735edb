"""The process that supervisors are forked from: started once, imports done, almost nothing in memory.

It reads requests from a datagram socket (each with a descriptor of the new supervisor's own socket), forks, and waits
for the next one. It ends when nobody holds the other end of its socket. The job process stays free of forks of its own
size, and a sandbox costs a millisecond instead of an interpreter's start.
"""

from __future__ import annotations

import _socket
import gc
import os
import signal
import sys

from runyard.sandbox.enter import inside, overlaying, supervisor, wire


def main(fd: int) -> None:
    """Serve requests on the socket `fd` until its other end is gone.

    Supervisors and their helpers block every signal: a job that signals all it can see ends its commands, not these.
    """
    # What whoever started us left open for its children (a jobserver's pipe, a terminal) is none of a job's business.
    os.closerange(fd + 1, os.sysconf("SC_OPEN_MAX"))
    sys.path.clear()  # nothing may be imported once a sandbox was entered
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl+C is for the command line, which tells us
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are nobody's zombies; each child resets it
    gc.freeze()
    gc.disable()
    sock = _socket.socket(fileno=fd)
    while True:
        try:
            got = wire.receive(sock)
        except OSError:
            return
        if got is None:
            return
        payload, fds = got
        pid = os.fork()
        if pid == 0:
            _serve(sock, payload, fds)
        for each in fds:
            os.close(each)


def _serve(sock: _socket.socket, payload: bytes, fds: list[int]) -> None:
    status = 1
    try:
        sock.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        request = wire.load_down(payload)
        control = _socket.socket(fileno=fds[0])
        if request[0] == "open":
            supervisor.serve(control, request[1], fds[1:])
        elif request[0] == "listen":
            inside.serve(control, request[1], request[2])
        elif request[0] == "overlay":
            overlaying.serve(control, overlaying.Where(*request[1]), *request[2])
        status = 0
    finally:
        os._exit(status)
