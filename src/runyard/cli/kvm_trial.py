"""Boots the smallest possible guest: one instruction that halts. Run in a process of its own, because it may hang.

`python -m runyard.cli.kvm_trial` prints one word: `ran`, or what stood in the way. That /dev/kvm exists says little: it
can be opened on machines where every guest hangs or dies. Structures and requests are the kernel's (linux/kvm.h,
x86_64); elsewhere it prints `not tried`.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import sys
from typing import Final

_GET_API_VERSION: Final = 0xAE00
_CREATE_VM: Final = 0xAE01
_GET_VCPU_MMAP_SIZE: Final = 0xAE04
_CREATE_VCPU: Final = 0xAE41
_SET_USER_MEMORY_REGION: Final = 0x4020AE46
_RUN: Final = 0xAE80
_SET_REGS: Final = 0x4090AE82
_GET_SREGS: Final = 0x8138AE83
_SET_SREGS: Final = 0x4138AE84
_EXIT_HLT: Final = 5
_HLT: Final = b"\xf4"
_CODE_AT: Final = 0x1000
_SREGS_SIZE: Final = 312
_REGS_SIZE: Final = 144
_SELECTOR_AT: Final = 12
"""In struct kvm_segment: base (8 bytes), limit (4), selector (2)."""


def main() -> int:
    """Try, print the word, and give 0 when the guest ran."""
    word = _try()
    print(word, flush=True)
    return 0 if word == "ran" else 1


def _try() -> str:
    if os.uname().machine != "x86_64":
        return "not tried on this architecture"
    try:
        return _boot()
    except FileNotFoundError:
        return "absent"
    except PermissionError:
        return "denied"
    except OSError as err:
        return f"failed: {err.strerror}"


def _boot() -> str:
    kvm = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
    version = fcntl.ioctl(kvm, _GET_API_VERSION, 0)
    if version != 12:
        return f"failed: interface version {version}"
    machine = fcntl.ioctl(kvm, _CREATE_VM, 0)
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    memory[:1] = _HLT
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    fcntl.ioctl(machine, _SET_USER_MEMORY_REGION, struct.pack("=IIQQQ", 0, 0, _CODE_AT, mmap.PAGESIZE, address))
    cpu = fcntl.ioctl(machine, _CREATE_VCPU, 0)
    shared = mmap.mmap(cpu, fcntl.ioctl(kvm, _GET_VCPU_MMAP_SIZE, 0))
    special = bytearray(_SREGS_SIZE)
    fcntl.ioctl(cpu, _GET_SREGS, special)
    struct.pack_into("=Q", special, 0, 0)
    struct.pack_into("=H", special, _SELECTOR_AT, 0)
    fcntl.ioctl(cpu, _SET_SREGS, special)
    # rip and rflags are the last two of the eighteen registers; bit 1 of rflags is always set.
    fcntl.ioctl(cpu, _SET_REGS, bytes(_REGS_SIZE - 16) + struct.pack("=QQ", _CODE_AT, 2))
    fcntl.ioctl(cpu, _RUN, 0)
    reason = struct.unpack_from("=I", shared, 8)[0]
    return "ran" if reason == _EXIT_HLT else f"failed: the guest ended with reason {reason}"


if __name__ == "__main__":
    sys.exit(main())
