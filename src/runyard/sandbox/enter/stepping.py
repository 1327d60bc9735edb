# ruff: noqa: PTH110, PTH112, PTH208
# The supervisor imports as little as it can, and every call here is on the way of a step.

"""The watcher: a small process inside the sandbox that starts a command, adopts its orphans and tells how it ended.

It is the subreaper of its command, so whatever the command starts stays its descendant: signals reach daemons that made
a session of their own, and a daemon of an earlier command has another ancestor. It waits with wait4 until nothing of
the command is left, so no exit can be missed; if it is killed itself, the end of its pipe says so. Only when nothing is
left does it take another command, so it never has descendants of two.

    tells a line each:  started PID PID · exit STATUS USAGE… · problem ERRNO WHAT · free
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource  # noqa: F401 - wait4 would load it later, from the image's files
import signal
import time

from runyard.sandbox.enter import system, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from typing import NoReturn

_RESET = [
    number
    for number in signal.valid_signals()
    if number not in (signal.SIGKILL, signal.SIGSTOP) and number < signal.SIGRTMIN
]
_SCORE = b"500"
"""Added to the command's badness, so that the kernel ends it before the processes that watch it."""


class Start:
    """What a command needs: all of it descriptors and bytes, made ready by the supervisor."""

    def __init__(
        self,
        argv: list[bytes],
        env: dict[bytes, bytes],
        cwd: bytes,
        *,
        stdin: int = -1,
        output: int = -1,
        terminal: int = -1,
    ) -> None:
        self.argv = argv
        self.env = env
        self.cwd = cwd
        self.stdin = stdin
        self.output = output
        self.terminal = terminal


def order_for(argv: list[bytes], env: dict[bytes, bytes], cwd: bytes, *, on_terminal: bool) -> bytes:
    """The frame of a command; with it goes the terminal's descriptor, or those of its output and its input."""
    return wire.dump_down((argv, env, cwd, on_terminal))


def serve(orders: _socket.socket, tell: int, groups: list[int]) -> NoReturn:
    """In a fresh child of the supervisor: take commands, one after the other, until the supervisor wants no more.

    It joins the job's groups with the first command, so that one that waits counts for nobody.
    """
    os.umask(0o022)
    score = _score_file()
    _rehearse()
    system.be_subreaper()
    while True:
        if score >= 0:
            os.write(score, _SCORE)
        got = wire.receive(orders)
        if got is None:
            os._exit(0)
        payload, fds = got
        argv, env, cwd, on_terminal = wire.load_down(payload)
        start = Start(argv, env, cwd)
        if on_terminal:
            (start.terminal,) = fds
        else:
            start.output, start.stdin = fds
        try:
            while groups:
                os.write(groups[-1], b"0")
                os.close(groups.pop())
            _run(start, tell, score)
        except OSError as err:
            _tell(tell, f"problem {err.errno or 0} {err}")
            os._exit(1)


def _rehearse() -> None:
    """Go through the start of a command that isn't there: every page that it writes to is our own copy afterwards."""
    frame = order_for([b"sh"], {b"PATH": b"/nowhere"}, b"/", on_terminal=False)
    argv, env, cwd, _ = wire.load_down(frame)
    try:
        _spawned(b"/nowhere/sh", Start(argv, env, cwd, stdin=0, output=1))
    except OSError:
        return


def _tell(tell: int, line: str) -> None:
    os.write(tell, line.encode("utf-8", "replace")[:3000] + b"\n")


def _run(start: Start, tell: int, score: int) -> None:
    """One command, until nothing of it is left."""
    began = time.monotonic()
    main = _started(start, tell, score)
    os.chdir("/")
    for fd in (start.stdin, start.output, start.terminal):
        if fd >= 0:
            os.close(fd)
    is_left = main > 0
    while is_left:
        try:
            pid, status, used = os.wait4(-1, 0)
        except ChildProcessError:
            break
        if pid == main:
            wall = int((time.monotonic() - began) * 1e6)
            cpu = int((used.ru_utime + used.ru_stime) * 1e6)
            numbers = (status, wall, cpu, used.ru_maxrss, used.ru_inblock, used.ru_oublock)
            is_left = _has_children()
            _tell(tell, "exit " + " ".join(str(number) for number in numbers) + ("" if is_left else "\nfree"))
            if not is_left:
                return
    _tell(tell, "free")


def _started(start: Start, tell: int, score: int) -> int:
    """The pid of a command's first process, as the sandbox sees it; 0 after a problem was told."""
    try:
        os.chdir(start.cwd)
    except OSError as err:
        number = errno.ENOENT if err.errno == errno.ENOENT else errno.EACCES
        _tell(tell, f"problem {number} cwd {err.strerror}")
        return 0
    try:
        main = _spawn_on_terminal(start) if start.terminal >= 0 else _spawned(_found(start), start)
    except OSError as err:
        _tell(tell, f"problem {err.errno} argv {err.strerror}")
        return 0
    finally:
        if score >= 0:
            os.write(score, b"0")
    _tell(tell, f"started {os.getpid()} {main}")
    return main


def _has_children() -> bool:
    """Whether anything of the command is left; what has ended is reaped."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return False
    return True


def _found(start: Start) -> bytes:
    """The program's path, by the command's own PATH if it has no slash. Raises OSError."""
    name = start.argv[0]
    if b"/" in name:
        return name
    paths = [(folder or b".") + b"/" + name for folder in start.env.get(b"PATH", b"/usr/bin:/bin").split(b":")]
    for path in paths:
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    if any(os.path.exists(path) for path in paths):
        raise OSError(errno.EACCES, "Permission denied")
    raise OSError(errno.ENOENT, "No such file or directory")


def _spawned(path: bytes, start: Start) -> int:
    return os.posix_spawn(
        path,
        start.argv,
        start.env,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, start.stdin, 0),
            (os.POSIX_SPAWN_DUP2, start.output, 1),
            (os.POSIX_SPAWN_DUP2, start.output, 2),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=_RESET,
    )


def _score_file() -> int:
    """Our own score; the file belongs to root while we can't be traced, so that is lifted for the moment of opening."""
    system.be_undumpable(False)
    try:
        return os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return -1
    finally:
        system.be_undumpable()


def _spawn_on_terminal(start: Start) -> int:
    """With the terminal as controlling one, which no spawn call can arrange."""
    path = _found(start)
    failed_r, failed_w = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            fcntl.ioctl(start.terminal, system.TIOCSCTTY, 0)
            for number in _RESET:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            for fd in (0, 1, 2):
                os.dup2(start.terminal, fd)
            os.execve(path, start.argv, start.env)
        except OSError as err:
            os.write(failed_w, str(err.errno or 0).encode())
        finally:
            os._exit(127)
    os.close(failed_w)
    failed = os.read(failed_r, 16)
    os.close(failed_r)
    if failed:
        os.waitpid(child, 0)
        raise OSError(int(failed), os.strerror(int(failed)))
    return child


def parents() -> dict[int, int]:
    """Every process that is visible here and its parent, from /proc; zombies are left out."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            fd = os.open(f"/proc/{name}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fields = os.read(fd, 1024).rpartition(b")")[2].split()
        except OSError:
            continue
        finally:
            os.close(fd)
        if len(fields) > 1 and fields[0] not in (b"Z", b"X"):
            found[int(name)] = int(fields[1])
    return found


def below(ancestor: int, parent_of: dict[int, int]) -> list[int]:
    """The descendants of a process, nearest first."""
    children: dict[int, list[int]] = {}
    for pid, parent in parent_of.items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    todo = [ancestor]
    while todo:
        todo = [child for parent in todo for child in children.get(parent, ())]
        found += todo
    return found


def send_below(ancestor: int, number: int) -> int:
    """In a child of the supervisor: signal every descendant of a command's process; how many got it.

    The tree could grow while we look at it, so all of it is stopped first, until nothing new appears. What a process
    starts in answer to the signal starts afterwards and is left alone.
    """
    stopped: set[int] = set()
    for _ in range(50):
        new = set(below(ancestor, parents())) - stopped
        if not new:
            break
        for pid in new:
            _send(pid, signal.SIGSTOP)
        stopped |= new
    reached = sum(_send(pid, number) for pid in stopped)
    for pid in stopped:
        _send(pid, signal.SIGCONT)
    return reached


def _send(pid: int, number: int) -> int:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return 0
    return 1
