"""What the store keeps besides dispatch's own rows: frozen structs, one a row, made once at the edge.

Times are int64 nanoseconds of the store's clock. `bytes` fields named `…_sealed` are encrypted by whoever writes them;
`digest` fields name a blob. Encoded blobs begin with a version (`server/control/codec.py`).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from runyard.dispatch.records import Hold, Trust
from runyard.job import Conclusion
from runyard.run import Group

__all__ = [
    "Attempt",
    "Audit",
    "EventRow",
    "Group",
    "JobBody",
    "MaskRow",
    "OrderRow",
    "Project",
    "ResultRow",
    "Run",
    "SecretRow",
    "Token",
    "Trigger",
    "VaultRow",
]

RunPhase: TypeAlias = Literal["pending", "running", "done"]

Ending: TypeAlias = Literal["unconfirmed", "lost", "handed_back", "finished", "cancelled"]
"""How an attempt was closed."""

TokenKind: TypeAlias = Literal["worker", "api", "setup"]


class Project(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A repository that the server builds. `repository` (`owner/name`) is its key. `settings` is encoded by the API."""

    repository: str
    url: str
    created_ns: int
    default_branch: str = "main"
    max_concurrent: int | None = None
    weight: float = 1.0
    webhook_sealed: bytes | None = None
    settings: bytes = b""


class Trigger(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What started runs. `key` is unique: a delivery's id, a schedule's moment, a ref's movement."""

    key: str
    repository: str
    event: str
    created_ns: int
    payload_digest: str = ""
    runs: tuple[str, ...] = ()


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt of one run: its row id is `number.attempt`.

    `number` is `github.run_id`, `run_number` counts the runs of one workflow file of one repository. `plan_digest` and
    `context_digest` name blobs; `state` is the encoded RunState without its context. `version` grows with each save.
    """

    id: str
    number: int
    attempt: int
    run_number: int
    repository: str
    workflow: str
    name: str
    event: str
    ref: str
    sha: str
    trust: Trust
    trigger: str
    created_ns: int
    plan_digest: str
    context_digest: str
    state: bytes
    phase: RunPhase = "pending"
    holds: frozenset[Hold] = frozenset()
    priority: int = 0
    group: str | None = None
    version: int = 0
    started_ns: int = 0
    ended_ns: int = 0
    conclusion: Conclusion | None = None
    reason: str | None = None
    reason_code: str | None = None


class JobBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What of a job the queue doesn't look at: the encoded JobSpec, the levels its secrets come through, its face.

    `groups` are the concurrency groups it goes through, in order; `joined` how many it holds already. A job that was
    never in the queue (skipped, or ended early) has a body too, with an empty spec.
    """

    job: str
    run_id: str
    key: str
    name: str
    path: str
    spec: bytes = b""
    secrets: bytes = b""
    matrix: bytes = b""
    why: bytes = b""
    groups: tuple[bytes, ...] = ()
    joined: int = 0


class Attempt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One hand-out of a job: who, when, how it ended. `claim` is the claim's id, unique with the worker.

    `events` is the number of the next event the server wants; `platform` where it ran, when that isn't the job's own.
    """

    job: str
    number: int
    lease: str
    worker: str
    worker_name: str
    claim: str
    granted_ns: int
    platform: str = ""
    confirmed_ns: int = 0
    ended_ns: int = 0
    ending: Ending | None = None
    reason: str | None = None
    events: int = 0
    phase: str = ""


class EventRow(msgspec.Struct, frozen=True):
    """One encoded JobEvent of an attempt, by its number from 0. Masked by the worker and again by the server."""

    number: int
    event: bytes


class OrderRow(msgspec.Struct, frozen=True):
    """One encoded Order of an attempt, by its number from 1; kept until it was seen."""

    number: int
    order: bytes
    created_ns: int


class ResultRow(msgspec.Struct, frozen=True):
    """The accepted result of a job: the body as it came, and its SHA-256 in hex."""

    job: str
    attempt: int
    digest: str
    body: bytes
    received_ns: int


class MaskRow(msgspec.Struct, frozen=True):
    """What the server must keep to mask an attempt's bytes: one encrypted row, `count` values in it."""

    job: str
    attempt: int
    values_sealed: bytes
    count: int


class Token(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token; only the SHA-256 of its text is kept. `scopes` are words, `repository` limits it to one."""

    id: str
    kind: TokenKind
    hash: str
    name: str
    created_ns: int
    scopes: frozenset[str] = frozenset()
    repository: str | None = None
    expires_ns: int = 0
    revoked_ns: int = 0
    used_ns: int = 0
    created_by: str = ""


class SecretRow(msgspec.Struct, frozen=True, kw_only=True):
    """One secret of a repository, sealed under its data key. `environment` "" is the repository itself."""

    repository: str
    environment: str
    name: str
    value_sealed: bytes
    updated_ns: int


class VaultRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A repository's data key, never in clear.

    `by_passphrase` is the key under a passphrase (with its `salt`), empty while there is none; `by_server` the key
    under the server's own, empty while the vault is locked; it counts until `until_ns` (0: for good).
    """

    repository: str
    by_passphrase: bytes = b""
    salt: bytes = b""
    by_server: bytes = b""
    until_ns: int = 0


class Audit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who did what to what. `sequence` is given by the store."""

    time_ns: int
    who: str
    what: str
    about: str
    detail: str = ""
    sequence: int = 0
