"""The loop of one sandbox: frames in, commands started, answers out.

It has entered the sandbox (`opening.enter`) and holds no capability. It waits on the job process's socket, on a pipe a
watcher and on bubblewrap, and never in between: an exit is told by the watcher's pipe (a line, or its end), so there is
no signal that could be lost. When the job process is gone, so is the sandbox.

A watcher whose command left nothing behind takes the next one: to fork a process for each costs more than its shell.
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import os
import resource
import select
import signal
import sys
import time

from runyard.sandbox.enter import files, inside, opening, stepping, tarball, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OPEN_SECONDS = 20.0


class Watcher:
    """A child of ours that starts commands inside, one after the other, and watches over what they start."""

    def __init__(self, pid: int, orders: _socket.socket, told: int) -> None:
        self.pid = pid
        self.orders = orders
        self.told = told
        self.buffer = b""
        self.command: Command | None = None


class Command:
    """A command that runs, or has left something behind."""

    def __init__(self, number: int, watcher: Watcher, files_out: list[tuple[str, int]], before: list[int]) -> None:
        self.number = number
        self.watcher = watcher
        self.files_out = files_out
        self.before = before
        self.inside: tuple[int, int] | None = (
            None  # the watcher's and the first process's pid, as the sandbox sees them
        )
        self.ended = False
        self.waiting: list[tuple[int, int, bool]] = []


class Task:
    """A child of ours that does something bounded inside the sandbox and says how it went in one line."""

    def __init__(self, number: int, pid: int, told: int, aim: Watcher | None) -> None:
        self.number = number
        self.pid = pid
        self.told = told
        self.aim = aim
        self.buffer = b""


def serve(control: _socket.socket, plan: dict[str, Any], fds: list[int]) -> None:
    """Open the sandbox, enter it, answer frames until the other end is gone or says close."""
    os.umask(0o022)
    bwrap, groups, counters = fds[0], fds[1 : 1 + plan["groups"]], fds[1 + plan["groups"] :]
    try:
        opened = opening.open_sandbox(plan, bwrap, time.monotonic() + _OPEN_SECONDS)
    except opening.Opening as err:
        wire.send(control, wire.pack(["failed", 0, err.stage, err.said]))
        return
    os.close(bwrap)
    try:
        first = os.pidfd_open(opened.first)
        opening.enter(opened, mapped=plan["base"] is not None, seccomp=plan["seccomp"])
    except OSError as err:
        os.kill(opened.bwrap, signal.SIGKILL)
        wire.send(control, wire.pack(["failed", 0, "enter", str(err)]))
        return
    wire.send(control, wire.pack(["opened", opened.first, opened.bwrap]), (opened.owner, opened.net))
    os.close(opened.owner)
    os.close(opened.net)
    os.umask(0)  # the modes of files are written as they were asked for; commands have their own
    Supervisor(control, opened, plan, groups=groups, counters=counters, first=first).run()


class Supervisor:
    """State of the loop."""

    def __init__(
        self,
        control: _socket.socket,
        opened: opening.Opened,
        plan: dict[str, Any],
        *,
        groups: list[int],
        counters: list[int],
        first: int,
    ) -> None:
        self.control = control
        self.bwrap = opened.bwrap
        self.groups = groups
        self.counters = dict(zip(plan["counters"], counters, strict=True))
        self.processes: int | None = plan["processes"]
        self.first = first
        self.disks = [os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for path in ("/", *plan["tmpfs"])]
        self.commands: dict[int, Command] = {}
        self.told: dict[int, Watcher | Task] = {}
        self.poll = select.poll()
        self.pidfd = os.pidfd_open(self.bwrap)
        self.idle: list[Watcher] = []
        self.alive = True
        self.going = True

    def run(self) -> None:
        """Until the job process is gone or says close."""
        control, pidfd = self.control.fileno(), self.pidfd
        self.poll.register(control, select.POLLIN)
        self.poll.register(pidfd, select.POLLIN)
        while self.going:
            if self._wants_watcher() and not self.poll.poll(0):
                self._watcher_ahead()
            ready = dict(self.poll.poll())
            for fd in [fd for fd in ready if fd in self.told]:
                self._hear(self.told[fd])
            if pidfd in ready:
                self._lost()
            if control in ready and self.going:
                self._frame()
        self._end()

    def _say(self, *words: object, fds: tuple[int, ...] = ()) -> None:
        try:
            wire.send(self.control, wire.pack(words), fds)
        except OSError:
            self.going = False

    def _frame(self) -> None:
        try:
            got = wire.receive(self.control)
        except OSError:
            got = None
        if got is None:
            self.going = False
            return
        payload, fds = got
        kind, number, *rest = wire.load_down(payload)
        try:
            if kind == "start":
                self._start(number, rest[0], fds)
            elif kind == "signal":
                self._signal(number, *rest)
            elif kind == "left":
                self._left(number, rest[0])
            elif kind == "listen":
                self._listen(number, rest[0])
            elif kind == "put":
                self._task(number, lambda: tarball.unpack(fds[0], rest[0]))
            elif kind == "get":
                self._task(number, lambda: tarball.pack(fds[0], rest[0]))
            elif kind == "usage":
                self._say("usage", number, self._read_counters())
            elif kind == "close":
                self.going = False
        except OSError as err:
            self._say("failed", number, errno.errorcode.get(err.errno or 0, ""), str(err))
        finally:
            for fd in fds:
                os.close(fd)

    # commands

    def _start(self, number: int, order: dict[str, Any], fds: list[int]) -> None:
        if not self.alive:
            self._exit(number, 137, 9, reason="sandbox_lost", detail="the sandbox is gone")
            return
        try:
            files.write_all(order["files_in"])
        except OSError as err:
            reason = "disk_full" if err.errno == errno.ENOSPC else None
            self._exit(number, 126, None, problem=f"{err.strerror or err}", reason=reason)
            return
        master = terminal = stdin = -1
        try:
            if order["terminal"] is not None:
                master, terminal = os.openpty()
                _set_size(terminal, *order["terminal"])
            elif order["stdin"] is not None:
                stdin = wire.spill(order["stdin"])
            else:
                stdin = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
            before = self._limit_hits()
            given = (terminal,) if terminal >= 0 else (fds[0], stdin)
            frame = stepping.order_for(order["argv"], order["env"], order["cwd"], on_terminal=terminal >= 0)
            try:
                watcher = self._ordered(frame, given, (*fds, master, terminal, stdin))
            except OSError as err:
                self._refused_fork(number, err)
                return
            watcher.command = self.commands[number] = Command(number, watcher, order["files_out"], before)
            if master >= 0:
                self._say("terminal", number, fds=(master,))
        finally:
            for fd in (master, terminal, stdin):
                if fd >= 0:
                    os.close(fd)

    # watchers

    def _wants_watcher(self) -> bool:
        """Whether one should be made before it is needed: none is idle, and none will soon be."""
        return self.alive and not self.idle and all(command.ended for command in self.commands.values())

    def _watcher_ahead(self) -> None:
        try:
            self.idle.append(self._new_watcher())
        except OSError:
            return  # tried again when there is something to start

    def _ordered(self, frame: bytes, given: tuple[int, ...], ours: tuple[int, ...]) -> Watcher:
        """The watcher that got an order: one that waits for it already, or a new one. Raises OSError."""
        while self.idle:
            watcher = self.idle.pop()
            try:
                os.kill(watcher.pid, signal.SIGCONT)  # the job may have stopped it
                wire.send(watcher.orders, frame, given)
            except OSError:
                _kill(watcher.pid)  # the job has done so already
                self._forget(watcher)
            else:
                return watcher
        watcher = self._new_watcher(ours)
        wire.send(watcher.orders, frame, given)
        return watcher

    def _new_watcher(self, ours: tuple[int, ...] = ()) -> Watcher:
        """Fork one; `ours` are descriptors that it must not hold. Raises OSError."""
        here, there = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        tell_r, tell_w = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            here.close()
            os.close(tell_r)
            raise
        else:
            if pid == 0:
                try:
                    here.close()
                    self._leave_parent((tell_r, *ours))
                    stepping.serve(there, tell_w, self.groups)
                finally:
                    os._exit(1)  # whatever happens here, there is one supervisor
        finally:
            there.close()
            os.close(tell_w)
        watcher = Watcher(pid, here, tell_r)
        self.told[tell_r] = watcher
        self.poll.register(tell_r, select.POLLIN)
        return watcher

    def _leave_parent(self, more: tuple[int, ...] = ()) -> None:
        """In a child: what belongs to the supervisor alone is closed.

        The bound of processes is for commands: the supervisor must be able to fork whatever they did.
        """
        if self.processes is not None:
            resource.setrlimit(resource.RLIMIT_NPROC, (self.processes, self.processes))
        self._close_own()
        for fd in more:
            if fd >= 0:
                os.close(fd)

    def _close_own(self) -> None:
        self.control.close()
        for who in self.told.values():
            os.close(who.told)
            if isinstance(who, Watcher):
                who.orders.close()
        for fd in (self.pidfd, self.first, *self.disks, *self.counters.values()):
            os.close(fd)

    def _forget(self, who: Watcher | Task) -> None:
        """A child of ours that has ended, or is about to."""
        self.poll.unregister(who.told)
        del self.told[who.told]
        os.close(who.told)
        if isinstance(who, Watcher):
            who.orders.close()
            if who in self.idle:
                self.idle.remove(who)
        _reap(who.pid)

    def _free(self, watcher: Watcher) -> None:
        """Nothing of its command is left: it may take the next one. More than one need not wait for that."""
        command, watcher.command = watcher.command, None
        if command is not None:
            self._is_over(command)
        aimed_at = any(isinstance(who, Task) and who.aim is watcher for who in self.told.values())
        if self.idle or aimed_at:
            watcher.orders.close()  # it ends, and then its pipe: what is meant for its last command hits no other
        else:
            self.idle.append(watcher)

    def _is_over(self, command: Command) -> None:
        del self.commands[command.number]
        for request, _, _ in command.waiting:
            self._say("signalled", request)

    def _refused_fork(self, number: int, err: OSError) -> None:
        if err.errno == errno.ENOMEM and self._gone(1.0):
            self._exit(number, 137, 9, reason="sandbox_lost", detail="the sandbox's first process was killed")
            return
        self._exit(number, 126, None, problem=f"fork: {err.strerror}")

    def _hear(self, who: Watcher | Task) -> None:
        data = os.read(who.told, 65536)
        who.buffer += data
        *lines, who.buffer = who.buffer.split(b"\n")
        for line in lines:
            if isinstance(who, Task):
                self._say("done", who.number, line.decode("utf-8", "replace"))
                who.number = -1
            elif line == b"free":
                self._free(who)
            elif who.command is not None:
                self._command_says(who.command, line.decode("utf-8", "replace"))
        if data:
            return
        self._forget(who)
        if isinstance(who, Task):
            if who.number >= 0:
                self._say("done", who.number, "failed: it was killed")
        elif who.command is not None:
            self._is_over(who.command)
            if not who.command.ended:
                self._watcher_killed(who.command)

    def _command_says(self, command: Command, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "started":
            watcher, first = rest.split()
            command.inside = (int(watcher), int(first))
            waiting, command.waiting = command.waiting, []
            for request, number, everyone in waiting:
                self._signal(command.number, request, number, everyone)
        elif word == "exit" and not command.ended:
            command.ended = True
            status, wall, cpu, peak, read, written = (int(part) for part in rest.split())
            usage = [wall, cpu, peak * 1024, read * 512, written * 512]
            code = os.waitstatus_to_exitcode(status)
            sig = -code if code < 0 else None
            back = files.read_all(command.files_out)
            reason, detail = self._why(command, failed=code != 0)
            self._exit(command.number, 128 - code if code < 0 else code, sig, usage, back, reason=reason, detail=detail)
        elif word == "problem" and not command.ended:
            command.ended = True
            problem, _, what = rest.partition(" ")
            code = 127 if int(problem) == errno.ENOENT else 126
            reason, detail = self._why(command, failed=True)
            if int(problem) == errno.EAGAIN and reason is None and (self.processes or "pids_max" in self.counters):
                reason, detail = "too_many_processes", self._pids_detail()
            self._exit(command.number, code, None, problem=what, reason=reason, detail=detail)

    def _watcher_killed(self, command: Command) -> None:
        """Only the job itself can have ended the process that watched a command."""
        if self._gone(0.5):
            self._exit(
                command.number,
                137,
                9,
                reason="sandbox_lost",
                detail="the job ended the process that holds its sandbox open, as `kill -9 -1` does",
            )
            return
        reason, detail = self._why(command, failed=True)
        self._exit(command.number, 137, 9, reason=reason, detail=detail)

    def _exit(
        self,
        number: int,
        code: int,
        sig: int | None,
        usage: list[int] | None = None,
        back: dict[str, tuple[bytes, str | None, int]] | None = None,
        *,
        problem: str | None = None,
        reason: str | None = None,
        detail: str | None = None,
    ) -> None:
        self._say("exit", number, code, sig, usage or [0, 0, 0, 0, 0], back or {}, problem, reason, detail)

    # signals

    def _signal(self, number: int, request: int, what: int, everyone: bool) -> None:
        command = self.commands.get(number)
        if command is None or not self.alive:
            self._say("signalled", request)
            return
        _continue(command.watcher.pid)  # the job may have stopped it, even before it told the start
        if command.inside is None:
            command.waiting.append((request, what, everyone))
            return
        watcher, first = command.inside
        if not everyone and command.ended:
            self._say("signalled", request)
            return

        def send() -> None:
            if everyone:
                stepping.send_below(watcher, what)
            else:
                os.kill(first, what)

        self._task(request, send, command.watcher)

    def _left(self, number: int, request: int) -> None:
        command = self.commands.get(number)
        if command is None or command.inside is None or not self.alive:
            self._say("done", request, "ok")
            return
        watcher, _ = command.inside
        self._task(request, lambda: "left" if stepping.below(watcher, stepping.parents()) else "")

    def _task(self, number: int, work: Any, aim: Watcher | None = None) -> None:
        """Do work in a child; `aim` is the watcher whose descendants it is about."""
        tell_r, tell_w = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                self._close_own()
                try:
                    os.umask(0o022)
                    said = work()
                    line = f"ok {said or ''}"
                except (OSError, ValueError) as err:
                    line = f"failed: {err}"
                os.write(tell_w, line.replace("\n", " ").encode("utf-8", "replace")[:3000] + b"\n")
                status = 0
            finally:
                os._exit(status)
        os.close(tell_w)
        task = Task(number, pid, tell_r, aim)
        self.told[tell_r] = task
        self.poll.register(tell_r, select.POLLIN)

    def _listen(self, number: int, port: int) -> None:
        sock = inside.listen(port)
        self._say("listening", number, sock.getsockname()[1], fds=(sock.fileno(),))
        sock.close()

    # limits

    def _limit_hits(self) -> list[int]:
        return [
            _number_after(self.counters.get("memory_events"), b"oom_kill"),
            _number_after(self.counters.get("pids_events"), b"max"),
        ]

    def _why(self, command: Command, *, failed: bool) -> tuple[str | None, str | None]:
        """Which limit ended a command, in words with the peak; nothing for a command that succeeded."""
        if not failed:
            return None, None
        killed, refused = self._limit_hits()
        if killed > command.before[0]:
            peak, limit = self._number("memory_peak"), self._number("memory_max")
            return "out_of_memory", f"memory peaked at {_mib(peak)} of the limit of {_mib(limit)}"
        if refused > command.before[1]:
            return "too_many_processes", self._pids_detail()
        for disk in self.disks:
            facts = os.fstatvfs(disk)
            size, free = facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize
            if free < min(1 << 20, size // 100):
                return "disk_full", f"disk peaked at {_mib(size - free)} of {_mib(size)}"
        return None, None

    def _pids_detail(self) -> str:
        return f"the limit of {self.processes or self._number('pids_max')} processes was reached"

    def _number(self, name: str) -> int:
        fd = self.counters.get(name)
        if fd is None:
            return 0
        text = os.pread(fd, 64, 0).strip()
        return int(text) if text.isdigit() else 0

    def _read_counters(self) -> list[int]:
        return [self._number("memory_peak"), self._cpu_us()]

    def _cpu_us(self) -> int:
        if "cpu_stat" in self.counters:
            return max(0, _number_after(self.counters["cpu_stat"], b"usage_usec"))
        return self._number("cpu_ns") // 1000

    # the end

    def _gone(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def _lost(self) -> None:
        """Bubblewrap ended, and with it everything inside; the pipes of its commands end by themselves."""
        self.poll.unregister(self.pidfd)
        self.alive = False
        self._say("lost", "the job ended the process that holds its sandbox open, as `kill -9 -1` does")

    def _end(self) -> None:
        for pidfd in (self.first, self.pidfd):
            _end(pidfd)
        for who in self.told.values():
            _reap(who.pid)
        _reap(self.bwrap)
        poll = select.poll()
        poll.register(self.first, select.POLLIN)
        poll.poll(5000)  # readable when the last process inside is gone
        self._say("closed")


def _end(pidfd: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return


def _continue(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except OSError:
        return


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return


def _number_after(fd: int | None, name: bytes) -> int:
    if fd is None:
        return -1
    for line in os.pread(fd, 4096, 0).split(b"\n"):
        key, _, value = line.partition(b" ")
        if key == name and value.isdigit():
            return int(value)
    return -1


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def _set_size(fd: int, rows: int, columns: int) -> None:
    size = b"".join(value.to_bytes(2, sys.byteorder) for value in (rows, columns, 0, 0))
    fcntl.ioctl(fd, 0x5414, size)  # TIOCSWINSZ
