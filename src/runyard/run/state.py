"""What a run is while it goes on, what can happen to it, and what follows: the three vocabularies of `advance`.

Everything is frozen and can be stored. A **node** is a job as written, in one scope; a **leg** is one combination of
its matrix (or its only one); a **scope** is the run itself or one instance of a called workflow, named by the key of
the leg that calls it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from runyard.job import Conclusion, JobSpec, Json, Position, RunContext, Template
from runyard.run.concurrency import Group

Rule: TypeAlias = Literal["trigger", "selected", "needs", "if", "matrix", "concurrency", "limit", "label", "later"]


class Why(msgspec.Struct, frozen=True):
    """What decided: the rule, the effective condition (None without one), each value that was looked at.

    A value is None where it is secret. `reason` on a decision is made of these, never beside them.
    """

    rule: Rule
    condition: str | None = None
    values: dict[str, Json] = {}


class GroupRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A concurrency group as evaluated on the newcomer."""

    group: str
    cancel_in_progress: bool = False
    queue: Literal["single", "max"] = "single"


class SecretLevel(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one call passes down: everything (`inherit`), or names with templates over the caller's secrets.

    `contexts` are what the templates may see besides `secrets` and the run's own contexts. No secret's value is here.
    """

    inherit: bool = False
    names: dict[str, Template] = {}
    contexts: dict[str, Json] = {}


class RunOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How this run deviates from "everything, as written".

    `jobs` are job paths (`caller/called`) to run, closed over needs (`select_jobs`); `matrix` are key and text pairs,
    any of the same key; `job_limit_s` caps every job's time and `job_limit_name` says whose limit that is.
    """

    strict_github: bool = False
    jobs: frozenset[str] | None = None
    matrix: tuple[tuple[str, str], ...] = ()
    job_limit_s: int | None = None
    job_limit_name: str = ""
    platform: str = "linux/amd64"
    trust: Literal["trusted", "untrusted"] = "trusted"


# --- state


class ScopeState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The run ("" is its key) or one instance of a called workflow.

    `path` are the ids of the calling jobs, outermost first; `name` is the displayed prefix, `matrix` what is shown of
    the calls' own combinations. `ended`: nothing new starts here any more (fail-fast of the call's matrix).
    """

    path: tuple[str, ...] = ()
    name: str = ""
    matrix: Json = None
    inputs: Json = None
    secrets: tuple[SecretLevel, ...] = ()
    permissions: dict[str, str] | None = None
    nodes: tuple[str, ...] = ()
    ended: bool = False


class NodeState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job as written, in one scope. `result` is what `needs` shows: a tolerated failure is a success there."""

    scope: str
    job: str
    needs: tuple[str, ...] = ()
    phase: Literal["waiting", "open", "done"] = "waiting"
    legs: tuple[str, ...] = ()
    fail_fast: bool = True
    max_parallel: int = 1
    result: Conclusion | None = None
    outputs: dict[str, str] = {}


class LegState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One combination. `held`: by max-parallel; `pending`: for a concurrency group; `open`: a call that has its scope.

    `spec` is kept until the job is created. `cancel_sent` is 1 for an order with grace, 2 for a forced one.
    """

    node: str
    phase: Literal["held", "pending", "created", "running", "open", "done"]
    name: str
    matrix: Json = None
    call: bool = False
    spec: JobSpec | None = None
    secrets: tuple[SecretLevel, ...] = ()
    inputs: Json = None
    permissions: dict[str, str] | None = None
    groups: tuple[GroupRequest, ...] = ()
    joined: int = 0
    tolerated: bool = False
    cancel_sent: int = 0
    conclusion: Conclusion | None = None


class RunState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run. `advance` alone makes a new one; equal states behave equally."""

    run_id: str
    context: RunContext
    options: RunOptions = RunOptions()
    phase: Literal["new", "pending", "running", "done"] = "new"
    name: str = ""
    group: GroupRequest | None = None
    started_ns: int = 0
    cancelling: str | None = None
    cancel_code: str = "cancelled_by_user"
    forced: bool = False
    scopes: dict[str, ScopeState] = {}
    nodes: dict[str, NodeState] = {}
    legs: dict[str, LegState] = {}
    groups: dict[str, Group] = {}
    conclusion: Conclusion | None = None


# --- happenings


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """The run exists: name it, and start it unless it has to wait for its concurrency group."""


class Admitted(msgspec.Struct, frozen=True, tag="admitted"):
    """The run holds its concurrency group."""


class Started(msgspec.Struct, frozen=True, tag="started"):
    """Somebody executes the job `key`."""

    key: str


class Finished(msgspec.Struct, frozen=True, tag="finished", omit_defaults=True):
    """The job `key` ended. A second one for the same key changes nothing.

    `unserved`: it failed because nobody here can run it, which says nothing about its siblings: no fail-fast.
    """

    key: str
    conclusion: Conclusion
    outputs: dict[str, str] = {}
    unserved: bool = False


class CancelRequested(msgspec.Struct, frozen=True, tag="cancel", omit_defaults=True):
    """Somebody wants the run to end: with grace, or (`force`, and any second request) at once."""

    force: bool = False
    reason: str = "The run was cancelled."
    reason_code: str = "cancelled_by_user"


class Tick(msgspec.Struct, frozen=True, tag="tick"):
    """Time went by; ends a run that is too old."""


Happening: TypeAlias = Begin | Admitted | Started | Finished | CancelRequested | Tick


# --- decisions


class StartRun(msgspec.Struct, frozen=True, tag="start_run", omit_defaults=True):
    """The run has its name; with a `concurrency` nothing starts before Admitted."""

    name: str
    why: Why
    concurrency: GroupRequest | None = None


class CreateJob(msgspec.Struct, frozen=True, tag="create_job", omit_defaults=True):
    """Hand this job out. `secrets` are the levels that `resolve_secrets` goes through, outermost first.

    `matrix` is what to show: the job's own combination, over those of the calls around it (which its contexts lack).
    """

    spec: JobSpec
    why: Why
    secrets: tuple[SecretLevel, ...] = ()
    matrix: Json = None

    @property
    def key(self) -> str:
        """The job's key."""
        return self.spec.key


class EndJob(msgspec.Struct, frozen=True, tag="end_job", omit_defaults=True):
    """A job that ends without being executed: skipped, failed when it was planned, or cancelled before it began."""

    key: str
    job: str
    name: str
    conclusion: Conclusion
    why: Why
    reason: str
    reason_code: str
    matrix: Json = None
    at: Position | None = None


class CancelJob(msgspec.Struct, frozen=True, tag="cancel_job", omit_defaults=True):
    """Tell the job that was created as `key` to stop; `force` means at once."""

    key: str
    why: Why
    reason: str
    reason_code: str
    force: bool = False


class FinishRun(msgspec.Struct, frozen=True, tag="finish_run", omit_defaults=True):
    """Everything ended."""

    conclusion: Conclusion
    why: Why
    reason: str | None = None
    reason_code: str | None = None


Decision: TypeAlias = StartRun | CreateJob | EndJob | CancelJob | FinishRun
