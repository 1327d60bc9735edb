"""Which addresses and networks are this machine's own, asked of the kernel.

A host with a public address is still a host: its services and its neighbours are denied like any LAN. The answer is
read when a job's network is opened, because addresses come and go. Nothing is decided here.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runyard.sandbox.network.policy import Address, Network, Surroundings

if TYPE_CHECKING:
    from collections.abc import Iterator

_RTM_NEWADDR: Final = 20
_RTM_GETADDR: Final = 22
_RTM_NEWROUTE: Final = 24
_RTM_GETROUTE: Final = 26
_NLMSG_ERROR: Final = 2
_NLMSG_DONE: Final = 3
_REQUEST_DUMP: Final = 0x301
_IFA_ADDRESS: Final = 1
_IFA_LOCAL: Final = 2
_RTA_DST: Final = 1
_RTA_GATEWAY: Final = 5
_RTA_VIA: Final = 18
_RTN_UNICAST: Final = 1
_RTN_LOCAL: Final = 2
_WIDEST: Final = {4: 8, 6: 32}
"""A route wider than this is an uplink (a VPN's half of the Internet), not a neighbourhood."""


def observe() -> Surroundings:
    """The machine's addresses and on-link networks. Reads the kernel's tables, about half a millisecond.

    Raises OSError when the kernel doesn't answer; a caller must not go on with less.
    """
    addresses: set[Address] = set()
    networks: set[Network] = set()
    for kind, body in _dump(_RTM_GETADDR):
        if kind == _RTM_NEWADDR:
            _read_address(body, addresses, networks)
    for kind, body in _dump(_RTM_GETROUTE):
        if kind == _RTM_NEWROUTE:
            _read_route(body, addresses, networks)
    near = (network for network in networks if _WIDEST[network.version] <= network.prefixlen)
    return Surroundings(
        addresses=tuple(sorted(addresses, key=lambda each: (each.version, int(each)))),
        networks=tuple(sorted(near, key=lambda each: (each.version, int(each.network_address), each.prefixlen))),
    )


def resolvers(path: str = "/etc/resolv.conf") -> tuple[Address, ...]:
    """The name servers of this machine, in order; empty where the file is missing."""
    try:
        lines = Path(path).read_text("utf-8", "replace").splitlines()
    except OSError:
        return ()
    found = []
    for words in (line.split() for line in lines):
        if len(words) >= 2 and words[0] == "nameserver":
            try:
                found.append(ipaddress.ip_address(words[1].partition("%")[0]))
            except ValueError:
                continue
    return tuple(found)


def _read_address(body: bytes, addresses: set[Address], networks: set[Network]) -> None:
    prefix = body[1]
    attributes = dict(_attributes(body[8:]))
    for kind in (_IFA_LOCAL, _IFA_ADDRESS):
        if (raw := attributes.get(kind)) is not None:
            address = ipaddress.ip_address(raw)
            if kind == _IFA_LOCAL or _IFA_LOCAL not in attributes:
                addresses.add(address)
            networks.add(ipaddress.ip_network((address, prefix), strict=False))


def _read_route(body: bytes, addresses: set[Address], networks: set[Network]) -> None:
    family, prefix, route_type = body[0], body[1], body[7]
    attributes = dict(_attributes(body[12:]))
    raw = attributes.get(_RTA_DST)
    if raw is None or family not in {socket.AF_INET, socket.AF_INET6}:
        return
    network = ipaddress.ip_network((ipaddress.ip_address(raw), prefix), strict=False)
    if route_type == _RTN_LOCAL and network.prefixlen == network.max_prefixlen:
        addresses.add(network.network_address)
    elif route_type == _RTN_LOCAL or (
        route_type == _RTN_UNICAST and _RTA_GATEWAY not in attributes and _RTA_VIA not in attributes
    ):
        networks.add(network)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("HH", data, at)
        if length < 4:
            return
        yield kind & 0x3FFF, data[at + 4 : at + length]
        at += (length + 3) & ~3


def _dump(request: int) -> Iterator[tuple[int, bytes]]:
    """Each message of one kernel table: its type and its body."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as asked:
        asked.settimeout(5)
        asked.bind((0, 0))
        # nlmsghdr and an rtgenmsg for every family, padded as ifaddrmsg and rtmsg want it.
        asked.send(struct.pack("IHHII", 16 + 12, request, _REQUEST_DUMP, 1, 0) + bytes(12))
        while True:
            data = asked.recv(1 << 18)
            at = 0
            while at + 16 <= len(data):
                length, kind = struct.unpack_from("IH", data, at)
                if kind == _NLMSG_DONE:
                    return
                if kind == _NLMSG_ERROR or length < 16:
                    code = -struct.unpack_from("i", data, at + 16)[0]
                    raise OSError(code, f"the kernel did not list its addresses: {os.strerror(code)}")
                yield kind, data[at + 16 : at + length]
                at += (length + 3) & ~3
