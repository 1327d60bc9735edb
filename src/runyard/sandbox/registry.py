"""Backends by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runyard.job import InputError

if TYPE_CHECKING:
    from runyard.sandbox.contract import Sandbox

BACKENDS: Final = ("bubblewrap", "docker", "podman")


def open_sandbox(name: str, *, state: str | None = None) -> Sandbox:
    """The backend of that name on this machine, with its capabilities read.

    `state` is the folder for records, images and disks (default: `records.state_folder()`). Raises InputError for a
    name that is no backend, MachineError where it isn't there.
    """
    if name == "bubblewrap":
        from runyard.sandbox.bubblewrap import BubblewrapSandbox

        return BubblewrapSandbox(state)
    if name in BACKENDS:
        from runyard.sandbox.engine import open_engine

        return open_engine(name, state)
    raise InputError(f"there is no sandbox named {name}", key="sandbox", code="sandbox.unknown")
