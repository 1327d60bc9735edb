"""Which references a built-in adapter stands for. One answer for engine, plan, lock and audit. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runyard.job import ActionStep


def built_in(step: ActionStep) -> str | None:
    """The adapter for a step's action, None where the original is to run."""
    if (step.repository or "").lower() != "actions/checkout":
        return None
    from runyard.action.checkout import declares

    return "checkout" if declares(step.path, step.ref) else None
