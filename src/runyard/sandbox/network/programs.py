"""Runs nft and its kin: in another network namespace if need be, with a deadline, without blocking the loop.

Processes are started with `subprocess` (safe with threads about) and waited for by pidfd. Nothing here forks Python.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import subprocess
from pathlib import Path
from typing import Final

import msgspec

from runyard.job import MachineError
from runyard.sandbox.network.levels import find_program

_NS_GET_USERNS: Final = 0xB701
"""ioctl on a namespace's descriptor: the user namespace that owns it (ioctl_nsfs(2))."""

PROGRAM_S: Final = 10.0


class Namespaces(msgspec.Struct, frozen=True):
    """Descriptors of a network namespace and of the user namespace that owns it; `owner` is None for our own."""

    net: int
    owner: int | None

    def close(self) -> None:
        """Close both descriptors."""
        os.close(self.net)
        if self.owner is not None:
            os.close(self.owner)


def hold_namespaces(net: int) -> Namespaces:
    """The namespace of descriptor `net`, duplicated, with its owner. Raises MachineError.

    A sandbox may have two user namespaces; asking the network namespace for its owner finds the one that counts.
    """
    try:
        held = fcntl.fcntl(net, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError as err:
        raise MachineError(f"the sandbox's network can't be opened: {err}", code="sandbox.lost") from err
    try:
        return Namespaces(held, _owner(held))
    except BaseException:
        os.close(held)
        raise


def _owner(net: int) -> int | None:
    try:
        owner = fcntl.ioctl(net, _NS_GET_USERNS)
    except OSError as err:
        raise MachineError(f"the kernel does not tell who owns the sandbox's network: {err}") from err
    os.set_inheritable(owner, False)
    if os.path.samestat(Path("/proc/self/ns/user").stat(), os.fstat(owner)):
        os.close(owner)
        return None
    return owner


async def nft(text: str, *, inside: Namespaces | None = None) -> str:
    """Feed nft a script, in `inside` or here; what it printed. Raises MachineError with what nft said."""
    command = [_need("nft", "nftables"), "-j", "-f", "-"]
    passed: tuple[int, ...] = ()
    if inside is not None:
        command, passed = _entering(inside, command)
    return await run_program(command, text.encode(), passed)


def _entering(inside: Namespaces, command: list[str]) -> tuple[list[str], tuple[int, ...]]:
    enter = [_need("nsenter", "util-linux"), f"--net=/proc/self/fd/{inside.net}"]
    passed = [inside.net]
    if inside.owner is not None:
        passed.append(inside.owner)
        enter.append(f"--user=/proc/self/fd/{inside.owner}")
        enter += ["--setuid", "0", "--setgid", "0"] if _may_set_groups() else ["--preserve-credentials"]
    return [*enter, "--", *command], tuple(passed)


def _may_set_groups() -> bool:
    """Root becomes the namespace's root, whose ids may be a range without its own; a user is mapped to it already.

    nsenter gives up when it may not drop groups, as in a user namespace that a user made.
    """
    try:
        return os.geteuid() == 0 and Path("/proc/self/setgroups").read_text().strip() == "allow"
    except OSError:
        return os.geteuid() == 0


def _need(program: str, package: str) -> str:
    found = find_program(program)
    if found is None:
        raise MachineError(f"{program} is not installed", code="network.program", remedy=f"install {package}")
    return found


async def run_program(
    command: list[str], stdin: bytes, passed: tuple[int, ...] = (), seconds: float = PROGRAM_S
) -> str:
    """Run a program to its end; its standard output. Raises MachineError when it fails or takes too long.

    Input and output go through memory files, so no pipe can fill and nothing has to be pumped.
    """
    given, out, err = (os.memfd_create(name) for name in ("stdin", "stdout", "stderr"))
    try:
        os.write(given, stdin)
        os.lseek(given, 0, os.SEEK_SET)
        try:
            process = subprocess.Popen(command, stdin=given, stdout=out, stderr=err, pass_fds=passed)  # noqa: ASYNC220 - starts, doesn't wait
        except OSError as error:
            raise MachineError(f"{command[0]} can't be started: {error}", code="network.program") from error
        code = await ended(process, seconds)
        said = _whole(err).decode("utf-8", "replace").strip()
        if code is None:
            raise MachineError(f"{command[0]} did not end in {seconds:.0f} s", code="network.program", retryable=True)
        if code != 0:
            raise MachineError(f"{os.path.basename(command[0])} failed: {said or code}", code="network.program")  # noqa: PTH119 - a word for a message
        return _whole(out).decode("utf-8", "replace")
    finally:
        for each in (given, out, err):
            os.close(each)


def _whole(file: int) -> bytes:
    size = os.fstat(file).st_size
    return os.pread(file, size, 0)


async def ended(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """The exit code of a process; None when it did not end in time and was killed. Leaves no zombie."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return process.wait()
    try:
        if await readable(pidfd, seconds):
            return process.wait()
        process.kill()
        process.wait()
        return None
    finally:
        if process.returncode is None:
            # Cancelled while waiting: the program is ours and ends with us.
            process.kill()
            select.select([pidfd], [], [], 2.0)
            process.poll()
        os.close(pidfd)


async def readable(fd: int, seconds: float) -> bool:
    """Wait until a descriptor can be read; False when that took too long."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(fd, _set, ready)
    try:
        done, _ = await asyncio.wait({ready}, timeout=seconds)
    finally:
        loop.remove_reader(fd)
    return bool(done)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
