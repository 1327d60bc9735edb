"""Where user namespaces are refused, the cause is told apart and the fix is exact."""

from __future__ import annotations

import pytest

from runyard.sandbox.contract import SandboxRefused
from runyard.sandbox.refused import Switches, apparmor_profile, explain, userns_refusal


@pytest.mark.parametrize(
    ("switches", "cause", "fix"),
    [
        (Switches(max_user_namespaces=0), "max_user_namespaces is 0", "user.max_user_namespaces=15000"),
        (Switches(unprivileged_clone=False), "unprivileged_userns_clone is 0", "unprivileged_userns_clone=1"),
        (Switches(apparmor_restricts=True), "AppArmor", "apparmor_parser -r /etc/apparmor.d/runyard-bwrap"),
        (Switches(True, True, 100), "AppArmor", "profile runyard-bwrap /opt/our/bwrap flags=(unconfined)"),
        (Switches(False, True, 100), "outer container", "--sandbox docker"),
    ],
)
def test_each_cause_has_its_fix(switches: Switches, cause: str, fix: str) -> None:
    refused = userns_refusal(switches, "/opt/our/bwrap")
    assert cause in refused.because
    assert fix in refused.remedy


def test_the_profile_is_for_our_own_copy_alone() -> None:
    profile = apparmor_profile("/opt/our/bwrap")
    assert "abi <abi/4.0>," in profile
    assert "userns," in profile
    assert "/usr/bin/bwrap" not in profile


@pytest.mark.parametrize(
    "said",
    [
        "bwrap: setting up uid map: Permission denied",
        "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted",
        "bwrap: No permissions to create a new namespace, likely because the kernel does not allow it",
        "[Errno 1] unshare: Operation not permitted",
    ],
)
def test_what_bubblewrap_says_then_is_recognised(said: str) -> None:
    error = explain("bubblewrap", said)
    assert isinstance(error, SandboxRefused)
    assert error.exit_code == 3
    assert said in str(error)


def test_anything_else_is_told_as_it_was_said() -> None:
    error = explain("bubblewrap", "bwrap: Can't find source path /x")
    assert not isinstance(error, SandboxRefused)
    assert "Can't find source path /x" in str(error)
    assert error.remedy == "runyard doctor"


def test_a_disk_that_can_not_be_mounted_is_the_disk_limit() -> None:
    error = explain("disk", "no loop device")
    assert isinstance(error, SandboxRefused)
    assert error.refused.promise == "disk_limit"
