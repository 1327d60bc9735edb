"""What every flow is given besides the transaction: settings, bounds, and where secrets come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec

from runyard.dispatch.records import Bounds, Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from runyard.dispatch.happenings import Happening, Step
    from runyard.dispatch.records import Job
    from runyard.run import Decision
    from runyard.server.store.port import Transaction
    from runyard.server.store.rows import Run


class Refused(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a call changes nothing. `code` is `lease.over`, `result.other`, `job.unknown`, `claim.over`, `gap`, …."""

    code: str
    message: str
    expected: int | None = None


class LockedError(Exception):
    """The repository's vault is locked: its jobs wait for that."""


class Vault(Protocol):
    """Secrets, in the hands of whoever has the keys. Nothing that a flow stores is in clear."""

    def is_locked(self, tx: Transaction, repository: str) -> bool:
        """Whether jobs of the repository have to wait."""

    def secrets(self, tx: Transaction, run: Run, environment: str | None) -> dict[str, str]:
        """Name to value of what a trusted run of it may have. Raises LockedError."""

    def seal(self, data: bytes) -> bytes:
        """Encrypt for a row."""

    def unseal(self, sealed: bytes) -> bytes:
        """Read it again."""


class NoVault:
    """No secrets at all, and so nothing to mask: `seal` refuses."""

    def is_locked(self, tx: Transaction, repository: str) -> bool:
        """Never."""
        del tx, repository
        return False

    def secrets(self, tx: Transaction, run: Run, environment: str | None) -> dict[str, str]:
        """None."""
        del tx, run, environment
        return {}

    def seal(self, data: bytes) -> bytes:
        """There is no key."""
        raise LockedError("this server has no key to seal with")

    def unseal(self, sealed: bytes) -> bytes:
        """There is no key."""
        raise LockedError("this server has no key to unseal with")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """One server's rules. `bounds` beside those of projects; `platform` of jobs that name none (None: any worker's).

    `hear` is told each decision of a run as it is carried out, `witness` each step of a job; a transaction that begins
    anew tells again.
    """

    settings: Settings = field(default_factory=Settings)
    bounds: Bounds = field(default_factory=Bounds)
    vault: Vault = field(default_factory=NoVault)
    platform: str | None = None
    hear: Callable[[str, Decision], None] | None = None
    witness: Callable[[Happening, Job, Step], None] | None = None
