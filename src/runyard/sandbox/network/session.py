"""The network of one session, whatever its level: opened when the session is adopted, closed with it.

A backend with a network namespace of its own for each job calls `open_network` and adds `environment` to what its
processes start with. Nothing else of a session depends on the level.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from runyard.job import MachineError, NetworkLevel
from runyard.sandbox.contract import TakeConnection
from runyard.sandbox.network.policy import Egress, parse_overrides
from runyard.sandbox.network.public import Uplink, open_public

if TYPE_CHECKING:
    from runyard.sandbox.network.proxy import Proxy
    from runyard.sandbox.network.refusals import RefusedDestination

Listen: TypeAlias = Callable[[int, TakeConnection], Awaitable[int]]


class JobNetwork:
    """An open network. `environment` is what the job's processes need to use it."""

    def __init__(
        self,
        level: NetworkLevel,
        *,
        environment: Mapping[str, str] | None = None,
        proxy: Proxy | None = None,
        uplink: Uplink | None = None,
    ) -> None:
        self.level = level
        self.environment: Mapping[str, str] = environment or {}
        self._proxy = proxy
        self._uplink = uplink

    @property
    def helper_pid(self) -> int | None:
        """The process outside that belongs to it, for the session's record."""
        return self._uplink.helper_pid if self._uplink is not None else None

    async def refused(self) -> tuple[RefusedDestination, ...]:
        """Every destination that was refused so far, with its count.

        Free for `proxy`; `public` asks the packet filter, about 10 ms: after a step that failed and at the job's end.
        """
        if self._proxy is not None:
            return self._proxy.refused()
        if self._uplink is not None:
            return await self._uplink.refused()
        return ()

    async def close(self) -> None:
        """End what is outside; bounded. A second close is quiet. A proxy ends with the session's listener."""
        if self._uplink is not None:
            await self._uplink.close()


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
        from runyard.sandbox.network.proxy import Proxy, proxy_environment

        proxy = Proxy(policy)
        port = await listen(0, proxy.serve)
        return JobNetwork("proxy", environment=proxy_environment(port, direct=direct), proxy=proxy)
    if net < 0:
        raise MachineError("the sandbox has no network namespace of its own", code="sandbox.promise")

    return JobNetwork("public", uplink=await open_public(net, policy))
