"""System call numbers of the attempts, by architecture, from the kernel's own tables (asm/unistd.h)."""

from __future__ import annotations

from typing import Final

NUMBERS: Final[dict[str, dict[str, int]]] = {
    "x86_64": {
        "add_key": 248, "bpf": 321, "clone": 56, "clone3": 435, "delete_module": 176, "fsmount": 432, "fsopen": 430,
        "getpid": 39, "init_module": 175, "io_uring_setup": 425, "kexec_load": 246, "keyctl": 250, "kill": 62,
        "mknodat": 259, "mount": 165, "mount_setattr": 442, "move_mount": 429, "open_by_handle_at": 304,
        "open_tree": 428, "perf_event_open": 298, "pivot_root": 155, "request_key": 249, "setns": 308, "umount2": 166,
        "socket": 41, "unshare": 272, "userfaultfd": 323,
    },
    "aarch64": {
        "add_key": 217, "bpf": 280, "clone": 220, "clone3": 435, "delete_module": 106, "fsmount": 432, "fsopen": 430,
        "getpid": 172, "init_module": 105, "io_uring_setup": 425, "kexec_load": 104, "keyctl": 219, "kill": 129,
        "mknodat": 33, "mount": 40, "mount_setattr": 442, "move_mount": 429, "open_by_handle_at": 265,
        "open_tree": 428, "perf_event_open": 241, "pivot_root": 41, "request_key": 218, "setns": 268, "umount2": 39,
        "socket": 198, "unshare": 97, "userfaultfd": 282,
    },
}  # fmt: skip
