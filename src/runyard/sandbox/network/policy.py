"""Which addresses a job may reach: one deny list for every level and every enforcement.

The list is explicit and can be overridden: "global" in the registry's sense is not the same as "not ours" (package
mirrors live in documentation ranges, resolvers in private ones, cloud metadata on a public address). Two rules keep
it honest: an address is judged, never a name, so the address that was judged is the one connected to; and an IPv6
address that carries an IPv4 address is judged by that too. Everything here is pure; what the machine's own addresses
are comes in as data.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from runyard.job import InputError, NetworkLevel, Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

WEB_PORTS: Final = (80, 443)
DNS_PORT: Final = 53

DENIED: Final[tuple[tuple[str, str], ...]] = (
    ("0.0.0.0/8", "this machine"),
    ("10.0.0.0/8", "a private network"),
    ("100.64.0.0/10", "carrier-grade NAT"),
    ("127.0.0.0/8", "loopback"),
    ("168.63.129.16/32", "a cloud's metadata service"),
    ("169.254.169.254/32", "a cloud's metadata service"),
    ("169.254.0.0/16", "link-local"),
    ("172.16.0.0/12", "a private network"),
    ("192.0.0.0/24", "reserved for protocols"),
    ("192.168.0.0/16", "a private network"),
    ("198.18.0.0/15", "a test network"),
    ("224.0.0.0/3", "multicast or reserved"),
    ("::/128", "this machine"),
    ("::1/128", "loopback"),
    ("64:ff9b:1::/48", "a private translation prefix"),
    ("2001::/32", "a tunnel"),
    ("fc00::/7", "a private network"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "a private network"),
    ("ff00::/8", "multicast"),
)
"""Networks no job reaches, with what to call them. The most telling name of an address comes first."""

_CARRIERS: Final[tuple[tuple[ipaddress.IPv6Network, int], ...]] = (
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0),  # v4-mapped: the kernel connects by IPv4
    (ipaddress.IPv6Network("::ffff:0:0:0/96"), 0),  # SIIT, RFC 7915
    (ipaddress.IPv6Network("::/96"), 0),  # v4-compatible, RFC 4291 2.5.5.1
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),  # NAT64, RFC 6052
    (ipaddress.IPv6Network("2002::/16"), 80),  # 6to4, RFC 3056: the 32 bits after the prefix
)
"""IPv6 prefixes whose addresses carry an IPv4 address, and how many bits lie below it."""


class Denial(msgspec.Struct, frozen=True):
    """One network that is denied and what people call it."""

    network: Network
    name: str


class Permission(msgspec.Struct, frozen=True):
    """One network that is allowed although a denial covers it; no ports means the level's own."""

    network: Network
    ports: tuple[int, ...] = ()


class Egress(msgspec.Struct, frozen=True, kw_only=True):
    """What a job may reach, whichever level enforces it. A permission goes before every denial."""

    denied: tuple[Denial, ...] = tuple(Denial(ipaddress.ip_network(network), name) for network, name in DENIED)
    allowed: tuple[Permission, ...] = ()
    ports: tuple[int, ...] = WEB_PORTS


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """The machine's own addresses and the networks it sits in, as `surroundings.observe` sees them."""

    addresses: tuple[Address, ...] = ()
    networks: tuple[Network, ...] = ()


def for_machine(egress: Egress, surroundings: Surroundings) -> Egress:
    """The same policy that also denies this machine and its neighbours, whatever their addresses look like."""
    # Loopback and link-local are in the list already, by better names.
    told = [each for each in surroundings.addresses if not each.is_loopback and not each.is_link_local]
    own = [Denial(ipaddress.ip_network(address), "this machine") for address in told]
    around = [each for each in surroundings.networks if not each.is_loopback and not each.is_link_local]
    near = [Denial(network, "this machine's network") for network in around]
    return msgspec.structs.replace(egress, denied=(*own, *near, *egress.denied))


def decide(address: Address, port: int, level: NetworkLevel, egress: Egress) -> Refused | None:
    """None when a job at `level` may connect to `address` and `port` (TCP), else why not.

    The address is the one that is connected to; who has a name resolves it once and comes with each result.
    """
    promise = f"egress_{level}"
    if level == "none":
        return Refused(promise, "the job has no network", "run it with --network proxy or --network public")
    if not 0 < port < 65536:
        return Refused(promise, f"{port} is not a port")
    target = _plain(address)
    if any(_permits(permission, target, port, egress.ports) for permission in egress.allowed):
        return None
    views = _views(address)
    for view in views:
        for denial in egress.denied:
            if _within(view, denial.network):
                carried = "" if view == address else f" (carried by {address})"
                return Refused(promise, f"{view}{carried} is in {denial.network}, {denial.name}")
    if port not in egress.ports:
        ports = " and ".join(str(each) for each in egress.ports)
        return Refused(promise, f"port {port} is not open: jobs reach ports {ports}")
    return None


def _plain(address: Address) -> Address:
    """What the kernel connects to: a v4-mapped address is the IPv4 address, and a scope id plays no part."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    return address.ipv4_mapped or ipaddress.IPv6Address(int(address))


def _views(address: Address) -> tuple[Address, ...]:
    """Each IPv4 address that an address carries, and the address itself without its scope id."""
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    plain = ipaddress.IPv6Address(int(address))
    carried = tuple(
        ipaddress.IPv4Address(int(plain) >> below & 0xFFFFFFFF)
        for carrier, below in _CARRIERS
        if plain in carrier and int(plain) > 1
    )
    return (*carried, plain)


def _within(address: Address, network: Network) -> bool:
    return address.version == network.version and address in network


def _permits(permission: Permission, address: Address, port: int, ports: tuple[int, ...]) -> bool:
    return _within(address, permission.network) and port in (permission.ports or ports)


def parse_destination(text: str) -> tuple[str, int | None]:
    """`host`, `host:port`, `1.2.3.4:80` or `[::1]:443` as host and port. Raises ValueError, naming what is wrong."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r} is not an address in brackets")
        port = rest[1:] if rest else None
        ipaddress.IPv6Address(host.partition("%")[0])
    else:
        host, colon, after = text.partition(":")
        port = after if colon else None
        if ":" in (port or ""):
            raise ValueError(f"{text!r}: an IPv6 address is written in brackets")
    if not host or any(character <= " " or character in "/@?#\\" or character == "\x7f" for character in host):
        raise ValueError(f"{text!r} has no host")
    if port is None:
        return host, None
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise ValueError(f"{port!r} is not a port")
    return host, int(port)


def parse_overrides(environ: Mapping[str, str]) -> Egress:
    """The policy with `RUNYARD_EGRESS_ALLOW` and `RUNYARD_EGRESS_DENY` applied.

    Both are lists of networks, separated by commas or spaces; an allowed one may end in a port
    (`10.1.2.0/24:8080`, `[fd00::5]:443`), without one it means the web ports. Raises InputError for a wrong entry.
    """
    allowed = [_permission(entry) for entry in _entries(environ, "RUNYARD_EGRESS_ALLOW")]
    denied = [
        Denial(_network(entry, "RUNYARD_EGRESS_DENY"), "denied by RUNYARD_EGRESS_DENY")
        for entry in _entries(environ, "RUNYARD_EGRESS_DENY")
    ]
    plain = Egress()
    return msgspec.structs.replace(plain, denied=(*denied, *plain.denied), allowed=tuple(allowed))


def _entries(environ: Mapping[str, str], name: str) -> Iterable[str]:
    return environ.get(name, "").replace(",", " ").split()


def _permission(entry: str) -> Permission:
    network, port = entry, ""
    if entry.startswith("["):
        network, _, rest = entry[1:].partition("]")
        port = rest.removeprefix(":")
    elif entry.count(":") == 1:
        network, _, port = entry.partition(":")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise InputError(f"RUNYARD_EGRESS_ALLOW: {port!r} is not a port", key="RUNYARD_EGRESS_ALLOW")
    return Permission(_network(network, "RUNYARD_EGRESS_ALLOW"), (int(port),) if port else ())


def _network(text: str, key: str) -> Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as err:
        raise InputError(f"{key}: {text!r} is not an address or a network such as 10.1.2.0/24", key=key) from err
