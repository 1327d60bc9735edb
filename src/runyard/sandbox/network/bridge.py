"""The network level `public` for an engine's bridge: one table of rules on the host for each bridge.

The engine makes the bridge; these rules judge what comes from it. They belong to the host, where a container has no
say. Loading them again is the same as loading them once, and removing them twice is quiet. Whoever opens a bridge
writes the table's name into its record first, so that a reaper finds what a dead owner left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runyard.job import MachineError
from runyard.sandbox.network import ruleset, surroundings
from runyard.sandbox.network.levels import judge_bridge, observe_facts
from runyard.sandbox.network.policy import Address, Egress, for_machine
from runyard.sandbox.network.programs import nft

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runyard.sandbox.network.refusals import RefusedDestination

MTU: Final = 1400


def bridge_options(bridge: str, *, containers_talk: bool) -> dict[str, str]:
    """The options of the engine's network: the bridge's name, its MTU, and whether containers on it reach each other.

    They do where a job has services; a bridge is one job's alone, so a sibling is never on it.
    """
    ruleset.bridge_table(bridge)
    return {
        "com.docker.network.bridge.name": bridge,
        "com.docker.network.bridge.enable_icc": "true" if containers_talk else "false",
        "com.docker.network.driver.mtu": str(MTU),
    }


class BridgePolicy:
    """The loaded rules of one bridge."""

    def __init__(self, bridge: str, egress: Egress) -> None:
        self.bridge = bridge
        self.table = ruleset.bridge_table(bridge)
        self._egress = egress

    async def refused(self) -> tuple[RefusedDestination, ...]:
        """What was refused so far, with packet counts; empty when the rules are gone."""
        try:
            return ruleset.parse_refused(await nft(f"list table inet {self.table}\n"), self._egress)
        except (MachineError, ValueError):
            return ()

    async def close(self) -> None:
        """Remove the rules; quiet when they are gone. Raises MachineError when nft fails."""
        await remove_table(self.table)


async def open_bridge(bridge: str, resolvers: Iterable[Address], egress: Egress | None = None) -> BridgePolicy:
    """Load the rules of `bridge`, before the engine makes it or after. `resolvers` are asked by the engine's DNS.

    Raises MachineError with the remedy where that isn't possible, ValueError for a name that isn't ours.
    """
    table = ruleset.bridge_table(bridge)
    missing = judge_bridge(observe_facts())
    if missing is not None:
        raise MachineError(f"no public network: {missing.because}", code="sandbox.promise", remedy=missing.remedy)
    try:
        policy = for_machine(egress or Egress(), surroundings.observe())
    except OSError as err:
        raise MachineError(f"no public network: this machine's addresses are unknown ({err})") from err
    await nft(ruleset.render_bridge(bridge, policy, tuple(resolvers)))
    opened = BridgePolicy(bridge, policy)
    assert opened.table == table
    return opened


async def list_tables() -> tuple[str, ...]:
    """The tables of bridges that are loaded here, whoever loaded them. Raises MachineError."""
    try:
        return ruleset.parse_tables(await nft("list tables\n"))
    except ValueError as err:
        raise MachineError(str(err), code="network.program") from err


async def remove_table(table: str) -> None:
    """Remove one table of ours; quiet when there is none. Raises MachineError, ValueError for a foreign name."""
    if not table.startswith("runyard_"):
        raise ValueError(f"{table!r} is not a table of ours")
    await nft(ruleset.render_removal(ruleset.bridge_table(table.removeprefix("runyard_"))))
