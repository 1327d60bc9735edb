"""The packet filter of the level `public`, as text for nft, and its counters, as records.

Two rule sets say the same thing in two places: in the job's own network namespace, on what leaves it (bubblewrap), and
on the host, on what comes from one bridge (an engine). DNS to the given resolvers and TCP to public 80 and 443 pass;
the deny list, other ports, other protocols and all of IPv6 don't. What is refused is remembered by destination in a
bounded set, so a job's log can name it. Pure: the shells load the text and read the counters.
"""

from __future__ import annotations

import ipaddress
import json
import re
from typing import TYPE_CHECKING, Final

from runyard.sandbox.network.policy import DNS_PORT, Address, Egress, decide
from runyard.sandbox.network.refusals import REMEMBERED, RefusedDestination

if TYPE_CHECKING:
    from collections.abc import Iterable

OWN_TABLE: Final = "runyard"
"""The table in a job's own namespace; tables of bridges are called `runyard_` and the bridge's name."""

_BRIDGE: Final = re.compile(r"[a-z][a-z0-9_]{0,14}\Z")
_REJECT: Final = "reject with icmpx admin-prohibited"


def bridge_table(bridge: str) -> str:
    """The table of one bridge. Raises ValueError for a name that isn't a plain interface name of ours."""
    if not _BRIDGE.match(bridge):
        raise ValueError(f"{bridge!r} is no bridge of ours: small letters, digits and _, at most 15, a letter first")
    return f"runyard_{bridge}"


def render_own_namespace(egress: Egress, resolvers: Iterable[Address]) -> str:
    """Rules for a network namespace that is the job's alone: everything that leaves it but over loopback is judged.

    The policy of the chain is drop, so a rule set that was loaded by half lets nothing out. Connection tracking is not
    needed, because each packet of a permitted connection goes to a permitted destination. A namespace is filtered once:
    to load it again is refused, and a removal first would make the kernel wait longer than for all the rest.
    """
    return "\n".join(
        (
            f"create table inet {OWN_TABLE}",
            f"table inet {OWN_TABLE} {{",
            *_sets(egress),
            *_refuse_chain(),
            "  chain leaving { type filter hook output priority filter; policy drop;",
            '    oifname "lo" accept',
            *(f"    {line}" for line in _verdicts(egress, resolvers)),
            "  }",
            "}",
            "",
        )
    )


def render_bridge(bridge: str, egress: Egress, resolvers: Iterable[Address]) -> str:
    """Rules on the host for what comes from `bridge`: forwarded packets are judged, the host's own services closed.

    The input chain is not optional: rules on forwarded packets leave the host's services open to a container. New
    connections from elsewhere into the bridge are refused too, so a sibling on another bridge reaches nothing.
    """
    table = bridge_table(bridge)
    resolving = [f"    {line}" for line in _dns(resolvers)]
    return "\n".join(
        (
            _afresh(table),
            f"table inet {table} {{",
            *_sets(egress),
            *_refuse_chain(),
            "  chain passing { type filter hook forward priority filter - 5; policy accept;",
            f'    iifname != "{bridge}" oifname "{bridge}" ct state new counter {_REJECT}',
            f'    iifname != "{bridge}" accept',
            f'    oifname "{bridge}" accept',
            "    ct state established,related accept",
            *(f"    {line}" for line in _verdicts(egress, resolvers)),
            "  }",
            "  chain arriving { type filter hook input priority filter - 5; policy accept;",
            f'    iifname != "{bridge}" accept',
            "    ct state established,related accept",
            *resolving,
            "    goto refuse",
            "  }",
            "}",
            "",
        )
    )


def render_removal(table: str) -> str:
    """Remove a table, quiet when there is none."""
    return f"table inet {table} {{ }}\ndelete table inet {table}\n"


def _afresh(table: str) -> str:
    # Declared, deleted and declared again in one transaction: loading twice is the same as loading once.
    return render_removal(table).rstrip("\n")


def _sets(egress: Egress) -> list[str]:
    denied = [denial.network for denial in egress.denied if isinstance(denial.network, ipaddress.IPv4Network)]
    elements = ", ".join(str(network) for network in ipaddress.collapse_addresses(denied))
    return [
        "  set denied4 { type ipv4_addr; flags interval;",
        *([f"    elements = {{ {elements} }}"] if elements else []),
        "  }",
        f"  set refused4 {{ type ipv4_addr . inet_proto . inet_service; size {REMEMBERED}; flags dynamic; }}",
        f"  set refused6 {{ type ipv6_addr . inet_proto . inet_service; size {REMEMBERED}; flags dynamic; }}",
    ]


def _refuse_chain() -> list[str]:
    return [
        "  chain refuse {",
        "    meta l4proto { tcp, udp } update @refused4 { ip daddr . meta l4proto . th dport counter }",
        "    meta l4proto { tcp, udp } update @refused6 { ip6 daddr . meta l4proto . th dport counter }",
        "    meta nfproto ipv6 counter drop",
        f"    counter {_REJECT}",
        "  }",
    ]


def _dns(resolvers: Iterable[Address]) -> list[str]:
    return [
        f"ip daddr {resolver} meta l4proto {{ tcp, udp }} th dport {DNS_PORT} accept"
        for resolver in resolvers
        if isinstance(resolver, ipaddress.IPv4Address)
    ]


def _verdicts(egress: Egress, resolvers: Iterable[Address]) -> list[str]:
    ports = ", ".join(str(port) for port in egress.ports)
    permitted = [
        f"ip daddr {permission.network} tcp dport {{ {', '.join(map(str, permission.ports or egress.ports))} }} accept"
        for permission in egress.allowed
        if isinstance(permission.network, ipaddress.IPv4Network)
    ]
    return [
        *_dns(resolvers),
        "meta nfproto ipv6 goto refuse",
        *permitted,
        "ip daddr @denied4 goto refuse",
        f"tcp dport {{ {ports} }} accept",
        "goto refuse",
    ]


def parse_refused(listing: str, egress: Egress) -> tuple[RefusedDestination, ...]:
    """The refused destinations in what `nft -j list table` printed, most frequent first; packets are counted.

    `egress` is the policy that was loaded: it says why. Raises ValueError for what isn't such a listing.
    """
    found = []
    try:
        entries = json.loads(listing)["nftables"]
        sets = [entry["set"] for entry in entries if "set" in entry]
        for each in sets:
            if each["name"] in {"refused4", "refused6"}:
                found += [_read_element(element["elem"], egress) for element in each.get("elem", ())]
    except (KeyError, TypeError, AttributeError) as err:
        raise ValueError("nft listed something unexpected") from err
    return tuple(sorted(found, key=lambda entry: (-entry.count, entry.destination)))


def _read_element(element: dict[str, dict[str, list[object]]], egress: Egress) -> RefusedDestination:
    address_text, protocol, port_text = element["val"]["concat"]
    address, port = ipaddress.ip_address(str(address_text)), int(str(port_text))
    name = f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
    packets = int(str(dict(element["counter"])["packets"]))
    if protocol in {"tcp", 6}:
        refused = decide(address, port, "public", egress)
        because = refused.because if refused else "only IPv4 leaves the sandbox"
        return RefusedDestination(name, because, packets)
    return RefusedDestination(f"{name}/{protocol}", f"{protocol} is not open: jobs reach DNS and web ports", packets)


def parse_tables(listing: str) -> tuple[str, ...]:
    """The names of our tables in what `nft -j list tables` printed. Raises ValueError."""
    try:
        tables = [entry["table"] for entry in json.loads(listing)["nftables"] if "table" in entry]
        return tuple(
            str(table["name"]) for table in tables if table["family"] == "inet" and table["name"].startswith("runyard_")
        )
    except (KeyError, TypeError, AttributeError) as err:
        raise ValueError("nft listed something unexpected") from err
