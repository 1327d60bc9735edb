"""Engines by name, for the registry of backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

from runyard.job import InputError

if TYPE_CHECKING:
    from runyard.sandbox.docker import DockerSandbox


def open_engine(
    name: str, state: str | None = None, *, socket_path: str | None = None, known: bytes = b""
) -> DockerSandbox:
    """The engine of that name on this machine. Raises MachineError where none answers on its socket."""
    from runyard.sandbox.docker import DockerSandbox

    if name not in ("docker", "podman"):
        raise InputError(f"there is no engine named {name}", key="sandbox", code="sandbox.unknown")
    return DockerSandbox(cast("Literal['docker', 'podman']", name), socket_path, state=state, known=known)
