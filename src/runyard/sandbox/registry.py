"""Backends by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runyard.job import InputError

if TYPE_CHECKING:
    from runyard.sandbox.contract import Sandbox
    from runyard.sandbox.records import Reaped

BACKENDS: Final = ("bubblewrap", "docker", "podman")


def open_sandbox(name: str, *, state: str | None = None, known: bytes = b"") -> Sandbox:
    """The backend of that name on this machine, with its capabilities read.

    `state` is the folder for records, images and disks (default: `records.state_folder()`). `known` is what another
    process of this machine learned of the backend a moment ago (its `known`, where it has one). Raises InputError for a
    name that is no backend, MachineError where it isn't there.
    """
    if name == "bubblewrap":
        from runyard.sandbox.bubblewrap import BubblewrapSandbox

        return BubblewrapSandbox(state)
    if name in BACKENDS:
        from runyard.sandbox.engine import open_engine

        return open_engine(name, state, known=known)
    raise InputError(f"there is no sandbox named {name}", key="sandbox", code="sandbox.unknown")


def reap(state: str | None = None, *, all_engines: bool = True) -> Reaped:
    """Remove what dead owners left on this machine, on its engines too. Safe at any time; bounded.

    Without `all_engines` they are asked only where one was used from this state folder: asking takes longer than a
    small job.
    """
    from runyard.sandbox import records

    reaped = records.reap(state)
    if not all_engines and not records.uses_engines(state or records.state_folder()):
        return reaped
    from runyard.sandbox import docker_now

    sockets = [docker_now.default_socket("docker"), docker_now.default_socket("podman")]
    present = [path for path in dict.fromkeys(sockets) if docker_now.answers_at(path)]
    if present:
        from runyard.sandbox.docker_reap import reap_engine

        for path in present:
            more = reap_engine(path, state)
            reaped = records.Reaped(reaped.removed + more.removed, reaped.left + more.left)
    return reaped
