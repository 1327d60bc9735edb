"""The network of one session, whatever its level: opened when the session is adopted, closed with it.

A backend with a network namespace of its own for each job calls `open_network` and adds `environment` to what its
processes start with; an engine wraps the rules of its bridge, `JobNetwork("public", filtered_by=await open_bridge(…))`.
Nothing else of a session depends on the level.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

from runyard.job import MachineError, NetworkLevel
from runyard.sandbox.contract import TakeConnection
from runyard.sandbox.network.policy import Egress, parse_overrides
from runyard.sandbox.network.public import open_public

if TYPE_CHECKING:
    from runyard.sandbox.network.proxy import Proxy
    from runyard.sandbox.network.refusals import OnRefused, RefusedDestination

Listen: TypeAlias = Callable[[int, TakeConnection], Awaitable[int]]


class Filter(Protocol):
    """A packet filter's side of a network: an uplink of the session's own, or the rules of its bridge."""

    async def refused(self) -> tuple[RefusedDestination, ...]:
        """What it refused so far."""

    async def close(self) -> None:
        """Take it away; a second close is quiet."""


class JobNetwork:
    """An open network. `environment` is what the job's processes need to use it.

    `on_refused` may be set by whoever writes the job's log: it hears of each refused destination once, from a proxy at
    once, from a packet filter when `refused` is asked for.
    """

    def __init__(
        self,
        level: NetworkLevel,
        *,
        filtered_by: Filter | None = None,
        helper_pid: int | None = None,
        hang_up: Callable[[], None] | None = None,
    ) -> None:
        self.level = level
        self.environment: Mapping[str, str] = {}
        self.on_refused: OnRefused | None = None
        self.helper_pid = helper_pid
        """The process outside that belongs to it, for the session's record."""
        self._filter = filtered_by
        self._hang_up = hang_up
        self._proxy: Proxy | None = None
        self._told: set[str] = set()

    async def open_proxy(self, listen: Listen, egress: Egress, direct: Iterable[str]) -> None:
        """Serve a proxy behind one of the session's listeners, and name it in `environment`."""
        from runyard.sandbox.network.proxy import Proxy, proxy_environment

        self._proxy = Proxy(egress, on_refused=self._tell)
        port = await listen(0, self._proxy.serve)
        self.environment = proxy_environment(port, direct=direct)

    def _tell(self, destination: str, because: str) -> None:
        if self.on_refused is not None and destination not in self._told:
            self._told.add(destination)
            self.on_refused(destination, because)

    async def refused(self) -> tuple[RefusedDestination, ...]:
        """Every destination that was refused so far, with its count.

        Free for `proxy`; `public` asks the packet filter, about 10 ms: after a step that failed and at the job's end.
        """
        if self._proxy is not None:
            found = self._proxy.refused()
        elif self._filter is not None:
            found = await self._filter.refused()
        else:
            return ()
        for each in found:
            self._tell(each.destination, each.because)
        return found

    def hang_up(self) -> None:
        """See SessionNetwork: the uplink of a packet filter takes as long to end as a short step."""
        if self._hang_up is not None:
            self._hang_up()

    async def close(self) -> None:
        """End what is outside; bounded. A second close is quiet. A proxy ends with the session's listener."""
        if self._filter is not None:
            await self._filter.close()


async def open_network(
    level: NetworkLevel, *, net: int, listen: Listen, egress: Egress | None = None, direct: Iterable[str] = ()
) -> JobNetwork:
    """Open the network of a session whose namespace is the descriptor `net` (it stays the caller's).

    `listen` is the session's own. `egress` is the policy before this machine's addresses (default: the built-in one
    with RUNYARD_EGRESS_ALLOW and RUNYARD_EGRESS_DENY); `direct` are names reached without the proxy. Raises
    MachineError with the remedy when the level can't be opened; the job then has no network.
    """
    if level == "none":
        return JobNetwork("none")

    policy = egress or parse_overrides(os.environ)
    if level == "proxy":
        network = JobNetwork("proxy")
        await network.open_proxy(listen, policy, direct)
        return network
    if net < 0:
        raise MachineError("the sandbox has no network namespace of its own", code="sandbox.promise")

    uplink = await open_public(net, policy)
    return JobNetwork("public", filtered_by=uplink, helper_pid=uplink.helper_pid, hang_up=uplink.hang_up)
