"""This command line as a source: it hands out the jobs of a local run as claims.

A claim holds secrets, so it is made when a job starts and forgotten when it ends; nothing here stores or prints one.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.job import Checkout, Claim, Policy, RunContext

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runyard.job import JobSpec
    from runyard.source.worktree import Snapshot

LEASE_S: Final = 40 * 24 * 3600.0
"""Nobody else could take a local job, so its lease outlasts any run (at most 35 days)."""

_TRUE: Final = "true"


class EnvironmentValues(msgspec.Struct, frozen=True):
    """What a deployment environment adds; its values win over the repository's. No repr: it holds secrets."""

    secrets: dict[str, str] = {}
    vars: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<EnvironmentValues with {len(self.secrets)} secrets>"


class LocalSource:
    """Hands out claims for the jobs of one run."""

    def __init__(
        self,
        context: RunContext,
        snapshot: Snapshot | None,
        *,
        environments: Mapping[str, EnvironmentValues] | None = None,
        policy: Policy | None = None,
        strict_github: bool = False,
        token: str = "",
    ) -> None:
        self._context = context
        self._environments = {name.lower(): values for name, values in (environments or {}).items()}
        self._policy = policy or Policy()
        self._strict = strict_github
        self._token = token
        self._checkout: Checkout | None = None
        if snapshot is not None:
            self._checkout = Checkout(
                repository=str(context.github.get("repository") or ""),
                commit=snapshot.commit,
                tree=snapshot.tree,
                git_dir=snapshot.git_dir,
            )

    def claim(self, spec: JobSpec, secrets: Mapping[str, str], attempt: int = 1) -> Claim:
        """The claim of one job; `secrets` are what reaches it through the calls above it, by upper-case name.

        Names of an unknown environment add nothing: GitHub makes such an environment without rules.
        """
        context = self._context
        given = dict(secrets)
        added = EnvironmentValues()
        if spec.environment is not None:
            added = self._environments.get(spec.environment.name.lower(), added)
        given |= {name.upper(): value for name, value in added.secrets.items()}
        if added.vars:
            context = msgspec.structs.replace(context, vars=overlay(context.vars, added.vars))
        if self._token:
            given["GITHUB_TOKEN"] = self._token
        debug = any(values.get("ACTIONS_STEP_DEBUG", "").lower() == _TRUE for values in (given, context.vars))
        return Claim(
            attempt=attempt,
            lease_id=str(uuid.uuid4()),
            expires_in_s=LEASE_S,
            spec=spec,
            context=context,
            secrets=given,
            checkout=self._checkout,
            policy=self._policy,
            strict_github=self._strict,
            debug=debug,
        )


def overlay(base: Mapping[str, str], over: Mapping[str, str]) -> dict[str, str]:
    """`over` wins; names are equal ignoring case."""
    replaced = {name.lower() for name in over}
    return {**{name: value for name, value in base.items() if name.lower() not in replaced}, **over}
