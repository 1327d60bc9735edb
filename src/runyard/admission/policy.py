"""Policies: read from a worker's file, and met with the server's. Pure.

actions = ["actions/*", "acme/tools"]     # owners and repositories of remote actions; absent: any
pinned_actions = true                     # only whole commit ids
local_actions = true
docker_images = ["ghcr.io/acme/*"]        # of containers, services and docker actions
build = false                             # Dockerfiles
unsecure_commands = false                 # set-env and add-path in logs
network = ["none", "proxy"]
sandbox_floor = "bubblewrap"              # the weakest acceptable
"""

from __future__ import annotations

from typing import Final

import msgspec

from runyard.job import InputError, Policy

OWN_MACHINE: Final = Policy(build=True)
"""What a person's own machine allows where nothing says otherwise: everything that a sandbox can hold."""

LEVELS: Final = ("none", "proxy", "public")
_RANKS: Final = {"bare": 0, "bubblewrap": 1, "docker": 2, "kubernetes": 2, "podman": 2, "microvm": 3}
POLICY_KEYS: Final = (
    "actions",
    "pinned_actions",
    "local_actions",
    "docker_images",
    "build",
    "unsecure_commands",
    "network",
    "sandbox_floor",
)


def meet(one: Policy, other: Policy) -> Policy:
    """What both allow. Commutative, associative, and never wider than either."""
    return Policy(
        actions=_meet_patterns(one.actions, other.actions),
        pinned_actions=one.pinned_actions or other.pinned_actions,
        local_actions=one.local_actions and other.local_actions,
        docker_images=_meet_patterns(one.docker_images, other.docker_images),
        build=one.build and other.build,
        unsecure_commands=_meet_switch(one.unsecure_commands, other.unsecure_commands),
        network=_meet_levels(one.network, other.network),
        sandbox_floor=_stronger(one.sandbox_floor, other.sandbox_floor),
    )


def _meet_switch(one: bool | None, other: bool | None) -> bool | None:
    """A no of either counts; a yes where the other is silent does too (None says nothing)."""
    if one is False or other is False:
        return False
    return True if one or other else None


def _meet_levels(one: tuple[str, ...] | None, other: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if one is None or other is None:
        return other if one is None else one
    return tuple(level for level in LEVELS if level in one and level in other)


def _stronger(one: str | None, other: str | None) -> str | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other, key=lambda name: (_RANKS.get(name, 9), name))


def outranks(backend: str, floor: str | None) -> bool:
    """Whether a backend is at least as strong as the floor. An unknown floor is above everything."""
    return floor is None or _RANKS.get(backend, -1) >= _RANKS.get(floor, 9)


def _meet_patterns(one: tuple[str, ...] | None, other: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Patterns that match what both match: of two that overlap, one covers the other, since a star only ends one."""
    if one is None or other is None:
        return other if one is None else one
    both = {narrow for p in one for q in other if (narrow := _narrower(p.lower(), q.lower())) is not None}
    return tuple(sorted(both))


def _narrower(one: str, other: str) -> str | None:
    if covers(one, other):
        return other
    return one if covers(other, one) else None


def covers(pattern: str, name: str) -> bool:
    """Whether a pattern (a star stands only at its end) takes a name, or all of another pattern, whatever the case."""
    pattern, name = pattern.lower(), name.lower()
    if pattern.endswith("*"):
        return name.startswith(pattern[:-1])
    return pattern == name


def read_policy(data: bytes, path: str) -> Policy:
    """A policy file. What it doesn't name it doesn't restrict. Raises InputError with the key that is wrong."""
    import difflib
    import tomllib

    try:
        found = tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"it can't be read: {error}", path=path, code="policy.unreadable") from error
    for key in found:
        if key not in POLICY_KEYS:
            near = difflib.get_close_matches(key, POLICY_KEYS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(POLICY_KEYS)}"
            raise InputError(f"unknown key {key!r}{hint}", path=path, key=key, code="policy.unknown_key")
    try:
        policy = msgspec.convert({"build": True, **found}, Policy)
    except msgspec.ValidationError as error:
        raise InputError(str(error), path=path, code="policy.value") from error
    _check(policy, path)
    return policy


def _check(policy: Policy, path: str) -> None:
    def wrong(key: str, message: str) -> InputError:
        return InputError(message, path=path, key=key, code="policy.value")

    for pattern in policy.actions or ():
        owner, slash, name = pattern.partition("/")
        if pattern != "*" and (not slash or "*" in owner or not name or ("*" in name and name != "*")):
            raise wrong("actions", f"{pattern!r} is neither owner/repo nor owner/*")
    for pattern in policy.docker_images or ():
        if not pattern or "*" in pattern[:-1]:
            raise wrong("docker_images", f"{pattern!r}: a star stands only at the end")
    for level in policy.network or ():
        if level not in LEVELS:
            raise wrong("network", f"{level!r} is none of {', '.join(LEVELS)}")
    if policy.sandbox_floor is not None and policy.sandbox_floor not in _RANKS:
        raise wrong("sandbox_floor", f"{policy.sandbox_floor!r} is none of {', '.join(_RANKS)}")
