"""What an original action needs to run here as it does on GitHub, where GitHub gives something that this machine can't.

A token: two actions refuse to start without one and yet need none here. Checkout reads this run's repository from the
job's gateway, github-script asks GitHub only when its script does. Where the job has no token they get one that is good
at that gateway alone (deviation D18); no expression sees it, and GitHub doesn't know it.

A commit: a checkout of this run's own repository takes the working tree as the built-in one does (deviation D10).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from runyard.engine.state import Frame
    from runyard.job import ActionStep

TOKEN_INPUTS: Final = {"actions/checkout": "token", "actions/github-script": "github-token"}
"""The input that must not be empty, by repository in lower case."""


async def complete_inputs(frame: Frame, step: ActionStep, inputs: dict[str, str]) -> None:
    """Fill the token where it is empty and the job has none, and say so in the main phase; name the commit."""
    repository = (step.repository or "").lower()
    name = TOKEN_INPUTS.get(repository)
    if name is None or step.path:
        return
    if inputs.get(name) == "" and not frame.job.secrets["GITHUB_TOKEN"]:
        await _stand_in(frame, inputs, name)
    checkout = frame.job.claim.checkout
    if repository == "actions/checkout" and checkout is not None and not inputs.get("ref"):
        own = str(frame.github.get("repository") or "")
        if (inputs.get("repository") or own).lower() == own.lower():
            frame.github["sha"] = checkout.commit


async def _stand_in(frame: Frame, inputs: dict[str, str], name: str) -> None:
    token = (await frame.job.services.variables(frame.job, frame, "node")).get("ACTIONS_RUNTIME_TOKEN", "")
    if not token:
        return
    inputs[name] = token
    if frame.phase == "main":
        frame.log.say(f"No GITHUB_TOKEN was given: '{name}' is a token that only this job's own services take (D18)")
