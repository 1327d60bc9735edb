"""Whose job asks: the facts that a verified token stands for. Data only; what a service may do is read from here."""

from __future__ import annotations

import msgspec

READ = 1
WRITE = 2


class Scope(msgspec.Struct, frozen=True):
    """One cache scope of a job: a full ref, and READ, WRITE or both (`runner-v2 16.2`)."""

    ref: str
    permission: int


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of one job, as its services know it.

    `plan_id` and `job_id` are the backend ids of the protocol: the run and the job. `repository` is `owner/name`.
    `scopes` are in the order in which a cache is looked up: own ref, base ref, default branch.
    """

    plan_id: str
    job_id: str
    job_name: str
    repository: str
    run_id: str
    attempt: int = 1
    scopes: tuple[Scope, ...] = ()
    strict: bool = False

    @property
    def write_scope(self) -> str | None:
        """Where this job's caches are saved; None for a job that may only read."""
        return next((scope.ref for scope in self.scopes if scope.permission & WRITE), None)

    @property
    def read_scopes(self) -> tuple[str, ...]:
        """Where this job's caches are looked for, in order."""
        return tuple(scope.ref for scope in self.scopes if scope.permission & READ)


def scopes_of(ref: str, *, base_ref: str = "", default_branch: str = "", trusted: bool = True) -> tuple[Scope, ...]:
    """The cache scopes of a job: its own ref to read and write, its base and the default branch to read.

    Names without `refs/` are branches. A job that isn't trusted reads and writes its own scope alone.
    """
    own = _full(ref)
    found = {own: READ | WRITE} if own else {}
    if trusted or ref.startswith("refs/pull/"):
        for other in (base_ref, default_branch):
            if other:
                found.setdefault(_full(other), READ)
    return tuple(Scope(each, permission) for each, permission in found.items())


def _full(ref: str) -> str:
    return ref if not ref or ref.startswith("refs/") else f"refs/heads/{ref}"
