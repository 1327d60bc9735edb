"""What tests of spools have in common."""

from __future__ import annotations

from runyard.report.spool import SpoolOwner


def owner(url: str = "http://server", **keys: object) -> SpoolOwner:
    made = {"worker": "w", "job": "j1", "attempt": 1, "lease": "l1", **keys}
    return SpoolOwner(url=url, **made)  # type: ignore[arg-type]  # fields of the struct
