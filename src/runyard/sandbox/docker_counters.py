"""What a container used and which limit it hit, read from the host's cgroups without asking the engine.

A few small files in `/sys/fs/cgroup`, readable by every user. Where they can't be found (a rootless engine
with its own delegation) there are no figures, and a step that was killed is told without the limit's name.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from runyard.job import Usage
from runyard.sandbox import limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runyard.job import Limits
    from runyard.sandbox.contract import ExitReason


class Counters:
    """The counters of one container by the pid of its first process."""

    def __init__(self, pid: int, asked: Limits) -> None:
        self._asked = asked
        self._files: Mapping[str, str] = {}
        own = _text(f"/proc/{pid}/cgroup")
        if own:
            found = limits.parse_hierarchies(_text("/proc/self/mountinfo"), own)
            unified = found.get("")
            if unified is not None:
                for name in _text(f"{unified.top}/cgroup.controllers").split():
                    found.setdefault(name, unified)
            self._files = _counter_files(found)
            if unified is not None:  # version 1 counts no write that went through the page cache
                self._files = {**self._files, "io_stat": f"{unified.own}/io.stat"}

    def before(self) -> tuple[int, int]:
        """How often the memory and the process limit were hit so far."""
        return _after(self._read("memory_events"), "oom_kill"), _after(self._read("pids_events"), "max")

    def why(self, before: object) -> tuple[ExitReason | None, str | None]:
        """Which limit was hit since `before`."""
        assert isinstance(before, tuple)
        killed, refused = self.before()
        if killed > before[0]:
            peak, limit = self.peak_memory(), self._number("memory_max")
            return "out_of_memory", f"memory peaked at {_mib(peak)} of the limit of {_mib(limit)}"
        if refused > before[1]:
            return "too_many_processes", f"the limit of {self._number('pids_max')} processes was reached"
        return None, None

    def peak_memory(self) -> int | None:
        """The most memory held so far, in bytes."""
        return self._number("memory_peak")

    def usage(self, wall_s: float) -> Usage:
        """All of it."""
        cpu = _after(self._read("cpu_stat"), "usage_usec") / 1e6 or (self._number("cpu_ns") or 0) / 1e9
        read, written = self.transferred() or (None, None)
        return Usage(wall_s=wall_s, cpu_s=cpu, peak_memory=self.peak_memory(), read_bytes=read, written_bytes=written)

    def transferred(self) -> tuple[int, int] | None:
        """Bytes read from and written to devices so far; None where that isn't counted."""
        path = self._files.get("io_stat")
        return None if path is None or not os.path.exists(path) else transferred(_text(path))  # noqa: PTH110

    def _read(self, name: str) -> str:
        path = self._files.get(name)
        return _text(path) if path else ""

    def _number(self, name: str) -> int | None:
        text = self._read(name).strip()
        return int(text) if text.isdigit() else None


def transferred(text: str) -> tuple[int, int]:
    """The sums of an `io.stat`: bytes read and written, over all devices."""
    sums = {"rbytes": 0, "wbytes": 0}
    for line in text.splitlines():
        for field in line.split()[1:]:
            name, _, value = field.partition("=")
            if name in sums and value.isdigit():
                sums[name] += int(value)
    return sums["rbytes"], sums["wbytes"]


def _counter_files(found: Mapping[str, limits.Hierarchy]) -> dict[str, str]:
    files: dict[str, str] = {}
    for controller in ("memory", "pids", "cpu", "cpuacct"):
        hierarchy = found.get(controller)
        if hierarchy is not None:
            for name, file in limits._FILES.get((controller, hierarchy.version), {}).items():  # noqa: SLF001 - one table
                files[name] = f"{hierarchy.own}/{file}"
    return files


def _after(text: str, word: str) -> int:
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == word and value.isdigit():
            return int(value)
    return 0


def _mib(size: int | None) -> str:
    return "an unknown size" if size is None else f"{size / (1 << 20):.0f} MiB"


def _text(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, 65536).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)
