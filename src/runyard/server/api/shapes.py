"""What the API and the command line show people. Times are RFC 3339 in UTC, with nine digits."""

from __future__ import annotations

import time
from typing import Literal

import msgspec

from runyard.job import Json


def rfc3339(time_ns: int) -> str:
    """A time as people and programs read it."""
    seconds, rest = divmod(time_ns, 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:09d}Z"


class ProjectShape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A repository that the server builds."""

    project: str
    git: str
    default_branch: str
    created: str
    max_concurrent: int | None = None
    weight: float = 1.0


class JobShape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job of a run. `phase` is its place in the life of a queued job."""

    id: str
    key: str
    job: str
    name: str
    phase: str
    attempt: int = 0
    worker: str | None = None
    conclusion: str | None = None
    reason: str | None = None
    reason_code: str | None = None
    matrix: Json = None
    queued: str | None = None
    ended: str | None = None


class RunShape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run; `jobs` where a single one was asked for."""

    run: int
    run_attempt: int
    project: str
    workflow: str
    name: str
    event: str
    ref: str
    sha: str
    trust: str
    phase: Literal["pending", "running", "done"]
    created: str
    run_number: int = 0
    holds: tuple[str, ...] = ()
    started: str | None = None
    ended: str | None = None
    conclusion: str | None = None
    reason: str | None = None
    reason_code: str | None = None
    jobs: tuple[JobShape, ...] | None = None


class ReasonShape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a job waits: the value that the dispatcher branches on."""

    job: str
    run: str
    key: str
    since: str
    code: str
    reason: str
    remedy: str = ""
    details: Json = None


class HeldShape(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a worker holds."""

    job: str
    run: str
    key: str


class WorkerShape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker as the dispatcher sees it. `state`: `present`, `late` (silent for a poll and a heartbeat), `away`."""

    id: str
    name: str
    platform: str
    state: Literal["present", "late", "away"]
    version: str = ""
    labels: tuple[str, ...] = ()
    emulates: tuple[str, ...] = ()
    slots: int = 0
    free: int = 0
    disk_free_mb: int | None = None
    draining: bool = False
    seen: str = ""
    connected: str = ""
    holds: tuple[HeldShape, ...] = ()


class TokenShape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token; `token` only in the answer that made it."""

    id: str
    kind: str
    name: str
    created: str
    scopes: tuple[str, ...] = ()
    used: str | None = None
    expires: str | None = None
    revoked: str | None = None
    token: str | None = None


class StartedShape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a trigger led to: runs, and workflows that it did not start, with the reason."""

    runs: tuple[RunShape, ...]
    repeated: bool = False
    not_triggered: dict[str, str] = {}


class SecretShape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A secret without its value; `environment` "" is the repository itself."""

    name: str
    updated: str
    environment: str = ""


class VaultShape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A repository's vault. `until`: open until then."""

    project: str
    locked: bool
    passphrase: bool
    until: str | None = None
    secrets: tuple[SecretShape, ...] = ()


class FreedShape(msgspec.Struct, frozen=True):
    """How many jobs had waited for the vault."""

    freed: int


class LogLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of a log: whole lines but for a last one that could not wait. `cursor` is where to go on."""

    step: int
    kind: str
    time_ns: int
    text: str
    cursor: str


class ArtifactShape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job left."""

    job: str
    attempt: int
    name: str
    size: int
