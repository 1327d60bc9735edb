"""What `runyard actions` and `runyard capabilities` print for programs. Fields are added freely, never renamed."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class FetchedAction(msgspec.Struct, kw_only=True):
    """One reference of `actions mirror` and `actions lock`: what it means, or why it can't be had."""

    uses: str
    commit: str | None
    fetched: bool
    problem: str | None


class FetchedActions(msgspec.Struct, kw_only=True):
    """`actions mirror --format json` and `actions lock --format json`."""

    folder: str
    actions: list[FetchedAction]


class StoredAction(msgspec.Struct, kw_only=True):
    """One entry of the store. `problem` is None where it is whole, or was not checked."""

    repository: str
    commit: str
    files: int
    bytes: int
    origin: Literal["git", "archive"]
    folder: str
    problem: str | None = None


class StoredActionList(msgspec.Struct, kw_only=True):
    """`actions list --format json` and `actions verify --format json`."""

    folder: str
    actions: list[StoredAction]


class AdapterInput(msgspec.Struct, kw_only=True):
    """An input of a built-in adapter. `values` None: any text; `effect` False: taken, and nothing follows from it."""

    name: str
    values: list[str] | None
    default: str
    effect: bool


class Adapter(msgspec.Struct, kw_only=True):
    """A built-in adapter: for which references it stands, what it takes and gives. The tag `v4` stands for `v4.1.2`."""

    repository: str
    paths: list[str]
    refs: list[str]
    inputs: list[AdapterInput]
    outputs: list[str]
    effects: list[str]
    forbidden: list[list[str]]


class CapabilityManifest(msgspec.Struct, kw_only=True):
    """`capabilities export`: what this build takes. `version` grows when something is taken away."""

    version: int
    runyard: str
    adapters: list[Adapter]
    runs_using: list[str]
    network: list[str]
    sandboxes: list[str]
    nested_actions: int
    policy_keys: list[str]


class Violation(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One thing that this build, or the policy given, does not take."""

    path: str
    rule: str
    message: str
    job: str | None = None
    step: int | None = None
    line: int | None = None
    column: int | None = None
    chain: list[str] = []


class Audit(msgspec.Struct, kw_only=True):
    """`capabilities check --format json`."""

    files: list[str]
    violations: list[Violation]


PRINTED: dict[str, Any] = {
    "actions-fetched": FetchedActions,
    "actions-stored": StoredActionList,
    "capabilities": CapabilityManifest,
    "capabilities-check": Audit,
}
