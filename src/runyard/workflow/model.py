"""A workflow as read: checked against the schema, nothing evaluated, every part with its place.

`Workflow` is what `triggered` and `compile_workflow` work on, so that a server may keep it by the file's digest.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import msgspec

from runyard.job import Json, Position, Template
from runyard.workflow.plan import ConcurrencyPlan, InputDefinition, JobPlan, SecretDefinition
from runyard.workflow.problems import Problem

Permissions: TypeAlias = dict[str, str]
"""Permission key to `read`, `write` or `none`; every known key is present once evaluated."""

PermissionsPolicy: TypeAlias = Literal["read", "write"]
"""The repository's default for the job token: contents and packages read, or all but id-token write."""


class Filter(msgspec.Struct, frozen=True, omit_defaults=True):
    """One list of patterns of an event (`branches`, `paths-ignore`, …) in the order written."""

    name: str
    patterns: tuple[str, ...]
    at: Position | None = None


class Schedule(msgspec.Struct, frozen=True, omit_defaults=True):
    """One `cron` line, five fields, in `timezone` (an IANA name)."""

    cron: str
    timezone: str = "UTC"
    at: Position | None = None


class EventTrigger(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of `on`. `types` None means the event's default activity types."""

    event: str
    types: tuple[str, ...] | None = None
    filters: tuple[Filter, ...] = ()
    schedules: tuple[Schedule, ...] = ()
    at: Position | None = None

    def filter(self, name: str) -> tuple[str, ...] | None:
        """The patterns of one filter, None where the workflow doesn't have it."""
        for found in self.filters:
            if found.name == name:
                return found.patterns
        return None


class Decision(NamedTuple):
    """Whether a workflow starts, and the rule that decided, in words."""

    triggered: bool
    reason: str


class EventFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known about an event that happened (workflow-language 4.2).

    `ref` is what was pushed, in full (`refs/heads/main`); `base_ref` the base branch of a pull request or merge group.
    `changed_files` are repository-relative paths; None where the comparison was not possible, and then path filters
    let the event pass, as GitHub does. `payload` is the webhook's body.
    """

    event: str
    ref: str = ""
    base_ref: str = ""
    changed_files: tuple[str, ...] | None = None
    head_commit_message: str = ""
    payload: dict[str, Json] = {}


class CallSignature(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `on.workflow_call` declares."""

    inputs: tuple[InputDefinition, ...] = ()
    secrets: tuple[SecretDefinition, ...] = ()
    outputs: Template | None = None
    at: Position | None = None


class CallSite(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job that calls a reusable workflow, before the called file is read."""

    uses: str
    uses_at: Position | None = None
    inputs: Template | None = None
    secrets: Template | None = None
    inherit: bool = False


class Workflow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that was read without errors.

    `jobs` are in file order; a job that calls has no `call` yet, its site is in `calls` by job id. `permissions` None
    means nothing was written. `warnings` are lint findings.
    """

    path: str
    name: str
    triggers: tuple[EventTrigger, ...]
    jobs: tuple[JobPlan, ...]
    calls: dict[str, CallSite] = {}
    run_name: Template | None = None
    env: Template | None = None
    defaults: Template | None = None
    concurrency: ConcurrencyPlan | None = None
    permissions: Permissions | None = None
    dispatch: tuple[InputDefinition, ...] | None = None
    call: CallSignature | None = None
    warnings: tuple[Problem, ...] = ()

    def trigger(self, event: str) -> EventTrigger | None:
        """The part of `on` for one event."""
        for found in self.triggers:
            if found.event == event:
                return found
        return None


class Reading(NamedTuple):
    """The outcome of reading a file: a workflow, or what is wrong with it. `problems` has warnings too."""

    workflow: Workflow | None
    problems: tuple[Problem, ...]
