"""The system calls that the standard library lacks, by ctypes; every failure is an OSError with the call's name.

Numbers from 424 on are the same on every architecture.
"""

from __future__ import annotations

import ctypes
import fcntl
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOATIME = 1024
MS_REC = 16384
MS_PRIVATE = 1 << 18

NS_GET_USERNS = 0xB701
TIOCSCTTY = 0x540E

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4

_OPEN_TREE = 428
_MOVE_MOUNT = 429
_OPENAT2 = 437
_MOUNT_SETATTR = 442
_CAPSET = {"x86_64": 126, "aarch64": 91}
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOVE_MOUNT_T_EMPTY_PATH = 0x40
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_IDMAP = 0x00100000
_RESOLVE_IN_ROOT = 0x10

_LOOP_CTL_GET_FREE = 0x4C82
_LOOP_CONFIGURE = 0x4C0A
_LO_FLAGS_AUTOCLEAR = 4

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


class _SockFilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _checked(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def setns(fd: int, kind: int) -> None:
    """Enter the namespace behind a descriptor."""
    _checked(_libc.setns(fd, kind), "setns")


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for new ones."""
    _checked(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Mount a file system, or change a mount, as `flags` say."""
    _checked(
        _libc.mount(
            source.encode(),
            os.fsencode(target),
            None if kind is None else kind.encode(),
            ctypes.c_ulong(flags),
            options.encode() or None,
        ),
        f"mount {target}",
    )


def clone_tree(path: str, userns: int | None, *, recursive: bool) -> int:
    """A detached copy of the mount at `path`, its ids mapped by the user namespace `userns` if one is given.

    Raises OSError, EINVAL where the file system can't map ids.
    """
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | (_AT_RECURSIVE if recursive else 0)
    tree = _checked(_libc.syscall(_OPEN_TREE, -100, os.fsencode(path), flags), f"open_tree {path}")
    if userns is not None:
        attributes = _MountAttr(attr_set=_MOUNT_ATTR_IDMAP, userns_fd=userns)
        try:
            _checked(
                _libc.syscall(
                    _MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, ctypes.byref(attributes), ctypes.sizeof(attributes)
                ),
                f"mount_setattr {path}",
            )
        except OSError:
            os.close(tree)
            raise
    return tree


def attach_tree(tree: int, target: str) -> None:
    """Put a detached mount at `target`."""
    _checked(
        _libc.syscall(_MOVE_MOUNT, tree, b"", -100, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH),
        f"move_mount {target}",
    )


def attach_tree_at(tree: int, target: int) -> None:
    """Put a detached mount on the folder behind the descriptor `target`."""
    flags = _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH
    _checked(_libc.syscall(_MOVE_MOUNT, tree, b"", target, b"", flags), "move_mount")


def open_in_root(root: int, path: str, flags: int) -> int:
    """Open below the folder `root` as if it were the root: links are followed, but never lead out of it."""
    how = (ctypes.c_uint64 * 3)(flags | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT)
    return _checked(_libc.syscall(_OPENAT2, root, os.fsencode(path or "."), how, ctypes.sizeof(how)), f"openat2 {path}")


def _prctl(option: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> int:
    return int(_libc.prctl(option, ctypes.c_ulong(a), ctypes.c_ulong(b), ctypes.c_ulong(c), ctypes.c_ulong(d)))


def die_with_parent(number: int) -> None:
    """Ask for a signal when the parent ends. Forgotten when credentials change, so ask again after that."""
    _checked(_prctl(_PR_SET_PDEATHSIG, number), "prctl PDEATHSIG")


def be_undumpable(hidden: bool = True) -> None:
    """No process of the job may trace us or read our memory."""
    _checked(_prctl(_PR_SET_DUMPABLE, 0 if hidden else 1), "prctl DUMPABLE")


def be_subreaper() -> None:
    """Orphans among our descendants become our children."""
    _checked(_prctl(_PR_SET_CHILD_SUBREAPER, 1), "prctl CHILD_SUBREAPER")


def drop_everything(seccomp: bytes) -> None:
    """Give up every capability for good, then the wish for new ones, then the calls that the filter refuses."""
    _checked(_prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL), "prctl CAP_AMBIENT")
    for capability in range(64):
        if _prctl(_PR_CAPBSET_DROP, capability) < 0:
            break
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _checked(_libc.syscall(_CAPSET[os.uname().machine], header, nothing), "capset")
    _checked(_prctl(_PR_SET_NO_NEW_PRIVS, 1), "prctl NO_NEW_PRIVS")
    buffer = ctypes.create_string_buffer(seccomp, len(seccomp))
    program = _SockFilterProgram(length=len(seccomp) // 8, filter=ctypes.addressof(buffer))
    _checked(_prctl(_PR_SET_SECCOMP, 2, ctypes.addressof(program)), "prctl SECCOMP")


def attach_loop(image: int) -> str:
    """Bind an image file to a free loop device that goes when its last user goes; the device's path."""
    for _ in range(16):
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
        try:
            number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
        finally:
            os.close(control)
        device = os.open(f"/dev/loop{number}", os.O_RDWR | os.O_CLOEXEC)
        # struct loop_config: fd, block_size, then loop_info64 with lo_flags at byte 52 of it, and 64 reserved bytes.
        config = bytearray(4 + 4 + 232 + 64)
        config[0:4] = image.to_bytes(4, "little")
        config[8 + 52 : 8 + 56] = _LO_FLAGS_AUTOCLEAR.to_bytes(4, "little")
        try:
            fcntl.ioctl(device, _LOOP_CONFIGURE, bytes(config))
        except OSError as err:
            os.close(device)
            if err.errno == 16:  # EBUSY: another took it between the two calls
                continue
            raise
        _kept_open.append(device)
        return f"/dev/loop{number}"
    raise OSError(16, "no free loop device")


_kept_open: list[int] = []
"""Loop devices until they are mounted: a device without a user clears itself."""


def release_loops() -> None:
    """Let the mounts alone hold the loop devices."""
    while _kept_open:
        os.close(_kept_open.pop())
