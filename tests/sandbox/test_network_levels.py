"""Which levels a machine keeps, from facts: each missing part with the command that provides it."""

from __future__ import annotations

import msgspec
import pytest

from runyard.job import Refused
from runyard.sandbox.network.levels import NetworkFacts, available_levels, judge_bridge, judge_levels

WHOLE = NetworkFacts(
    is_root=False,
    slirp4netns="/usr/bin/slirp4netns",
    nft="/usr/sbin/nft",
    nsenter="/usr/bin/nsenter",
    has_tun=True,
    may_open_tun=True,
    installer="apt-get",
)


def test_a_machine_with_all_parts_keeps_all_levels() -> None:
    assert judge_levels(WHOLE) == {"none": None, "proxy": None, "public": None}


@pytest.mark.parametrize(
    ("change", "because", "remedy"),
    [
        (
            {"slirp4netns": None},
            "slirp4netns is not installed",
            "sudo apt-get install -y --no-install-recommends slirp4netns",
        ),
        (
            {"slirp4netns": None, "nft": None, "is_root": True, "installer": "dnf"},
            "slirp4netns and nft are not installed",
            "dnf install -y slirp4netns nftables",
        ),
        (
            {"nsenter": None, "installer": None},
            "nsenter is not installed",
            "install util-linux with this machine's package manager",
        ),
        ({"has_tun": False, "may_open_tun": False}, "there is no /dev/net/tun", "sudo modprobe tun"),
        ({"may_open_tun": False}, "this user may not open /dev/net/tun", "sudo chmod 666 /dev/net/tun"),
    ],
)
def test_a_missing_part_is_named_with_the_command_that_provides_it(
    change: dict[str, object], because: str, remedy: str
) -> None:
    levels = judge_levels(msgspec.structs.replace(WHOLE, **change))
    assert levels == {"none": None, "proxy": None, "public": Refused("egress_public", because, remedy)}


def test_a_bridge_needs_root_and_nft() -> None:
    assert judge_bridge(msgspec.structs.replace(WHOLE, is_root=True)) is None
    user = judge_bridge(WHOLE)
    assert user is not None
    assert "root" in user.because
    without = judge_bridge(msgspec.structs.replace(WHOLE, is_root=True, nft=None))
    assert without is not None
    assert "nftables" in without.remedy


def test_this_machine_always_keeps_none_and_proxy() -> None:
    levels = available_levels()
    assert levels["none"] is None
    assert levels["proxy"] is None
