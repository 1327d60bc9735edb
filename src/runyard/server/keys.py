"""The server's own key: one file, for its owner alone. What is sealed with it can be read on no other server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from runyard.job import MachineError
from runyard.server.control import LockedError

if TYPE_CHECKING:
    from pathlib import Path

    from runyard.server.store.port import Transaction
    from runyard.server.store.rows import Run

KEY_BYTES: Final = 32
_NONCE: Final = 12


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


class SealingVault:
    """Seals what the server must keep for a lease. It has no secrets of repositories to give."""

    def __init__(self, key: bytes) -> None:
        self._cipher = ChaCha20Poly1305(key)

    def is_locked(self, tx: Transaction, repository: str) -> bool:
        """Never: there is nothing to unlock."""
        del tx, repository
        return False

    def secrets(self, tx: Transaction, run: Run, environment: str | None) -> dict[str, str]:
        """None."""
        del tx, run, environment
        return {}

    def seal(self, data: bytes) -> bytes:
        """Encrypt for a row."""
        nonce = os.urandom(_NONCE)
        return nonce + self._cipher.encrypt(nonce, data, b"row")

    def unseal(self, sealed: bytes) -> bytes:
        """Read it again. Raises LockedError under another key."""
        try:
            return self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], b"row")
        except InvalidTag as error:
            raise LockedError("this row was sealed with another key") from error
