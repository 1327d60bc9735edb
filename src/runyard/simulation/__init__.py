"""A whole control plane in virtual time, with everything that can go wrong, from one number.

The flows, dispatch and the run graph are the real ones; the network, the store and the workers' jobs are doubles. A
seed decides all: workflows, fleet, delays, losses, crashes, partitions, clock jumps, what people do. After each commit
the invariants are looked at (`invariants.py`). A seed replays exactly. Read `world.py`.
"""

from runyard.simulation.world import Report, simulate

__all__ = ["Report", "simulate"]
