"""One deny list for every level: what it refuses, what it lets through, and what it can't be talked into."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runyard.job import InputError
from runyard.sandbox.network import surroundings
from runyard.sandbox.network.policy import (
    DENIED,
    Egress,
    Permission,
    Surroundings,
    decide,
    for_machine,
    parse_destination,
    parse_overrides,
)

PLAIN = Egress()


def judged(address: str, port: int = 443, egress: Egress = PLAIN) -> str | None:
    refused = decide(ipaddress.ip_address(address), port, "public", egress)
    return None if refused is None else refused.because


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("0.0.0.0", "this machine"),
        ("10.0.2.2", "a private network"),
        ("100.100.100.200", "carrier-grade NAT"),
        ("127.0.0.1", "loopback"),
        ("127.8.9.10", "loopback"),
        ("168.63.129.16", "a cloud's metadata service"),
        ("169.254.169.254", "a cloud's metadata service"),
        ("169.254.1.1", "link-local"),
        ("172.16.0.1", "a private network"),
        ("172.31.255.255", "a private network"),
        ("192.0.0.192", "reserved for protocols"),
        ("192.168.1.1", "a private network"),
        ("198.18.0.1", "a test network"),
        ("224.0.0.251", "multicast or reserved"),
        ("255.255.255.255", "multicast or reserved"),
        ("::", "this machine"),
        ("::1", "loopback"),
        ("fd00:ec2::254", "a private network"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("fec0::1", "a private network"),
        ("ff02::1", "multicast"),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "a tunnel"),
    ],
)
def test_an_address_that_is_not_public_is_refused_by_its_name(address: str, name: str) -> None:
    because = judged(address)
    assert because is not None
    assert because.endswith(f", {name}")


@pytest.mark.parametrize(
    "address",
    [
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:0:10.0.0.1",
        "::10.0.0.1",
        "64:ff9b::a00:1",
        "64:ff9b::127.0.0.1",
        "64:ff9b:1::a00:1",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::1",
    ],
)
def test_an_ipv4_address_inside_an_ipv6_address_is_judged_too(address: str) -> None:
    assert judged(address) is not None


@pytest.mark.parametrize(
    "address",
    [
        "198.51.100.7",
        "203.0.113.10",
        "172.15.0.1",
        "172.32.0.1",
        "100.63.0.1",
        "100.128.0.1",
        "2606:4700::1111",
        "::ffff:198.51.100.7",
        "64:ff9b::c633:6407",
        "2002:c633:6407::1",
    ],
)
def test_public_addresses_and_documentation_ranges_that_serve_packages_are_reached(address: str) -> None:
    assert judged(address) is None
    assert judged(address, 80) is None


@pytest.mark.parametrize("port", [22, 25, 53, 8080, 2375, 0, 65536, -1])
def test_ports_other_than_web_ports_are_refused(port: int) -> None:
    assert judged("198.51.100.7", port) is not None


def test_without_a_network_everything_is_refused_with_the_way_to_get_one() -> None:
    refused = decide(ipaddress.ip_address("198.51.100.7"), 443, "none", PLAIN)
    assert refused is not None
    assert refused.promise == "egress_none"
    assert "--network proxy" in refused.remedy


def test_this_machine_and_its_neighbours_are_denied_whatever_their_addresses() -> None:
    around = Surroundings(
        addresses=(ipaddress.ip_address("198.51.100.7"),), networks=(ipaddress.ip_network("198.51.100.0/28"),)
    )
    egress = for_machine(PLAIN, around)
    assert judged("198.51.100.7", egress=egress) == "198.51.100.7 is in 198.51.100.7/32, this machine"
    assert judged("198.51.100.9", egress=egress) == "198.51.100.9 is in 198.51.100.0/28, this machine's network"
    assert judged("::ffff:198.51.100.9", egress=egress) is not None
    assert judged("198.51.100.16", egress=egress) is None


def test_a_permission_opens_one_network_at_its_ports_and_no_more() -> None:
    egress = parse_overrides({"RUNYARD_EGRESS_ALLOW": "10.1.2.0/24:8080, [fd00::5]:443 10.9.0.1"})
    assert judged("10.1.2.3", 8080, egress) is None
    assert judged("::ffff:10.1.2.3", 8080, egress) is None
    assert judged("10.1.2.3", 443, egress) is not None
    assert judged("10.1.3.3", 8080, egress) is not None
    assert judged("fd00::5", 443, egress) is None
    assert judged("fd00::6", 443, egress) is not None
    assert judged("10.9.0.1", 80, egress) is None
    # A carrier of an allowed private address goes over somebody's gateway, so it stays denied.
    assert judged("64:ff9b::a09:1", 80, egress) is not None


def test_more_networks_can_be_denied() -> None:
    egress = parse_overrides({"RUNYARD_EGRESS_DENY": "198.51.100.0/24"})
    assert judged("198.51.100.7", egress=egress) == "198.51.100.7 is in 198.51.100.0/24, denied by RUNYARD_EGRESS_DENY"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RUNYARD_EGRESS_ALLOW", "example.test"),
        ("RUNYARD_EGRESS_ALLOW", "10.0.0.0/33"),
        ("RUNYARD_EGRESS_ALLOW", "10.0.0.1:http"),
        ("RUNYARD_EGRESS_ALLOW", "10.0.0.1:0"),
        ("RUNYARD_EGRESS_DENY", "10.0.0.1:80"),
    ],
)
def test_a_wrong_override_is_an_input_error_that_names_the_variable(name: str, value: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_overrides({name: value})
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host.test:443", ("host.test", 443)),
        ("host.test", ("host.test", None)),
        ("[::1]:80", ("::1", 80)),
        ("[fe80::1]", ("fe80::1", None)),
    ],
)
def test_a_destination_has_a_host_and_perhaps_a_port(text: str, expected: tuple[str, int | None]) -> None:
    assert parse_destination(text) == expected


@pytest.mark.parametrize(
    "text", ["", ":443", "host:", "host:0", "host:65536", "host:8²", "::1:443", "[::1", "[::1]443", "[x]:1", "a b:80"]
)
def test_a_wrong_destination_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_destination(text)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([entry for entry, _ in DENIED]), st.data())
def test_no_address_of_a_denied_network_is_reached_in_any_dress(entry: str, data: st.DataObject) -> None:
    network = ipaddress.ip_network(entry)
    offset = data.draw(st.integers(0, network.num_addresses - 1))
    address = network.network_address + offset
    dresses = [address]
    if isinstance(address, ipaddress.IPv4Address):
        number = int(address)
        dresses += [
            ipaddress.IPv6Address(int(ipaddress.IPv6Address("::ffff:0:0")) + number),
            ipaddress.IPv6Address(int(ipaddress.IPv6Address("64:ff9b::")) + number),
            ipaddress.IPv6Address(int(ipaddress.IPv6Address("2002::")) + (number << 80)),
        ]
    for dress in dresses:
        assert decide(dress, 443, "proxy", PLAIN) is not None, dress


@settings(max_examples=100, deadline=None)
@given(st.ip_addresses(), st.integers(1, 65535))
def test_a_permission_for_everything_goes_before_every_denial(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int
) -> None:
    everything = Egress(
        allowed=tuple(Permission(ipaddress.ip_network(network), (port,)) for network in ("0.0.0.0/0", "::/0"))
    )
    assert decide(address, port, "public", everything) is None


def test_the_kernel_tells_this_machines_addresses_and_networks() -> None:
    seen = surroundings.observe()
    assert ipaddress.ip_address("127.0.0.1") in seen.addresses
    assert ipaddress.ip_network("127.0.0.0/8") in seen.networks
    assert ipaddress.ip_network("0.0.0.0/0") not in seen.networks


def test_resolvers_are_read_and_nonsense_is_skipped(tmp_path: object) -> None:
    from pathlib import Path

    file = Path(str(tmp_path)) / "resolv.conf"
    file.write_text("# nothing\nnameserver 10.255.255.53\nnameserver fe80::1%eth0\nnameserver what\nsearch a b\n")
    assert [str(each) for each in surroundings.resolvers(str(file))] == ["10.255.255.53", "fe80::1"]
    assert surroundings.resolvers(str(file) + ".missing") == ()
