"""The fork server: a warm process from which every job process is forked.

It has imported all that a job needs, has one thread, no event loop and no claim, so a fork of it is clean and takes
milliseconds. It dies with its parent, and every job process dies with it. Over one SEQPACKET socket it is asked to
start a job process on a passed descriptor or to kill one, and tells the process id and how each one ended.

    ask:  Start(id) with one descriptor · Kill(id)          tell:  Started(id, pid) · Ended(id, status)
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
from typing import NoReturn, TypeAlias

import msgspec

from runyard.engine.early import CONTROL_FD

_PR_SET_PDEATHSIG = 1
_SPARE_S = 5.0
"""How long the process that waits may take to answer, imports under way included; then another one is forked."""


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Fork a job process that talks over the descriptor passed along."""

    id: int


class Kill(msgspec.Struct, frozen=True, tag="kill"):
    """End that job process at once. Quiet when it is gone."""

    id: int


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The job process runs; pid 0 means that the fork was refused by the system."""

    id: int
    pid: int


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """How a job process ended, as `os.waitstatus_to_exitcode` says it: negative for a signal."""

    id: int
    code: int


Ask: TypeAlias = Start | Kill
Tell: TypeAlias = Started | Ended

encoder = msgspec.msgpack.Encoder()
ask_decoder: msgspec.msgpack.Decoder[Ask] = msgspec.msgpack.Decoder(Ask)
tell_decoder: msgspec.msgpack.Decoder[Tell] = msgspec.msgpack.Decoder(Tell)


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends; end now if the parent `parent` is gone already."""
    import ctypes  # here, because the command line loads this module too and calls nothing of the system by itself

    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class ForkServer:
    """The loop of the server: one control socket, one pidfd a child."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._pids: dict[int, int] = {}
        self._pidfds: dict[int, int] = {}
        self._spare: tuple[int, socket.socket] | None = None

    def keep_spare(self) -> None:
        """Fork the first job process before it is asked for: it waits for its channel, and has no claim until then."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            ours.close()
        else:
            if pid == 0:
                ours.close()
                self._become_job(server, theirs)
            self._spare = pid, ours
        theirs.close()

    def _take_spare(self, channel: int) -> int:
        """The spare process's id, now with a channel; 0 where there is none, or where it was killed meanwhile."""
        if self._spare is None:
            return 0
        (pid, waiting), self._spare = self._spare, None
        with waiting:
            # A process that is being killed still takes what is sent to it: only its answer says that it is there.
            try:
                socket.send_fds(waiting, [b"+"], [channel])
                waiting.settimeout(_SPARE_S)
                is_there = bool(waiting.recv(1))
            except OSError:
                is_there = False
        if not is_there:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return 0
        return pid

    def serve(self) -> None:
        """Until the parent closes its end; what still runs then is killed."""
        while True:
            for fd, _ in self._poll.poll():
                if fd != self._control.fileno():
                    self._reap(fd)
                elif not self._asked():
                    self._kill_all()
                    return

    def _asked(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._control, 65536, 1)
        if not data:
            return False
        ask = ask_decoder.decode(data)
        if isinstance(ask, Kill):
            if ask.id in self._pids:
                os.kill(self._pids[ask.id], signal.SIGKILL)
            return True
        self._start(ask.id, descriptors[0])
        os.close(descriptors[0])
        return True

    def _start(self, job: int, channel: int) -> None:
        server = os.getpid()
        try:
            pid = self._take_spare(channel) or os.fork()
        except OSError:
            self._tell(Started(job, 0))
            return
        if pid == 0:
            self._become_job(server, channel)
        pidfd = os.pidfd_open(pid)
        self._pids[job] = pid
        self._pidfds[pidfd] = job
        self._poll.register(pidfd, select.POLLIN)
        self._tell(Started(job, pid))

    def _become_job(self, server: int, channel: int | socket.socket) -> NoReturn:
        code = 70
        try:
            die_with_parent(server)
            self._control.close()
            for pidfd in self._pidfds:
                os.close(pidfd)
            from runyard.engine.process import serve_job, warm_for_engine

            if not isinstance(channel, int):
                with channel as waiting:
                    warm_for_engine(lambda: bool(select.select([waiting], (), (), 0)[0]))
                    _, passed, _, _ = socket.recv_fds(waiting, 1, 1)
                    if not passed:  # no job came
                        os._exit(0)
                    waiting.send(b"+")
                channel = passed[0]
                os.set_inheritable(channel, False)
            code = serve_job(socket.socket(fileno=channel))
        finally:
            os._exit(code)

    def _reap(self, pidfd: int) -> None:
        job = self._pidfds.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(self._pids.pop(job), 0)
        self._tell(Ended(job, os.waitstatus_to_exitcode(status)))

    def _tell(self, message: Tell) -> None:
        try:
            self._control.send(encoder.encode(message))
        except (BrokenPipeError, ConnectionError):
            self._kill_all()
            os._exit(0)

    def _kill_all(self) -> None:
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
        if self._spare is not None:
            os.kill(self._spare[0], signal.SIGKILL)
            os.waitpid(self._spare[0], 0)


def _warm_names(also: tuple[str, ...]) -> None:
    """What a job would load later, which the server has time for while the command line reads and plans."""
    from importlib import import_module

    from runyard.job import MachineError
    from runyard.sandbox.refused import bwrap_path

    for name in ("concurrent.futures.thread", *also):
        import_module(name)
    with contextlib.suppress(MachineError):  # told by the job that needs it
        bwrap_path()


def main(parent: int, control: int, also: tuple[str, ...] = ()) -> None:
    """Serve the process `parent` on the socket `control`; `also` are modules that its jobs will ask for by name."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.set_inheritable(control, False)
    gc.disable()  # what is loaded now stays: looking for garbage in it costs a tenth of the time
    from runyard import sandbox

    sandbox.warm()  # the process that sandboxes are opened from starts meanwhile
    import runyard.engine.process  # what a job needs, before the first fork

    runyard.engine.process.warm()
    _warm_names(also)
    gc.freeze()
    gc.enable()
    server = ForkServer(socket.socket(fileno=control))
    server.keep_spare()
    server.serve()


if __name__ == "__main__":
    main(int(sys.argv[1]), CONTROL_FD)
