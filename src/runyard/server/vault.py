"""The vault: secrets of a repository under a data key of its own, and that key under a passphrase or the server's key.

A repository begins without a passphrase: its data key lies under the server's key, so jobs get their secrets at any
time. With a passphrase it can be locked: then nothing on the server's disk opens it, and jobs wait with that reason.
Unlocking puts the data key under the server's key until a time. What is unlocked on one replica is so on all of them.

Sealing binds each value to its place, so a row moved to another name or repository doesn't open.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

import msgspec
from argon2.low_level import Type, hash_secret_raw
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from runyard.job import InputError, WorkError
from runyard.server.control import LockedError
from runyard.server.store.rows import SecretRow, VaultRow

if TYPE_CHECKING:
    from runyard.server.store.port import Transaction
    from runyard.server.store.rows import Run

KEY_BYTES: Final = 32
VALUE_LIMIT: Final = 64 << 10
SECRETS_LIMIT: Final = 1000
_NONCE: Final = 12
_SALT: Final = 16
_NAME: Final = re.compile(r"[A-Z_][A-Z0-9_]{0,254}")
_MEMORY_KIB: Final = 64 << 10
_PASSES: Final = 3


def check_name(name: str) -> str:
    """A secret's name in capitals, by GitHub's rules. Raises InputError."""
    upper = name.upper()
    if not _NAME.fullmatch(upper):
        raise InputError(
            f"{name!r} can't be a secret's name: letters, digits and underscores, not a digit first", code="secret.name"
        )
    if upper.startswith("GITHUB_"):
        raise InputError(f"{name!r}: names that begin with GITHUB_ are taken", code="secret.name")
    return upper


def stretched(passphrase: str, salt: bytes) -> bytes:
    """The key that a passphrase stands for (argon2id). Slow on purpose: not for a transaction."""
    return hash_secret_raw(
        passphrase.encode("utf-8"),
        salt,
        time_cost=_PASSES,
        memory_cost=_MEMORY_KIB,
        parallelism=1,
        hash_len=KEY_BYTES,
        type=Type.ID,
    )


def new_salt() -> bytes:
    """For a new passphrase."""
    return os.urandom(_SALT)


def _seal(key: bytes, data: bytes, place: str) -> bytes:
    nonce = os.urandom(_NONCE)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, data, place.encode())


def _open(key: bytes, sealed: bytes, place: str) -> bytes | None:
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:_NONCE], sealed[_NONCE:], place.encode())
    except (InvalidTag, ValueError):
        return None


class StoredVault:
    """The flows' Vault, over the rows of the store."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    # --- what the flows ask

    def is_locked(self, tx: Transaction, repository: str) -> bool:
        """Whether jobs of the repository have to wait."""
        row = tx.vault(repository)
        return row is not None and self._data_key(tx, row) is None

    def secrets(self, tx: Transaction, run: Run, environment: str | None) -> dict[str, str]:
        """The repository's secrets, those of the environment over them. Raises LockedError."""
        row = tx.vault(run.repository)
        if row is None:
            return {}
        key = self._data_key(tx, row)
        if key is None:
            raise LockedError(run.repository)
        found: dict[str, str] = {}
        for wanted in ("", environment) if environment else ("",):
            for secret in tx.secrets(run.repository):
                if secret.environment == wanted:
                    value = _open(key, secret.value_sealed, _place(secret))
                    if value is None:
                        raise LockedError(f"{secret.name} of {run.repository} was sealed with another key")
                    found[secret.name] = value.decode("utf-8")
        return found

    def seal(self, data: bytes) -> bytes:
        """Encrypt for a row of a lease."""
        return _seal(self._key, data, "row")

    def unseal(self, sealed: bytes) -> bytes:
        """Read it again. Raises LockedError under another key."""
        data = _open(self._key, sealed, "row")
        if data is None:
            raise LockedError("this row was sealed with another key")
        return data

    def _data_key(self, tx: Transaction, row: VaultRow) -> bytes | None:
        if not row.by_server or (row.until_ns and row.until_ns <= tx.now_ns()):
            return None
        return _open(self._key, row.by_server, f"vault {row.repository}")

    # --- what people ask

    def set(self, tx: Transaction, repository: str, environment: str, name: str, value: str) -> None:
        """Keep a secret. Raises LockedError, InputError."""
        name = check_name(name)
        if len(value.encode("utf-8")) > VALUE_LIMIT:
            raise InputError(f"a secret holds {VALUE_LIMIT} bytes at most", code="secret.size")
        row = tx.vault(repository)
        if row is None:
            key = os.urandom(KEY_BYTES)
            row = VaultRow(repository=repository, by_server=_seal(self._key, key, f"vault {repository}"))
            tx.save_vault(row)
        else:
            found = self._data_key(tx, row)
            if found is None:
                raise LockedError(repository)
            key = found
        if len(tx.secrets(repository)) >= SECRETS_LIMIT:
            raise InputError(f"a repository has {SECRETS_LIMIT} secrets at most", code="secret.count")
        secret = SecretRow(
            repository=repository, environment=environment, name=name, value_sealed=b"", updated_ns=tx.now_ns()
        )
        sealed = _seal(key, value.encode("utf-8"), _place(secret))
        tx.save_secret(msgspec.structs.replace(secret, value_sealed=sealed))

    def lock(self, tx: Transaction, repository: str, stretched_key: bytes | None, salt: bytes) -> None:
        """Close the vault; `stretched_key` sets the passphrase where there is none. Raises WorkError, LockedError."""
        row = tx.vault(repository)
        if row is None:
            raise WorkError(f"{repository} has no secrets yet", code="vault.none")
        if not row.by_passphrase:
            if stretched_key is None:
                raise WorkError(
                    f"the vault of {repository} has no passphrase, so nobody could open it again",
                    code="vault.passphrase",
                    remedy="Give --passphrase-file.",
                )
            key = self._data_key(tx, row)
            if key is None:
                raise LockedError(repository)
            row = msgspec.structs.replace(
                row, by_passphrase=_seal(stretched_key, key, f"vault {repository}"), salt=salt
            )
        tx.save_vault(msgspec.structs.replace(row, by_server=b"", until_ns=0))

    def unlock(self, tx: Transaction, repository: str, stretched_key: bytes, until_ns: int) -> None:
        """Open it until a time (0: for good). Raises WorkError for a wrong passphrase."""
        row = tx.vault(repository)
        if row is None or not row.by_passphrase:
            raise WorkError(f"the vault of {repository} has no passphrase to open it with", code="vault.none")
        key = _open(stretched_key, row.by_passphrase, f"vault {repository}")
        if key is None:
            raise WorkError("this is not the passphrase", code="vault.wrong")
        by_server = _seal(self._key, key, f"vault {repository}")
        tx.save_vault(msgspec.structs.replace(row, by_server=by_server, until_ns=until_ns))

    def rotate(self, tx: Transaction, repository: str) -> int:
        """A new data key for all secrets, which then has no passphrase. How many were sealed anew. LockedError."""
        row = tx.vault(repository)
        if row is None:
            return 0
        old = self._data_key(tx, row)
        if old is None:
            raise LockedError(repository)
        new = os.urandom(KEY_BYTES)
        rows = tx.secrets(repository)
        for secret in rows:
            value = _open(old, secret.value_sealed, _place(secret))
            if value is None:
                raise LockedError(f"{secret.name} of {repository} was sealed with another key")
            tx.save_secret(msgspec.structs.replace(secret, value_sealed=_seal(new, value, _place(secret))))
        tx.save_vault(VaultRow(repository=repository, by_server=_seal(self._key, new, f"vault {repository}")))
        return len(rows)


def _place(secret: SecretRow) -> str:
    return f"secret {secret.repository} {secret.environment} {secret.name}"
