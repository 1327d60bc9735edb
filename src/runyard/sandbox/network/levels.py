"""Which network levels this machine can keep, why not the others, and the command that provides each.

`none` needs nothing beyond a network namespace and `proxy` nothing beyond `none`; `public` needs slirp4netns, nft,
nsenter and a tun device that may be opened. The judgement is a function of observed facts. That the pieces then work
together is tried by `runyard doctor --attack`, and a failure while opening names what failed.
"""

from __future__ import annotations

import os
import shutil
from typing import Final

import msgspec

from runyard.job import NetworkLevel, Refused

TUN: Final = "/dev/net/tun"
_SYSTEM_FOLDERS: Final = ("/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin", "/bin")
_INSTALLERS: Final = (
    ("apt-get", "apt-get install -y --no-install-recommends"),
    ("dnf", "dnf install -y"),
    ("apk", "apk add"),
    ("pacman", "pacman -S --noconfirm"),
    ("zypper", "zypper install -y"),
)


class NetworkFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What `public` is made of, as found here; a path is None where the program is missing."""

    is_root: bool
    slirp4netns: str | None = None
    nft: str | None = None
    nsenter: str | None = None
    has_tun: bool = False
    may_open_tun: bool = False
    installer: str | None = None


def find_program(name: str) -> str | None:
    """The path of a program, looked for in the system's folders too: a user's PATH often lacks /usr/sbin."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *_SYSTEM_FOLDERS))
    return shutil.which(name, path=path)


def observe_facts() -> NetworkFacts:
    """What this machine has; starts nothing."""
    return NetworkFacts(
        is_root=os.geteuid() == 0,
        slirp4netns=find_program("slirp4netns"),
        nft=find_program("nft"),
        nsenter=find_program("nsenter"),
        has_tun=os.path.exists(TUN),  # noqa: PTH110 - a device, asked by name
        may_open_tun=os.access(TUN, os.R_OK | os.W_OK),
        installer=next((name for name, _ in _INSTALLERS if find_program(name)), None),
    )


def install_command(facts: NetworkFacts, packages: tuple[str, ...]) -> str:
    """The command that installs packages here, or the packages in words where the package manager is unknown."""
    command = dict(_INSTALLERS).get(facts.installer or "")
    if command is None:
        return f"install {' and '.join(packages)} with this machine's package manager"
    return as_root(facts, f"{command} {' '.join(packages)}")


def as_root(facts: NetworkFacts, command: str) -> str:
    """The command as this user has to type it."""
    return command if facts.is_root else f"sudo {command}"


def judge_levels(facts: NetworkFacts) -> dict[NetworkLevel, Refused | None]:
    """None for a level that can be kept, else why not and what provides it. For a sandbox with its own namespace."""
    return {"none": None, "proxy": None, "public": _judge_public(facts)}


def _judge_public(facts: NetworkFacts) -> Refused | None:
    needed = (
        ("slirp4netns", facts.slirp4netns, "slirp4netns"),
        ("nft", facts.nft, "nftables"),
        ("nsenter", facts.nsenter, "util-linux"),
    )
    missing = [(name, package) for name, path, package in needed if path is None]
    if missing:
        names = " and ".join(name for name, _ in missing)
        verb = "is" if len(missing) == 1 else "are"
        remedy = install_command(facts, tuple(package for _, package in missing))
        return Refused("egress_public", f"{names} {verb} not installed", remedy)
    if not facts.has_tun:
        return Refused("egress_public", f"there is no {TUN}", as_root(facts, "modprobe tun"))
    if not facts.may_open_tun:
        return Refused("egress_public", f"this user may not open {TUN}", as_root(facts, f"chmod 666 {TUN}"))
    return None


def judge_bridge(facts: NetworkFacts) -> Refused | None:
    """Whether `public` can be kept on an engine's bridge: its rules live on the host, so root and nft are needed."""
    if facts.nft is None:
        return Refused("egress_public", "nft is not installed", install_command(facts, ("nftables",)))
    if not facts.is_root:
        because = "the rules for an engine's bridge can only be loaded by root"
        return Refused("egress_public", because, "run as root, or use --network proxy, or --sandbox bubblewrap")
    return None


def available_levels(facts: NetworkFacts | None = None) -> dict[NetworkLevel, Refused | None]:
    """`judge_levels` of this machine."""
    return judge_levels(facts or observe_facts())
