"""The shipped filter is what the script writes, says what it should by interpretation, and behaves so from inside."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import struct
from pathlib import Path

import pytest

from runyard.sandbox import seccomp_build
from runyard.sandbox.contract import FileIn, Shape, StepCommand
from runyard.sandbox.registry import open_sandbox

ALLOW, KILL = 0x7FFF0000, 0x80000000
NEW_USER = 0x10000000


def verdict(program: bytes, audit: int, number: int, first: int = 0) -> int:
    """What the kernel would answer: classic BPF over struct seccomp_data."""
    data = struct.pack("<IIQQ", number, audit, 0, first) + bytes(40)
    accumulator, at = 0, 0
    records = [struct.unpack_from("<HBBI", program, offset) for offset in range(0, len(program), 8)]
    for _ in range(len(records) + 1):
        code, if_true, if_false, constant = records[at]
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, constant)
        elif code == 0x06:
            return int(constant)
        else:
            held = {
                0x15: accumulator == constant,
                0x35: accumulator >= constant,
                0x45: bool(accumulator & constant),
            }[code]
            at += if_true if held else if_false
    raise AssertionError("the program does not end")


def refused(number: int) -> int:
    return 0x00050000 | number


def test_the_files_are_what_the_script_writes() -> None:
    built = seccomp_build.build()
    assert {path.name for path in seccomp_build.FILTERS.iterdir()} == set(built)
    for name, data in built.items():
        assert (seccomp_build.FILTERS / name).read_bytes() == data, name


@pytest.mark.parametrize("machine", seccomp_build.ARCHITECTURES)
def test_every_listed_call_is_refused_and_others_are_not(machine: str) -> None:
    program = (seccomp_build.FILTERS / f"{machine}.bpf").read_bytes()
    audit, numbers = seccomp_build.ARCHITECTURES[machine]
    for name, number in numbers.items():
        if name in {"clone", "unshare"}:
            assert verdict(program, audit, number, 0) == ALLOW
            for bit in (0x00020000, 0x02000000, 0x04000000, 0x08000000, NEW_USER, 0x20000000, 0x40000000, 0x80):
                assert verdict(program, audit, number, bit) == refused(errno.EPERM)
        elif name == "socket":
            for family in (1, 2, 10, 16, 38):  # local, the two internets, netlink, the kernel's ciphers
                assert verdict(program, audit, number, family) == ALLOW
            assert verdict(program, audit, number, 40) == refused(errno.EPERM), "the hypervisor's sockets"
        elif name == "clone3":
            assert verdict(program, audit, number) == refused(errno.ENOSYS)
        else:
            assert verdict(program, audit, number) == refused(errno.EPERM), name
    listed = set(numbers.values())
    for number in range(460):
        if number not in listed:
            assert verdict(program, audit, number) == ALLOW, number


@pytest.mark.parametrize("machine", seccomp_build.ARCHITECTURES)
def test_other_architectures_are_refused(machine: str) -> None:
    program = (seccomp_build.FILTERS / f"{machine}.bpf").read_bytes()
    own = seccomp_build.ARCHITECTURES[machine][0]
    for audit in (0x40000003, 0x40000028, 0xC000003E, 0xC00000B7):
        if audit != own:
            assert verdict(program, audit, 0) == KILL


def test_the_x32_range_is_refused() -> None:
    program = (seccomp_build.FILTERS / "x86_64.bpf").read_bytes()
    audit, _ = seccomp_build.ARCHITECTURES["x86_64"]
    assert verdict(program, audit, 0x40000000 | 1) == refused(errno.EPERM)


def test_the_holding_program_is_one_static_executable_of_its_machine() -> None:
    for machine, number in (("x86_64", 62), ("aarch64", 183)):
        data = (seccomp_build.FILTERS / f"{machine}.hold").read_bytes()
        assert data[:4] == b"\x7fELF"
        assert struct.unpack_from("<HH", data, 16) == (2, number)
        offset, _, _, in_file, in_memory = struct.unpack_from("<QQQQQ", data, 64 + 8)
        assert (offset, in_file, in_memory) == (0, len(data), len(data))


PROBE = """
import ctypes, errno, os, platform, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    result = libc.syscall(NUMBERS[name], *arguments)
    print(name, errno.errorcode[ctypes.get_errno()] if result < 0 else "done", flush=True)
NUMBERS = {numbers}
nothing = ctypes.c_void_p(0)
call("unshare", 0x10000000)
call("unshare", 0x00020000)
call("setns", 0, 0)
call("mount", b"none", b"/tmp", b"tmpfs", 0, nothing)
call("keyctl", 0, 0, 0)
call("bpf", 0, nothing, 0)
call("userfaultfd", 0)
call("perf_event_open", nothing, 0, 0, 0, 0)
call("io_uring_setup", 1, nothing)
call("fsopen", b"tmpfs", 0)
call("socket", 40, 1, 0)
call("clone3", nothing, 0)
thread = threading.Thread(target=lambda: print("thread ran", flush=True))
thread.start(); thread.join()
child = os.fork()
if child == 0:
    os._exit(7)
print("fork", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.timeout(60)
def test_the_filter_behaves_from_inside(tmp_path: Path) -> None:
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None or not Path(python).resolve().is_relative_to("/usr"):
        pytest.skip("this machine has no Python below /usr to probe with")
    _, numbers = seccomp_build.ARCHITECTURES[os.uname().machine]
    probe = PROBE.replace("{numbers}", repr(numbers)).encode()

    async def go() -> str:
        async with asyncio.timeout(20):
            session = await open_sandbox("bubblewrap", state=str(tmp_path)).prepare(Shape())
            try:
                files = (FileIn("/tmp/probe.py", probe),)
                command = StepCommand(argv=(python, "/tmp/probe.py"), env=session.environment, files_in=files)
                running = await session.start(command)
                parts = []
                while part := await running.read():
                    parts.append(part)
                return b"".join(parts).decode()
            finally:
                await session.close()

    once = ("setns", "mount", "keyctl", "bpf", "userfaultfd", "perf_event_open", "io_uring_setup", "fsopen", "socket")
    names = ("unshare", "unshare", *once)
    expected = [f"{name} EPERM" for name in names] + ["clone3 ENOSYS", "thread ran", "fork 7"]
    assert asyncio.run(go()).splitlines() == expected
