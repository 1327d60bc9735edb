"""Which references a built-in adapter stands for. One answer for engine, plan, lock and audit. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runyard.job import MappingToken, TextToken

if TYPE_CHECKING:
    from runyard.job import ActionStep


def built_in(step: ActionStep) -> str | None:
    """The adapter for a step's action, None where the original is to run.

    `checkout`, `cache`, `cache_restore`, `cache_save`, `upload_artifact` or `download_artifact`.
    """
    match (step.repository or "").lower():
        case "actions/checkout":
            from runyard.action.checkout_inputs import declares

            return "checkout" if declares(step.path, step.ref, _inputs(step)) else None
        case "actions/cache":
            from runyard.action import cache

            return cache.PHASES[step.path.strip("/")] if cache.declares(step.path, step.ref) else None
        case "actions/upload-artifact":
            from runyard.action.artifacts import declares_upload

            return "upload_artifact" if declares_upload(step.path, step.ref) else None
        case "actions/download-artifact":
            from runyard.action.artifacts import declares_download

            return "download_artifact" if declares_download(step.path, step.ref, list(_inputs(step))) else None
    return None


def _inputs(step: ActionStep) -> dict[str, str | None]:
    """The inputs of `with` by name; None for a value that an expression gives."""
    if not isinstance(step.inputs, MappingToken):
        return {}
    return {
        entry.key.value: entry.value.value if isinstance(entry.value, TextToken) else None
        for entry in step.inputs.entries
        if isinstance(entry.key, TextToken)
    }
