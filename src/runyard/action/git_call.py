"""Git for actions: outside every sandbox, without anybody's configuration, with deadlines, tokens never in arguments.

A token is given as configuration by way of the environment, for its own address alone: no argument, no file, no URL and
no message holds it.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING, Final

from runyard.job import MachineError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from pathlib import Path

STREAM_DEADLINE_S: Final = 600.0
LOCAL_DEADLINE_S: Final = 120.0
_SLICE_S: Final = 0.2
_PIECE: Final = 1 << 18
_SAID_AT_MOST: Final = 600

_SETTINGS: Final = (
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "core.fsmonitor=false"),
    *("-c", "gc.auto=0"),
    *("-c", "maintenance.auto=false"),
    *("-c", "safe.directory=*"),
    *("-c", "protocol.version=2"),
    *("-c", "transfer.bundleURI=false"),
    *("-c", "credential.helper="),
)
_CREDENTIALS = re.compile(r"://[^/@\s]*@")


class GitCallError(Exception):
    """Git ended with another code than 0. `message` is what it said, short and without credentials."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class StoppedError(Exception):
    """Nobody waits for this any more."""


def git_environment(url: str = "", token: str = "", *, protocol: str = "") -> dict[str, str]:
    """The whole environment of a git process; `token` counts below `url` alone, `protocol` is the only one allowed."""
    env = {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "true",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_ALLOW_PROTOCOL": protocol or "none",
        "GIT_HTTP_LOW_SPEED_LIMIT": "1000",
        "GIT_HTTP_LOW_SPEED_TIME": "30",
        "TMPDIR": tempfile.gettempdir(),
    }
    for name in ("http_proxy", "https_proxy", "no_proxy", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        if name in os.environ:
            env[name] = os.environ[name]
    if token:
        pair = base64.b64encode(f"x-access-token:{token}".encode()).decode()
        env |= {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"http.{url}.extraHeader",
            "GIT_CONFIG_VALUE_0": f"Authorization: Basic {pair}",
        }
    return env


def run_git(
    arguments: list[str],
    *,
    git_dir: Path | None = None,
    env: Mapping[str, str] | None = None,
    deadline_s: float = LOCAL_DEADLINE_S,
    stop: Callable[[], bool] | None = None,
) -> bytes:
    """Standard output of one git command.

    Raises GitCallError, MachineError (no git, deadline), StoppedError when `stop` says so. Ends git's children too.
    """
    process = _start(arguments, git_dir, env, stdin=None)
    deadline = time.monotonic() + deadline_s
    while True:
        try:
            out, said = process.communicate(timeout=_SLICE_S)
            break
        except subprocess.TimeoutExpired:
            late = time.monotonic() > deadline
            if late or (stop is not None and stop()):
                _kill(process)
                if not late:
                    raise StoppedError from None
                raise MachineError(
                    f"git {arguments[0]} took longer than {deadline_s:g} s", code="action.git_deadline", retryable=True
                ) from None
    if process.returncode:
        text = _CREDENTIALS.sub("://", said.decode("utf-8", "replace")).strip()
        raise GitCallError(text[-_SAID_AT_MOST:] or f"git ended with {process.returncode}", process.returncode)
    return out


def stream_objects(
    git_dir: Path, ids: list[str], *, deadline_s: float = STREAM_DEADLINE_S
) -> Generator[_Blob, None, None]:
    """The blobs of these ids in this order, each to be read before the next is asked for."""
    with tempfile.TemporaryFile() as asked:
        asked.write("".join(f"{each}\n" for each in ids).encode())
        asked.seek(0)
        process = _start(["cat-file", "--batch", "--buffer"], git_dir, None, stdin=asked.fileno())
        assert process.stdout is not None
        deadline = time.monotonic() + deadline_s
        try:
            for each in ids:
                if time.monotonic() > deadline:
                    raise MachineError(f"git cat-file took longer than {deadline_s:g} s", code="action.git_deadline")
                head = process.stdout.readline(256).split()
                if len(head) != 3 or head[0].decode() != each or head[1] != b"blob":
                    raise MachineError(f"git could not give the file {each}", code="action.git")
                blob = _Blob(process, int(head[2]))
                yield blob
                blob.finish()
        finally:
            _kill(process)


class _Blob:
    """One object on its way; `size` is known before the bytes come."""

    def __init__(self, process: subprocess.Popen[bytes], size: int) -> None:
        assert process.stdout is not None
        self._out = process.stdout
        self.size = size
        self._left = size

    def pieces(self) -> Iterator[bytes]:
        """The bytes."""
        while self._left:
            piece = self._out.read(min(self._left, _PIECE))
            if not piece:
                raise MachineError("git ended in the middle of a file", code="action.git")
            self._left -= len(piece)
            yield piece

    def finish(self) -> None:
        """Skip what nobody read, and the line end after the object."""
        for _ in self.pieces():
            pass
        self._out.read(1)


def _start(
    arguments: list[str], git_dir: Path | None, env: Mapping[str, str] | None, *, stdin: int | None
) -> subprocess.Popen[bytes]:
    where = [f"--git-dir={git_dir}"] if git_dir is not None else []
    try:
        return subprocess.Popen(
            ["git", *_SETTINGS, *where, *arguments],
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if stdin is None else subprocess.DEVNULL,
            env=dict(env) if env is not None else git_environment(),
            cwd="/",
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise MachineError(
            "git is not installed", code="action.no_git", remedy="Install git, for example: apt-get install git"
        ) from error


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End git and what it started, and collect it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    process.wait()
