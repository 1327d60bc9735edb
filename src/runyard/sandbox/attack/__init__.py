"""Tries to break each promise of each sandbox, and says what held.

In goes a backend and an image; out come findings: promise, attempt, verdict, what was seen. A small static program
(`probe.c`) is the attacker inside, so any image will do; `outside.py` seeds the machine it must not find. Read
`attempts.py` first: it is the list of what is tried.
"""

from runyard.sandbox.attack.attempts import Finding
from runyard.sandbox.attack.drive import Report, attack

__all__ = ["Finding", "Report", "attack"]
