"""The server's own key: one file, for its owner alone. What is sealed with it can be read on no other server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from runyard.job import MachineError

if TYPE_CHECKING:
    from pathlib import Path

KEY_BYTES: Final = 32


def server_key(path: Path) -> bytes:
    """The key in `path`, made at the first start. Raises MachineError for one that can't be read or isn't one."""
    try:
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return _read(path)
    with os.fdopen(made, "wb") as file:
        key = os.urandom(KEY_BYTES)
        file.write(key)
        file.flush()
        os.fsync(file.fileno())
    return key


def _read(path: Path) -> bytes:
    try:
        key = path.read_bytes()
        loose = path.stat().st_mode & 0o077
    except OSError as error:
        raise MachineError(f"{path} can't be read: {error.strerror}", code="server.key") from error
    if len(key) != KEY_BYTES:
        raise MachineError(
            f"{path} is no key: it has {len(key)} bytes, not {KEY_BYTES}",
            code="server.key",
            remedy="Bring back the key that belongs to this data folder; without it what it sealed can't be read.",
        )
    if loose:
        raise MachineError(f"{path} may be read by others", code="server.key", remedy=f"chmod 600 {path}")
    return key
