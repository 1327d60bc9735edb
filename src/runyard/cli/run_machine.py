"""What this machine offers a job: labels, images behind them, a backend, a network level; and why not.

Pure where it decides. The rule it keeps: never something weaker than was asked for, and never in silence.
"""

from __future__ import annotations

import platform
import sys
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.job import ContainerActionStep, InputError, JobSpec, MachineError, NetworkLevel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from runyard.sandbox.contract import Capabilities

STAND_INS: Final = ("ubuntu-latest", "ubuntu-24.04", "ubuntu-22.04")
"""Hosted labels that mean the default Linux image (deviation D20)."""

DEFAULT_IMAGE: Final = "host"
BACKENDS: Final = ("bubblewrap", "docker", "podman")
NOT_YET: Final = ("microvm", "kubernetes")
_MACHINES: Final = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64", "armv7l": "arm"}
_LABELS: Final = {"amd64": "X64", "arm64": "ARM64", "arm": "ARM"}


class Place(msgspec.Struct, frozen=True):
    """Where a job runs: an image, and the hosted label it stands in for (None: no stand-in)."""

    image: str
    stand_in: str | None = None


class Unserved(msgspec.Struct, frozen=True):
    """Why this machine can't serve a job, in words; `values` is what decided."""

    reason: str
    values: dict[str, object] = {}


class Machine:
    """The labels of this machine and the images behind them."""

    def __init__(self, images: Mapping[str, str], labels: Iterable[str]) -> None:
        self.platform = this_platform()
        system, _, machine = self.platform.partition("/")
        own = ["self-hosted", {"linux": "Linux", "darwin": "macOS"}.get(system, system)]
        own.append(_LABELS.get(machine, machine))
        self.images = {label.lower(): image for label, image in images.items()}
        self.labels = {label.lower() for label in (*own, *labels)} | set(self.images)
        if system == "linux":
            self.labels |= set(STAND_INS)

    def place(self, spec: JobSpec) -> Place | Unserved:
        """Where a job with these labels runs here."""
        missing = [label for label in spec.labels if label.lower() not in self.labels]
        mapped = [label for label in spec.labels if label.lower() in self.images]
        if spec.platform != self.platform and not mapped:
            wants = "macos" if spec.platform.startswith("darwin/") else spec.platform
            labels = ", ".join(spec.labels)
            return Unserved(
                f"runs-on [{labels}] needs {wants}, not available here",
                {"runs-on": list(spec.labels), "platform": self.platform},
            )
        if missing:
            return Unserved(
                f"this machine has no label {', '.join(repr(label) for label in missing)} "
                f"(--label {missing[0]}, or --image {missing[0]}=host)",
                {"runs-on": list(spec.labels), "labels": sorted(self.labels)},
            )
        if spec.image is not None:
            return Place(spec.image)
        if mapped:
            return Place(self.images[mapped[0].lower()])
        hosted = [label for label in spec.labels if label.lower() in STAND_INS]
        return Place(DEFAULT_IMAGE, hosted[0] if hosted else None)


def this_platform() -> str:
    """`os/arch` of this machine."""
    system = {"linux": "linux", "darwin": "darwin", "win32": "windows"}.get(sys.platform, sys.platform)
    return f"{system}/{_MACHINES.get(platform.machine().lower(), platform.machine().lower())}"


def parse_images(given: Iterable[str]) -> dict[str, str]:
    """`LABEL=IMAGE` arguments. Raises InputError for one that is none."""
    images: dict[str, str] = {}
    for each in given:
        label, equals, image = each.partition("=")
        if not equals or not label or not image:
            raise InputError(f"--image takes LABEL=IMAGE, not {each!r}", key="--image", code="input.pair")
        kind, colon, path = image.partition(":")
        if kind in ("dir", "tar", "oci") and colon and not path:
            raise InputError(f"--image {label}: {kind}: needs a path", key="--image", code="input.pair")
        images[label] = image
    return images


def check_sandbox(name: str) -> str:
    """The name of a backend, or `auto`. Raises MachineError for one that isn't there yet, InputError for another."""
    if name in ("auto", *BACKENDS):
        return name
    if name in NOT_YET:
        raise MachineError(
            f"the sandbox {name!r} is not part of this build yet",
            code="sandbox.not_yet",
            remedy=f"--sandbox takes {', '.join(('auto', *BACKENDS))}",
        )
    import difflib

    near = difflib.get_close_matches(name, ("auto", *BACKENDS), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are auto, {', '.join(BACKENDS)}"
    raise InputError(f"there is no sandbox {name!r}; {hint}", key="--sandbox", code="sandbox.unknown")


def needs_engine(spec: JobSpec, image: str) -> str | None:
    """What of a job only a container engine can do, in words; None where bubblewrap will do."""
    if spec.container is not None:
        return "its container"
    if spec.services is not None:
        return "its services"
    if any(isinstance(step, ContainerActionStep) for step in spec.steps):
        return "a step with docker://"
    if image != DEFAULT_IMAGE and not image.startswith(("dir:", "tar:", "oci:")):
        return f"the image {image}"
    return None


def choose_network(
    wanted: str | None, capabilities: Capabilities, allowed: tuple[str, ...] | None = None
) -> tuple[NetworkLevel, str | None]:
    """The level in use, and the line that says so where it is not what people expect. `allowed` is the policy's.

    Raises MachineError where the level that was asked for can't be kept: it is never replaced by another.
    """
    if wanted in ("none", "proxy", "public"):
        level: NetworkLevel = "none" if wanted == "none" else "proxy" if wanted == "proxy" else "public"
        promise = f"egress_{level}"
        refused = capabilities.refused.get(promise)
        if refused is not None:
            raise MachineError(
                f"network {level} can't be kept here: {refused.because}",
                code="sandbox.promise",
                remedy=refused.remedy or None,
            )
        return level, None
    if wanted is not None:
        raise InputError(
            f"--network takes none, proxy or public, not {wanted!r}", key="--network", code="input.network"
        )
    if allowed is not None and "public" not in allowed:
        if "proxy" in allowed and "egress_proxy" not in capabilities.refused:
            return "proxy", "network proxy, the widest that the policy allows"
        return "none", "network none, the widest that the policy allows and this machine keeps"
    refused = capabilities.refused.get("egress_public")
    if refused is None:
        return "public", None
    for_public = f"; for public: {refused.remedy}" if refused.remedy else ""
    if "egress_proxy" not in capabilities.refused:
        return "proxy", f"network proxy, since public can't be kept here ({refused.because}){for_public}"
    return "none", f"network none, since neither public nor proxy can be kept here ({refused.because}){for_public}"
