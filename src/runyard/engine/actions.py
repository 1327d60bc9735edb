"""Steps that use an action: composites, JavaScript, the built-in ones (job-semantics 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runyard.engine.run_step import fail

if TYPE_CHECKING:
    from runyard.engine.results import Result
    from runyard.engine.state import Frame
    from runyard.job import ActionStep, ContainerActionStep


async def prepare_actions(frame: Frame) -> None:
    """Resolve what the steps use, before the first of them runs."""


async def run_pre_steps(frame: Frame) -> None:
    """The pre phases of remote actions, in step order."""


async def run_action(frame: Frame, step: ActionStep | ContainerActionStep) -> Result:
    """The handler of a step that uses an action."""
    return fail(frame, f"{step.uses}: not available")
