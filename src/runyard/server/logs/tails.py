"""What masking holds back may be the beginning of a secret: it is kept encrypted beside the log until it is shown."""

from __future__ import annotations

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

_NONCE = 12


class TailBox:
    """Encrypts under the server's key (32 bytes), bound to the place it belongs to."""

    def __init__(self, key: bytes) -> None:
        self._cipher = ChaCha20Poly1305(key)

    def close(self, held: bytes, place: bytes) -> bytes:
        """`held` encrypted; nothing stays nothing."""
        if not held:
            return b""
        nonce = os.urandom(_NONCE)
        return nonce + self._cipher.encrypt(nonce, held, place)

    def open(self, closed: bytes, place: bytes) -> bytes:
        """What was held. Under another key it can't be read: then it is lost, and only it."""
        if not closed:
            return b""
        try:
            return self._cipher.decrypt(closed[:_NONCE], closed[_NONCE:], place)
        except InvalidTag:
            return b""
