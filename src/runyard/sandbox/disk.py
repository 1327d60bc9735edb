# ruff: noqa: PTH110
# On the way of every job, where a path object costs more than the call.

"""The disk of a job that has a limit: an image file of that size with ext4 on it, mounted by the supervisor."""

from __future__ import annotations

import os
import shutil
import subprocess

from runyard.job import Refused
from runyard.sandbox.contract import SandboxRefused

_OPTIONS = ("-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard")


def _program() -> str | None:
    return shutil.which("mkfs.ext4", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def refusal() -> Refused | None:
    """Why this machine's root can't make disks of a given size; None where it can."""
    if _program() is None:
        return Refused("disk_limit", "mkfs.ext4 is missing", "install e2fsprogs, or leave disk_mb out")
    if not os.path.exists("/dev/loop-control"):
        return Refused("disk_limit", "there are no loop devices", "modprobe loop, or leave disk_mb out")
    return None


def make(path: str, size_mb: int) -> str:
    """An image of `size_mb` MiB at `path`, sparse. Raises SandboxRefused where no file system can be made."""
    program = _program()
    if program is None:
        raise SandboxRefused(Refused("disk_limit", "mkfs.ext4 is missing", "install e2fsprogs, or leave disk_mb out"))
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, size_mb << 20)
    finally:
        os.close(fd)
    done = subprocess.run([program, *_OPTIONS, path], capture_output=True, timeout=30, check=False)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise SandboxRefused(Refused("disk_limit", f"mkfs.ext4: {said}", "ask for a larger disk_mb"))
    return path
