"""Which image a backend is attacked in, when nobody named one."""

from __future__ import annotations

from runyard.job import MachineError


def image_for(backend: str) -> str:
    """`host` for bubblewrap; for an engine the first image that it has, ours before others. Raises MachineError."""
    if backend == "bubblewrap":
        return "host"
    from runyard.sandbox import docker_ask, docker_now

    path = docker_now.default_socket("podman" if backend == "podman" else "docker")
    found = docker_ask.ask_now(path, "/images/json", list[dict[str, object]])
    tags = sorted(tag for image in found for tag in _tags(image) if not tag.startswith("<none>"))
    if not tags:
        raise MachineError(
            f"{backend} has no image to attack in", code="doctor.no_image", remedy="name one with --image"
        )
    ours = [tag for tag in tags if tag.startswith("runyard/")]
    return (ours or tags)[0]


def _tags(image: dict[str, object]) -> list[str]:
    tags = image.get("RepoTags")
    return [str(tag) for tag in tags] if isinstance(tags, list) else []
