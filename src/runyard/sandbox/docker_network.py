"""A job's own network on an engine: one bridge, made when the job needs one, gone with the job.

A container begins with nothing but loopback. The level `public` puts it on a bridge whose packets the host's own rules
judge (`network.bridge`); services put it there too, at any level, and the bridge then has no way out. The level `proxy`
needs no bridge: its one socket is in the container's loopback.
"""

from __future__ import annotations

import ipaddress
import os
from typing import TYPE_CHECKING, Any, Final

from runyard.sandbox.network import bridge as bridges
from runyard.sandbox.network import surroundings
from runyard.sandbox.network.levels import judge_bridge, observe_facts
from runyard.sandbox.network.policy import Denial, Egress, parse_overrides

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runyard.job import NetworkLevel
    from runyard.sandbox.docker_api import EngineApi

NOTHING: Final = Egress(denied=(Denial(ipaddress.ip_network("0.0.0.0/0"), "this job has no network"),))
"""The rules of a bridge without a way out: they close the host's own services to it."""

_WITHOUT_RESOLVER: Final = ("8.8.8.8", "8.8.4.4")
"""What an engine asks where the host's resolvers are all on its loopback."""


class JobBridge:
    """An open bridge: the engine's network and the rules on the host, where there are any."""

    def __init__(self, api: EngineApi, network: str, name: str, policy: bridges.BridgePolicy | None) -> None:
        self.network = network
        self.name = name
        self.policy = policy
        self._api = api

    async def close(self) -> None:
        """Remove the network, then the rules. Raises EngineError while somebody is on it."""
        await self._api.remove_network(self.network)
        if self.policy is not None:
            await self.policy.close()


def bridge_name(sandbox: str) -> str:
    """The interface's name for a sandbox: unique, and short enough for the kernel."""
    return f"ry{sandbox[-10:]}"


def network_body(
    name: str, interface: str, labels: Mapping[str, str], *, is_open: bool, is_judged: bool
) -> dict[str, Any]:
    """The create call. A bridge without rules on the host gets no address of the host either."""
    options = bridges.bridge_options(interface, containers_talk=True)
    if not is_judged:
        options["com.docker.network.bridge.inhibit_ipv4"] = "true"
    return {
        "Name": name,
        "Driver": "bridge",
        "CheckDuplicate": True,
        "Internal": not is_open,
        "EnableIPv6": False,
        "Options": options,
        "Labels": dict(labels),
    }


async def open_bridge(api: EngineApi, sandbox: str, labels: Mapping[str, str], level: NetworkLevel) -> JobBridge:
    """Make a job's bridge. The rules are loaded before anything is on it. Raises MachineError."""
    interface = bridge_name(sandbox)
    is_judged = judge_bridge(observe_facts()) is None
    body = network_body(sandbox, interface, labels, is_open=level == "public", is_judged=is_judged)
    network = await api.create_network(body)
    try:
        policy = None
        if level == "public":
            policy = await bridges.open_bridge(interface, _resolvers(), parse_overrides(os.environ))
        elif is_judged:
            policy = await bridges.open_bridge(interface, (), NOTHING)
    except BaseException:
        await api.remove_network(network)
        raise
    return JobBridge(api, network, sandbox, policy)


def _resolvers() -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, ...]:
    found = surroundings.resolvers()
    if any(not address.is_loopback for address in found):
        return found
    return tuple(ipaddress.ip_address(text) for text in _WITHOUT_RESOLVER)
