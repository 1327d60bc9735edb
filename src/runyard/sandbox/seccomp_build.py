"""Writes the seccomp filter and the holding program of each architecture as data.

Run it with `python -m runyard.sandbox.seccomp_build`.

The files under `filters/` are what is used; this script is how they came to be, and a test holds the two together.
A filter is classic BPF, records of 8 bytes (code, jump if true, jump if false, constant). The holding program is a
static executable of under 200 bytes that tells it runs, then sleeps: a sandbox needs one process to stay open and the
image need not have one to offer.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

FILTERS: Final = Path(__file__).resolve().parent / "filters"

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_ANY_BIT: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_ANSWER: Final = 0x06  # BPF_RET | BPF_K

_ALLOW: Final = 0x7FFF0000
_KILL: Final = 0x80000000
_ERRNO: Final = 0x00050000
_EPERM: Final = _ERRNO | 1
_ENOSYS: Final = _ERRNO | 38

_NUMBER_AT: Final = 0
_ARCHITECTURE_AT: Final = 4
_FIRST_ARGUMENT_AT: Final = 16  # its low half, on little-endian machines
_NAMESPACE_FLAGS: Final = 0x7E020080
_X32: Final = 0x40000000
_VSOCK: Final = 40  # the line to the hypervisor: no network namespace holds it

_SAME_EVERYWHERE: Final = {
    "io_uring_setup": 425,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "mount_setattr": 442,
}

ARCHITECTURES: Final[dict[str, tuple[int, dict[str, int]]]] = {
    "x86_64": (
        0xC000003E,
        {
            "clone": 56,
            "unshare": 272,
            "setns": 308,
            "socket": 41,
            "mount": 165,
            "umount2": 166,
            "pivot_root": 155,
            "keyctl": 250,
            "add_key": 248,
            "request_key": 249,
            "bpf": 321,
            "userfaultfd": 323,
            "perf_event_open": 298,
            "open_by_handle_at": 304,
            "init_module": 175,
            "finit_module": 313,
            "delete_module": 176,
            "kexec_load": 246,
            "kexec_file_load": 320,
            **_SAME_EVERYWHERE,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "clone": 220,
            "unshare": 97,
            "setns": 268,
            "socket": 198,
            "mount": 40,
            "umount2": 39,
            "pivot_root": 41,
            "keyctl": 219,
            "add_key": 217,
            "request_key": 218,
            "bpf": 280,
            "userfaultfd": 282,
            "perf_event_open": 241,
            "open_by_handle_at": 265,
            "init_module": 105,
            "finit_module": 273,
            "delete_module": 106,
            "kexec_load": 104,
            "kexec_file_load": 294,
            **_SAME_EVERYWHERE,
        },
    ),
}
"""Audit number and system call numbers by architecture."""

_BY_FLAGS: Final = ("clone", "unshare")
_BY_FAMILY: Final = ("socket",)
_UNKNOWN: Final = ("clone3",)
"""Answered as if the kernel didn't know it, so that the C library falls back to a call whose flags can be seen."""


def build_filter(machine: str) -> bytes:
    """The filter's bytes for `x86_64` or `aarch64`."""
    audit, numbers = ARCHITECTURES[machine]
    refused = [numbers[name] for name in numbers if name not in (*_BY_FLAGS, *_BY_FAMILY, *_UNKNOWN)]
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, audit),
        (_ANSWER, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if machine == "x86_64":
        program += [(_AT_LEAST, 0, 1, _X32), (_ANSWER, 0, 0, _EPERM)]
    for name in _UNKNOWN:
        program += [(_EQUAL, 0, 1, numbers[name]), (_ANSWER, 0, 0, _ENOSYS)]
    for name in _BY_FLAGS:
        program += [
            (_EQUAL, 0, 4, numbers[name]),
            (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
            (_ANY_BIT, 0, 1, _NAMESPACE_FLAGS),
            (_ANSWER, 0, 0, _EPERM),
            (_ANSWER, 0, 0, _ALLOW),
        ]
    for name in _BY_FAMILY:
        program += [
            (_EQUAL, 0, 4, numbers[name]),
            (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
            (_EQUAL, 0, 1, _VSOCK),
            (_ANSWER, 0, 0, _EPERM),
            (_ANSWER, 0, 0, _ALLOW),
        ]
    for left, number in enumerate(refused, start=1):
        program.append((_EQUAL, len(refused) - left + 1, 0, number))
    program += [(_ANSWER, 0, 0, _ALLOW), (_ANSWER, 0, 0, _EPERM)]
    return b"".join(struct.pack("<HBBI", *record) for record in program)


_HOLD: Final = {
    # Block every signal, write(1, "+", 1), close(1), then pause() for ever; mask and byte stand behind the code.
    "x86_64": bytes.fromhex(
        "b80e000000"  # mov eax, 14 (rt_sigprocmask)
        "bf02000000"  # mov edi, 2 (SIG_SETMASK)
        "488d3537000000"  # lea rsi, [rip + 55]
        "31d2"  # xor edx, edx
        "41ba08000000"  # mov r10d, 8
        "0f05"  # syscall
        "b801000000"  # mov eax, 1 (write)
        "bf01000000"  # mov edi, 1
        "488d3523000000"  # lea rsi, [rip + 35]
        "ba01000000"  # mov edx, 1
        "0f05"  # syscall
        "b803000000"  # mov eax, 3 (close)
        "bf01000000"  # mov edi, 1
        "0f05"  # syscall
        "b822000000"  # mov eax, 34 (pause)
        "0f05"  # syscall
        "ebf7"  # jmp to the mov
        "ffffffffffffff2b"
    ),
    # The same with ppoll(0, 0, 0, 0), as there is no pause.
    "aarch64": b"".join(
        word.to_bytes(4, "little")
        for word in (
            0xD2800040,  # mov x0, #2 (SIG_SETMASK)
            0x100002A1,  # adr x1, +84
            0xD2800002,  # mov x2, #0
            0xD2800103,  # mov x3, #8
            0xD28010E8,  # mov x8, #135 (rt_sigprocmask)
            0xD4000001,  # svc #0
            0xD2800020,  # mov x0, #1
            0x70000201,  # adr x1, +67
            0xD2800022,  # mov x2, #1
            0xD2800808,  # mov x8, #64 (write)
            0xD4000001,  # svc #0
            0xD2800020,  # mov x0, #1
            0xD2800728,  # mov x8, #57 (close)
            0xD4000001,  # svc #0
            0xD2800000,  # mov x0, #0
            0xD2800001,  # mov x1, #0
            0xD2800002,  # mov x2, #0
            0xD2800003,  # mov x3, #0
            0xD2800004,  # mov x4, #0
            0xD2800928,  # mov x8, #73 (ppoll)
            0xD4000001,  # svc #0
            0x17FFFFF9,  # b to mov x0, #0
            0xFFFFFFFF,
            0x2BFFFFFF,
        )
    ),
}

_ELF_MACHINE: Final = {"x86_64": 62, "aarch64": 183}
_LOADED_AT: Final = 0x400000


def build_hold(machine: str) -> bytes:
    """The holding program: an ELF header, one program header, the code."""
    code = _HOLD[machine]
    at = 64 + 56
    size = at + len(code)
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = struct.pack("<HHIQQQIHHHHHH", 2, _ELF_MACHINE[machine], 1, _LOADED_AT + at, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _LOADED_AT, _LOADED_AT, size, size, 0x10000)
    return identity + header + segment + code


def build() -> dict[str, bytes]:
    """Every file under `filters/` by name."""
    built = {f"{machine}.bpf": build_filter(machine) for machine in ARCHITECTURES}
    return built | {f"{machine}.hold": build_hold(machine) for machine in ARCHITECTURES}


def main() -> None:
    """Write the files."""
    for name, data in build().items():
        (FILTERS / name).write_bytes(data)


if __name__ == "__main__":
    main()
