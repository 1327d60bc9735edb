"""Claim: one hand-out of a job. It holds secrets, so it is never stored, never printed and has no repr."""

from __future__ import annotations

import msgspec

from runyard.job.context import RunContext
from runyard.job.spec import JobSpec


class Secret:
    """Text that can't be formatted: `reveal()` is the only way to it, so a message never holds it by accident."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The text itself."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a secret is never pickled")


class Checkout(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the run's repository comes from: a git directory of this machine or an address, and the commit."""

    repository: str
    commit: str
    tree: str = ""
    git_dir: str | None = None
    url: str | None = None


class Policy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job may do; the meet of the server's and the worker's is what counts, neither widens the other.

    None means "no restriction". `actions` are `owner/repo` or `owner/*` patterns; `pinned_actions` asks for a full
    commit id; `sandbox_floor` names the weakest acceptable backend.
    """

    actions: tuple[str, ...] | None = None
    pinned_actions: bool = False
    local_actions: bool = True
    docker_images: tuple[str, ...] | None = None
    build: bool = False
    unsecure_commands: bool | None = None
    network: tuple[str, ...] | None = None
    sandbox_floor: str | None = None


class Claim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One hand-out: the job, the contexts, and what only this attempt may know.

    `attempt` is the fence; `expires_in_s` is a duration, so clocks needn't agree. `masks` are further values to hide.
    `endpoints` and `tokens` are by service name (`results`, `cache`, `oidc`, `job`, …). `variables` are the service's
    own settings of the job, feature flags among them; none of them is secret. `debug` is step debugging.
    """

    attempt: int
    lease_id: str
    expires_in_s: float
    spec: JobSpec
    context: RunContext
    secrets: dict[str, str] = {}
    masks: tuple[str, ...] = ()
    mask_patterns: tuple[str, ...] = ()
    tokens: dict[str, str] = {}
    endpoints: dict[str, str] = {}
    variables: dict[str, str] = {}
    checkout: Checkout | None = None
    policy: Policy = Policy()
    strict_github: bool = False
    debug: bool = False

    def __repr__(self) -> str:
        return f"<Claim of {self.spec.key!r}, attempt {self.attempt}>"

    __str__ = __repr__

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a claim is never pickled")
