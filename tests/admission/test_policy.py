"""Policies: read strictly, met so that neither side is widened."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runyard.admission import OWN_MACHINE, meet, outranks, read_policy
from runyard.admission.policy import covers
from runyard.job import InputError, Policy

PATTERNS = st.none() | st.lists(st.sampled_from(["*", "a/*", "a/b", "a/c", "b/*", "B/x"]), max_size=3).map(tuple)
IMAGES = st.none() | st.lists(st.sampled_from(["*", "ghcr.io/*", "ghcr.io/a/*", "debian:12"]), max_size=3).map(tuple)
LEVELS = st.none() | st.lists(st.sampled_from(["none", "proxy", "public"]), max_size=3, unique=True).map(tuple)
POLICIES = st.builds(
    Policy,
    actions=PATTERNS,
    pinned_actions=st.booleans(),
    local_actions=st.booleans(),
    docker_images=IMAGES,
    build=st.booleans(),
    unsecure_commands=st.none() | st.booleans(),
    network=LEVELS,
    sandbox_floor=st.none() | st.sampled_from(["bare", "bubblewrap", "docker", "podman", "microvm"]),
)
NAMES = ("a/b", "a/c", "b/x", "c/c")
PULLED = ("ghcr.io/a/x", "ghcr.io/b", "debian:12", "debian:11")


def allowed(policy: Policy) -> dict[str, Any]:
    """What a policy lets through, by example."""

    def of(patterns: tuple[str, ...] | None, names: tuple[str, ...]) -> set[str]:
        return {name for name in names if patterns is None or any(covers(each, name) for each in patterns)}

    switches = {"unpinned": not policy.pinned_actions, "local": policy.local_actions, "build": policy.build}
    levels = {"none", "proxy", "public"} if policy.network is None else set(policy.network)
    backends = {name for name in ("bare", "bubblewrap", "docker", "microvm") if outranks(name, policy.sandbox_floor)}
    return {
        "actions": of(policy.actions, NAMES),
        "images": of(policy.docker_images, PULLED),
        "switches": {name for name, on in switches.items() if on},
        "levels": levels,
        "backends": backends,
    }


@settings(max_examples=60, deadline=None)
@given(POLICIES, POLICIES)
def test_a_meet_lets_through_what_both_do(one: Policy, other: Policy) -> None:
    both, first, second = allowed(meet(one, other)), allowed(one), allowed(other)
    assert both == {key: first[key] & second[key] for key in first}
    assert allowed(meet(other, one)) == both
    assert meet(one, other).unsecure_commands is not True or False not in (
        one.unsecure_commands,
        other.unsecure_commands,
    )


@settings(max_examples=50, deadline=None)
@given(POLICIES, POLICIES, POLICIES)
def test_a_meet_is_the_same_in_any_order(one: Policy, two: Policy, three: Policy) -> None:
    left, right = meet(meet(one, two), three), meet(one, meet(two, three))
    assert allowed(left) == allowed(right)
    assert left.unsecure_commands == right.unsecure_commands
    assert allowed(meet(one, one)) == allowed(one)


def test_a_file_restricts_what_it_names_and_nothing_else() -> None:
    assert read_policy(b"", "p") == OWN_MACHINE
    text = b'actions = ["acme/*"]\nbuild = false\nnetwork = ["none"]\nsandbox_floor = "docker"\n'
    found = read_policy(text, "p")
    assert found == Policy(actions=("acme/*",), build=False, network=("none",), sandbox_floor="docker")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("owners = []", "unknown key 'owners'"),
        ("acton = []", "unknown key 'acton'; did you mean 'actions'"),
        ('actions = ["acme"]', "neither owner/repo nor owner"),
        ('actions = ["a*/b"]', "neither owner/repo nor owner"),
        ('docker_images = ["*x"]', "only at the end"),
        ('network = ["lan"]', "'lan' is none of"),
        ('sandbox_floor = "chroot"', "'chroot' is none of"),
        ("build = 1", "build"),
        ("build = [", "can't be read"),
    ],
)
def test_a_file_that_is_wrong_says_where(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        read_policy(text.encode(), "policy.toml")
    assert str(error.value).startswith("policy.toml")


@pytest.mark.parametrize(
    ("backend", "floor", "enough"),
    [
        ("bubblewrap", None, True),
        ("bubblewrap", "bubblewrap", True),
        ("bare", "bubblewrap", False),
        ("bubblewrap", "docker", False),
        ("podman", "docker", True),
        ("docker", "microvm", False),
        ("unheard", "bare", False),
        ("docker", "unheard", False),
    ],
)
def test_a_floor(backend: str, floor: str | None, enough: bool) -> None:
    assert outranks(backend, floor) is enough
