# ruff: noqa: PTH102, PTH106, PTH110, PTH120
# On the way of every job, where a path object costs more than the call.

"""Memory, CPU and process limits by control groups, found by reading what is mounted (cgroup v1, hybrid, v2).

Which hierarchy holds a controller differs from machine to machine, so nothing is assumed: `/proc/self/mountinfo` says
what is mounted where, `/proc/self/cgroup` where we are. What can't be limited here is refused by name.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from typing import Final, Literal

import msgspec

from runyard.job import Limits, MachineError, Refused

PROCESSES: Final = 4096
"""What a job may have at a time where nobody said: a fork bomb must not take the machine with it."""

Controller = Literal["memory", "cpu", "pids", "cpuacct"]

_REMEDY: Final = "run as root, or let systemd delegate the controllers: systemd-run --user --scope -p Delegate=yes"


class Hierarchy(msgspec.Struct, frozen=True):
    """A mounted hierarchy: its version, the folder of our own group in it, and the mount's own folder."""

    version: Literal[1, 2]
    own: str
    top: str


class Groups(msgspec.Struct, frozen=True):
    """The groups of one sandbox: folders to remove, `cgroup.procs` files to join, files with counters by name."""

    folders: tuple[str, ...] = ()
    join: tuple[str, ...] = ()
    counters: dict[str, str] = {}


def parse_hierarchies(mountinfo: str, own_groups: str) -> dict[str, Hierarchy]:
    """Hierarchies by controller name, from the texts of `/proc/self/mountinfo` and `/proc/self/cgroup`.

    The version 2 hierarchy is there under the name "" too; its controllers are read from its files by `find`.
    """
    own: dict[str, str] = {}
    for line in own_groups.splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            own[name] = path
    found: dict[str, Hierarchy] = {}
    for line in mountinfo.splitlines():
        head, _, tail = line.partition(" - ")
        fields, (kind, _, options) = head.split(" "), tail.split(" ", 2)
        if kind not in ("cgroup", "cgroup2") or len(fields) < 6:
            continue
        root, top = _unescape(fields[3]), _unescape(fields[4])
        names = [""] if kind == "cgroup2" else [name for name in options.split(",") if name in own and name]
        for name in names:
            if name in own:
                below = os.path.relpath(own[name], root) if own[name] != root else "."
                inside = below.startswith("..")
                path = top if below == "." or inside else f"{top}/{below}"
                found.setdefault(name, Hierarchy(2 if kind == "cgroup2" else 1, path, top))
    return found


def _unescape(text: str) -> str:
    return text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def find() -> dict[str, Hierarchy]:
    """Where each controller is on this machine; controllers that nobody mounted are missing."""
    found = parse_hierarchies(_text("/proc/self/mountinfo"), _text("/proc/self/cgroup"))
    unified = found.get("")
    if unified is not None:
        for name in _text(f"{unified.top}/cgroup.controllers").split():
            found.setdefault(name, unified)
    return found


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def parent_of(hierarchy: Hierarchy, controllers: tuple[str, ...]) -> str | None:
    """The group below which ours may be made, or None where that is not permitted.

    Version 1: below our own group, so that outer limits go on to hold. Version 2: the nearest group upwards that hands
    the controllers to its children, or may be told to; a group with processes in it may not.
    """
    if hierarchy.version == 1:
        return hierarchy.own if os.access(hierarchy.own, os.W_OK) else None
    path = hierarchy.own
    while True:
        if os.access(path, os.W_OK) and os.access(f"{path}/cgroup.procs", os.W_OK) and _hands_down(path, controllers):
            return path
        if path == hierarchy.top or len(path) <= len(hierarchy.top):
            return None
        path = os.path.dirname(path)


def _hands_down(path: str, controllers: tuple[str, ...]) -> bool:
    has = set(_text(f"{path}/cgroup.subtree_control").split())
    missing = [name for name in controllers if name not in has]
    if not missing:
        return True
    if not set(missing) <= set(_text(f"{path}/cgroup.controllers").split()):
        return False
    try:
        with open(f"{path}/cgroup.subtree_control", "w", encoding="ascii") as file:
            file.write(" ".join(f"+{name}" for name in missing))
    except OSError:
        return False
    return True


def counted_apart() -> bool:
    """Whether this kernel counts the processes of a user namespace apart (5.14), so that RLIMIT_NPROC bounds one job.

    Before that, the count is that of the user on the whole machine, and a bound of it would hit the wrong ones.
    """
    major, minor = (int("".join(itertools.takewhile(str.isdigit, part)) or 0) for part in _release())
    return (major, minor) >= (5, 14)


def _release() -> list[str]:
    return [*os.uname().release.split("."), "0", "0"][:2]


def wanted(limits: Limits) -> tuple[Controller, ...]:
    """The controllers that these limits need."""
    names: list[Controller] = []
    if limits.memory_mb is not None:
        names.append("memory")
    if limits.cpus is not None:
        names.append("cpu")
    if limits.pids is not None:
        names.append("pids")
    return tuple(names)


def refusals(hierarchies: dict[str, Hierarchy]) -> dict[str, Refused]:
    """The limit promises that can't be kept here, with why."""
    refused: dict[str, Refused] = {}
    for name in ("memory", "cpu", "pids"):
        promise = f"{name}_limit"
        hierarchy = hierarchies.get(name)
        if hierarchy is None:
            refused[promise] = Refused(
                promise, f"no cgroup hierarchy has the {name} controller", "mount it, or use an engine"
            )
        elif parent_of(hierarchy, (name,)) is None:
            refused[promise] = Refused(promise, f"this user may not make groups of the {name} controller", _REMEDY)
        elif name == "cpu" and hierarchy.version == 1 and not _has_quota(hierarchy):
            refused[promise] = Refused(
                promise, "this kernel has no CPU bandwidth control", "use a kernel with CFS_BANDWIDTH"
            )
    return refused


def _has_quota(hierarchy: Hierarchy) -> bool:
    """The root group of a hierarchy has no quota of its own, its children do."""
    if os.path.exists(f"{hierarchy.own}/cpu.cfs_quota_us"):
        return True
    probe = f"{hierarchy.own}/runyard-probe-{os.getpid()}"
    try:
        os.mkdir(probe)
    except OSError:
        return False
    try:
        return os.path.exists(f"{probe}/cpu.cfs_quota_us")
    finally:
        os.rmdir(probe)


_FILES: Final[dict[tuple[str, int], dict[str, str]]] = {
    ("memory", 1): {
        "memory_max": "memory.limit_in_bytes",
        "memory_peak": "memory.max_usage_in_bytes",
        "memory_events": "memory.oom_control",
    },
    ("memory", 2): {"memory_max": "memory.max", "memory_peak": "memory.peak", "memory_events": "memory.events"},
    ("pids", 1): {"pids_max": "pids.max", "pids_events": "pids.events"},
    ("pids", 2): {"pids_max": "pids.max", "pids_events": "pids.events"},
    ("cpu", 1): {},
    ("cpu", 2): {"cpu_stat": "cpu.stat"},
    ("cpuacct", 1): {"cpu_ns": "cpuacct.usage"},
}

_PERIOD_US: Final = 100_000


def settings(limits: Limits, controller: str, version: int) -> list[tuple[str, str, bool]]:
    """Files to write for a controller: name, value, and whether it may be missing (a kernel without swap)."""
    if controller == "memory" and limits.memory_mb is not None:
        size = str(limits.memory_mb << 20)
        if version == 1:
            return [("memory.limit_in_bytes", size, False), ("memory.memsw.limit_in_bytes", size, True)]
        return [("memory.max", size, False), ("memory.swap.max", "0", True)]
    if controller == "pids" and limits.pids is not None:
        return [("pids.max", str(limits.pids), False)]
    if controller == "cpu" and limits.cpus is not None:
        quota = max(1000, int(limits.cpus * _PERIOD_US))
        if version == 1:
            return [("cpu.cfs_period_us", str(_PERIOD_US), False), ("cpu.cfs_quota_us", str(quota), False)]
        return [("cpu.max", f"{quota} {_PERIOD_US}", False)]
    return []


def plan(limits: Limits, name: str, hierarchies: dict[str, Hierarchy]) -> Groups:
    """The groups a sandbox would have; nothing is made yet, so that the record can be written first.

    A sandbox without limits has none: to join one costs each of its commands a tenth of a millisecond.
    """
    folders: dict[str, None] = {}
    counters: dict[str, str] = {}
    for controller in wanted(limits):
        hierarchy = hierarchies.get(controller)
        if hierarchy is None:
            continue
        parent = parent_of(hierarchy, (controller,))
        if parent is None:
            continue
        folder = f"{parent}/{name}"
        folders[folder] = None
        for key, file in _FILES[controller, hierarchy.version].items():
            counters[key] = f"{folder}/{file}"
    return Groups(tuple(folders), tuple(f"{folder}/cgroup.procs" for folder in folders), counters)


def create(groups: Groups, limits: Limits, hierarchies: dict[str, Hierarchy]) -> None:
    """Make the groups and write the limits. Raises MachineError naming the file that refused."""
    for folder in groups.folders:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o755)
    for controller in wanted(limits):
        hierarchy = hierarchies[controller]
        parent = parent_of(hierarchy, (controller,))
        folder = next(folder for folder in groups.folders if os.path.dirname(folder) == parent)
        for file, value, optional in settings(limits, controller, hierarchy.version):
            try:
                with open(f"{folder}/{file}", "w", encoding="ascii") as opened:
                    opened.write(value)
            except OSError as err:
                if not (optional and not os.path.exists(f"{folder}/{file}")):
                    message = f"the limit could not be set: {folder}/{file}: {err.strerror}"
                    raise MachineError(message, code="sandbox.limits") from err


def remove(folders: tuple[str, ...], seconds: float = 2.0) -> list[str]:
    """Remove groups, ending what is left in them; what could not be removed within the time."""
    left = list(folders)
    deadline = time.monotonic() + seconds
    while left:
        for folder in list(left):
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                pass
            except OSError:
                continue
            left.remove(folder)
        if not left or time.monotonic() > deadline:
            break
        for folder in left:
            _end_members(folder)
        time.sleep(0.005)
    return left


def _end_members(folder: str) -> None:
    for line in _text(f"{folder}/cgroup.procs").split():
        with contextlib.suppress(OSError):
            os.kill(int(line), 9)
