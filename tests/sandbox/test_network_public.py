"""The filtered uplink, tried from inside namespaces that the test makes: what is open, what is closed, what is said."""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from runyard.sandbox.network import levels, ruleset
from runyard.sandbox.network.policy import Denial, Egress, Permission

pytestmark = pytest.mark.timeout(60)

STAGE = Path(__file__).parent / "network_stage.py"
FORBIDDEN = ("10.9.9.9", "192.168.77.7", "172.20.1.1", "100.64.0.9", "169.254.169.254", "168.63.129.16")


def need(*programs: str, tun: bool) -> None:
    missing = [name for name in ("ip", "unshare", "nsenter", "nft", *programs) if levels.find_program(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed")
    if tun and not levels.observe_facts().may_open_tun:
        pytest.skip("/dev/net/tun can't be opened")


@lru_cache
def staged(*arguments: str, user: bool = False) -> dict[str, Any]:
    """What the stage told; once for all tests of this process."""
    namespaces = ["--net", "--mount", *(["--user", "--map-root-user"] if user else [])]
    allowed = subprocess.run(["unshare", *namespaces, "true"], capture_output=True, text=True, timeout=10, check=False)
    if allowed.returncode != 0:
        pytest.skip(f"namespaces can't be made here: {allowed.stderr.strip()}")
    done = subprocess.run(
        ["unshare", *namespaces, sys.executable, str(STAGE), *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.fixture(params=["root", "root of a user namespace", "ordinary user"])
def own(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The stage with an uplink of its own, opened by each kind of user."""
    need("slirp4netns", tun=True)
    if request.param == "root of a user namespace":
        return staged(user=True)
    if os.geteuid() != 0:
        pytest.skip("not root")
    return staged("ordinary") if request.param == "ordinary user" else staged()


def test_public_web_ports_and_the_sandboxes_resolver_are_reached(own: dict[str, Any]) -> None:
    assert own["before"]["public 80"].startswith("OSError")
    assert own["attempts"]["public 80"] == own["attempts"]["public 443"] == "world"
    assert own["attempts"]["dns of the sandbox"] == "c6336407"


@pytest.mark.parametrize(
    "attempt",
    [
        "public 22",
        "public 8080",
        "host",
        "host through the uplink",
        "neighbour",
        "dns elsewhere",
        "dns of the host",
        "ipv6",
        *FORBIDDEN,
    ],
)
def test_nothing_else_is_reached(own: dict[str, Any], attempt: str) -> None:
    assert own["attempts"][attempt].split(":")[0] in {"OSError", "PermissionError"}


def test_what_was_refused_is_named_with_its_reason_also_after_the_sandbox_ended(own: dict[str, Any]) -> None:
    refused = {destination: because for destination, because, counted in own["refused"] if counted}
    assert refused["10.9.9.9:80"] == "10.9.9.9 is in 10.0.0.0/8, a private network"
    assert refused["192.0.2.1:80"].endswith("this machine")
    assert refused["192.0.2.2:80"].endswith("this machine's network")
    assert refused["198.51.100.7:22"] == "port 22 is not open: jobs reach ports 80 and 443"
    assert refused["198.51.100.7:53/udp"].startswith("udp is not open")
    assert "198.51.100.7:80" not in refused
    assert own["refused after the sandbox"] == own["refused after the close"] == len(own["refused"])


def test_closing_ends_the_uplink_and_its_helper(own: dict[str, Any]) -> None:
    assert own["alive"] is True
    assert own["helper left"] is False
    assert own["after"]["public 80"].startswith("OSError")


@pytest.fixture
def bridge() -> dict[str, Any]:
    need(tun=False)
    if os.geteuid() != 0:
        pytest.skip("not root")
    return staged("bridge")


def test_a_bridge_without_rules_reaches_everything_which_is_why_it_gets_some(bridge: dict[str, Any]) -> None:
    assert bridge["before"]["gateway"] == bridge["before"]["host"] == "host"
    assert bridge["before"]["sibling"] == "sibling"
    assert bridge["before"]["169.254.169.254"] == "world"


def test_a_bridge_reaches_public_web_ports_and_its_resolver_alone(bridge: dict[str, Any]) -> None:
    attempts = bridge["attempts"]
    assert attempts["public 80"] == attempts["public 443"] == "world"
    assert attempts["dns of the host"] == "c6336407"
    for attempt in ("public 22", "host", "gateway", "sibling", "neighbour", "dns elsewhere", *FORBIDDEN):
        assert attempts[attempt].split(":")[0] in {"OSError", "TimeoutError"}, attempt
    refused = {destination for destination, _, counted in bridge["refused"] if counted}
    assert {"172.30.0.1:80", "192.0.2.1:80", "10.9.9.9:80", "198.51.100.7:22"} <= refused


def test_rules_are_one_table_a_bridge_loaded_twice_and_removed_twice_without_a_trace(bridge: dict[str, Any]) -> None:
    assert bridge["tables"] == ["runyard_ry_one", "runyard_ry_two"]
    assert bridge["tables left"] == []


def test_a_stranger_does_not_reach_into_a_bridge(bridge: dict[str, Any]) -> None:
    assert bridge["from outside"]["sibling"].split(":")[0] in {"OSError", "TimeoutError"}


@pytest.mark.parametrize("name", ["docker0; flush ruleset", "Ry0", "ry-0", "", "0ry", "a" * 16, "ry0\n"])
def test_only_a_plain_name_of_a_bridge_gets_into_rules(name: str) -> None:
    with pytest.raises(ValueError, match="no bridge of ours"):
        ruleset.render_bridge(name, Egress(), ())


def test_permissions_come_before_denials_and_nothing_overlaps() -> None:
    egress = Egress(
        denied=(Denial(ipaddress.ip_network("10.0.0.0/8"), "x"), Denial(ipaddress.ip_network("10.1.0.0/16"), "y")),
        allowed=(Permission(ipaddress.ip_network("10.1.2.3/32"), (8080,)),),
    )
    text = ruleset.render_own_namespace(egress, (ipaddress.IPv4Address("10.0.2.3"),))
    assert "elements = { 10.0.0.0/8 }" in text
    allowed, denied = text.index("ip daddr 10.1.2.3/32 tcp dport { 8080 } accept"), text.index("ip daddr @denied4 goto")
    assert allowed < denied < text.index("tcp dport { 80, 443 } accept")


@pytest.mark.parametrize("listing", ["", "{}", "[]", '{"nftables": [{"set": {}}]}', '{"nftables": [1]}'])
def test_a_listing_that_is_none_is_an_error_with_a_name(listing: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        ruleset.parse_refused(listing, Egress())


def test_the_filter_of_a_namespace_is_whole_and_is_not_loaded_twice(tmp_path: Path) -> None:
    need(tun=False)
    rules = tmp_path / "rules"
    rules.write_text(ruleset.render_own_namespace(Egress(), (ipaddress.IPv4Address("10.0.2.3"),)), "utf-8")
    script = f"nft -f {rules} && nft list table inet {ruleset.OWN_TABLE} && ! nft -f {rules}"
    done = subprocess.run(
        ["unshare", "--net", "--", "sh", "-c", script], capture_output=True, text=True, timeout=20, check=False
    )
    if "unshare" in done.stderr:
        pytest.skip(f"namespaces can't be made here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert "policy drop" in done.stdout
    assert done.stdout.count("tcp dport { 80, 443 } accept") == 1
