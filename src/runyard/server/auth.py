"""Tokens: made here, kept as digests, looked up with a little memory, their last use written now and then.

A token is the credential; a worker's name never is. A worker token opens the worker calls and nothing else; an API
token opens what its scopes say. Texts look like `ryw_…` (worker) and `rya_…` (API), so that scanners can find them.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from runyard.server.store.rows import Token

if TYPE_CHECKING:
    from runyard.server.store.port import Store, Transaction
    from runyard.server.store.rows import TokenKind

REMEMBER_S: Final = 5.0
"""How long a revoked token may still be taken by a server that saw it just before."""

REMEMBERED: Final = 10_000
SCOPES: Final = ("read", "write", "admin")
"""Look at runs; start, cancel and re-run them; everything: projects, tokens, workers."""

_PREFIX: Final[dict[TokenKind, str]] = {"worker": "ryw_", "api": "rya_", "setup": "rys_"}


class Made(NamedTuple):
    """A new token: its row, and its text, which nobody can read again."""

    token: Token
    text: str


def digest_of(text: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def new_token(kind: TokenKind, name: str, *, scopes: frozenset[str], now_ns: int, **more: object) -> Made:
    """A token that isn't stored yet; `more` are fields of its row."""
    text = f"{_PREFIX[kind]}{secrets.token_urlsafe(32)}"
    token = Token(id=secrets.token_hex(8), kind=kind, hash=digest_of(text), name=name, created_ns=now_ns, scopes=scopes)
    return Made(msgspec.structs.replace(token, **more), text)


class Denied(NamedTuple):
    """Why a credential opens nothing: `unknown`, `revoked`, `expired` or `kind`."""

    why: str


class Tokens:
    """Looks tokens up. One a server."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, tuple[float, Token | None]] = {}
        self._used: dict[str, int] = {}
        self._any_worker_until = 0.0

    async def find(self, text: str, kind: TokenKind) -> Token | Denied:
        """The token of a text, where it is one of that kind and good now."""
        if not text:
            return Denied("unknown")
        digest = digest_of(text)
        moment = time.monotonic()
        until, token = self._known.get(digest, (0.0, None))
        if until < moment:
            token = await self._store.transact(_by_hash, digest)
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[digest] = (moment + REMEMBER_S, token)
        if token is None:
            return Denied("unknown")
        now_ns = time.time_ns()
        if token.revoked_ns:
            return Denied("revoked")
        if token.expires_ns and token.expires_ns <= now_ns:
            return Denied("expired")
        if token.kind != kind:
            return Denied("kind")
        self._used[token.id] = now_ns
        return token

    async def has_worker_token(self) -> bool:
        """Whether any worker could come in at all."""
        moment = time.monotonic()
        if self._any_worker_until < moment:
            if not await self._store.transact(_any_worker):
                return False
            self._any_worker_until = moment + REMEMBER_S
        return True

    def forget(self) -> None:
        """A token changed here: look at the store again."""
        self._known.clear()
        self._any_worker_until = 0.0

    async def flush(self) -> None:
        """Write last uses."""
        if self._used:
            used, self._used = self._used, {}
            await self._store.transact(_touch, used)


def _by_hash(tx: Transaction, digest: str) -> Token | None:
    return tx.token_of_hash(digest)


def _any_worker(tx: Transaction) -> bool:
    return any(not token.revoked_ns for token in tx.tokens("worker"))


def _touch(tx: Transaction, used: dict[str, int]) -> None:
    tx.touch_tokens(used)
