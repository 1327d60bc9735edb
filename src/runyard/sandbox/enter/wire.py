"""Frames between the job process and the supervisor: one datagram each, descriptors beside it.

Down (from the trusted side): marshal, which needs no import. Up: MessagePack arrays of plain values, which the job
process decodes into types; the supervisor lives beside the job, so nothing it says is decoded by anything that could
be made to run. What doesn't fit into a datagram travels in a memory file beside it.
"""

from __future__ import annotations

import _socket  # the plain module: `socket` takes twice the start of the interpreter to import
import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INLINE = 60_000
"""Bytes of payload that travel in the datagram itself; the default socket buffer takes three of them."""

MAX_FDS = 32


def send(sock: _socket.socket, payload: bytes, fds: tuple[int, ...] = ()) -> None:
    """One frame. Blocks while the other side is behind; raises OSError when it is gone."""
    spilled = -1
    head = b"i"
    if len(payload) > INLINE:
        spilled = spill(payload)
        fds, payload, head = (*fds, spilled), b"", b"m"
    try:
        rights = (
            [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds))]
            if fds
            else []
        )
        sock.sendmsg([head, payload], rights)
    finally:
        if spilled >= 0:
            os.close(spilled)


def spill(payload: bytes) -> int:
    """A memory file with these bytes, at its beginning."""
    fd = os.memfd_create("runyard-frame", os.MFD_CLOEXEC)
    view = memoryview(payload)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def receive(sock: _socket.socket) -> tuple[bytes, list[int]] | None:
    """The next frame and its descriptors, or None at the end."""
    data, ancillary, _, _ = sock.recvmsg(INLINE + 16, _socket.CMSG_SPACE(4 * MAX_FDS), _socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, raw in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            fds.extend(int.from_bytes(raw[at : at + 4], sys.byteorder) for at in range(0, len(raw) - 3, 4))
    if not data:
        return None
    if data[:1] == b"m":
        spilled = fds.pop()
        try:
            return read_whole(spilled), fds
        finally:
            os.close(spilled)
    return data[1:], fds


def read_whole(fd: int) -> bytes:
    """All bytes of a memory file, whatever its offset says."""
    size = os.fstat(fd).st_size
    parts = []
    offset = 0
    while offset < size:
        part = os.pread(fd, min(1 << 20, size - offset), offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def dump_down(value: tuple[Any, ...]) -> bytes:
    """A frame for the supervisor."""
    return marshal.dumps(value)


def load_down(payload: bytes) -> Any:
    """A frame from the job process."""
    return marshal.loads(payload)


def pack(value: object) -> bytes:
    """MessagePack of None, bool, int, bytes, str, sequences and mappings."""
    out: list[bytes] = []
    _pack(value, out)
    return b"".join(out)


def _pack(value: object, out: list[bytes]) -> None:
    if value is None:
        out.append(b"\xc0")
    elif isinstance(value, bool):
        out.append(b"\xc3" if value else b"\xc2")
    elif isinstance(value, int):
        out.append(bytes((value,)) if 0 <= value < 128 else b"\xd3" + value.to_bytes(8, "big", signed=True))
    elif isinstance(value, (bytes, bytearray)):
        out.append(b"\xc6" + len(value).to_bytes(4, "big"))
        out.append(bytes(value))
    elif isinstance(value, str):
        raw = value.encode("utf-8", "replace")
        out.append(b"\xdb" + len(raw).to_bytes(4, "big") + raw)
    elif isinstance(value, dict):
        out.append(b"\xdf" + len(value).to_bytes(4, "big"))
        for key, item in value.items():
            _pack(key, out)
            _pack(item, out)
    elif isinstance(value, (list, tuple)):
        out.append(b"\xdd" + len(value).to_bytes(4, "big"))
        for item in value:
            _pack(item, out)
    else:
        raise TypeError(type(value).__name__)
