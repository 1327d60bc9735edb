"""The network of a sandbox: `none`, `proxy` or `public`, enforced where the job's processes can't reach it.

In: a policy, and a network namespace (of a sandbox's first process, or a bridge of an engine). Out: an open network,
the variables that the job needs, and what was refused, counted. One deny list for all levels, read `policy.py` first;
then `proxy.py` (no helper, no root), `public.py` (a filtered uplink) and `bridge.py` (the same on an engine's bridge).
`session.open_network` is what a backend with its own namespaces calls; `levels.py` says what this machine can keep.
"""

from runyard.sandbox.network.levels import available_levels
from runyard.sandbox.network.policy import Egress, Surroundings, decide, for_machine, parse_overrides
from runyard.sandbox.network.refusals import OnRefused, RefusedDestination

__all__ = [
    "Egress",
    "OnRefused",
    "RefusedDestination",
    "Surroundings",
    "available_levels",
    "decide",
    "for_machine",
    "parse_overrides",
]
