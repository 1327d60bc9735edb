"""The tool cache of this machine: `NAME/VERSION/ARCH` with `ARCH.complete` beside it, as GitHub's actions lay it out.

Read on the host, before anything is shown to a job. A version whose mark is missing was never finished and isn't there.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.action.semver import Version, highest, parse_range, parse_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PYTHON: Final = "Python"
NODE: Final = "node"
INPUT_FILE_LIMIT: Final = 1 << 20
"""Bytes of a version file that are looked at."""

_ARCHITECTURES: Final = {"amd64": "x64", "386": "x86", "arm64": "arm64", "arm": "arm"}
_MANIFEST_LIMIT: Final = 32 << 20
_YES: Final = ("true", "True", "TRUE")


class FoundTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that is there; `path` is relative to the tool cache."""

    name: str
    version: str
    arch: str

    @property
    def path(self) -> str:
        """Where it lies, from the root of the tool cache."""
        return f"{self.name}/{self.version}/{self.arch}"


class Original(Exception):  # noqa: N818 - no error: the original action runs instead
    """The built-in adapter leaves this step to the original; the text says why."""


def architecture(platform: str) -> str:
    """The name that tools have for a platform `os/arch`."""
    arch = platform.split("/")[1] if "/" in platform else platform
    return _ARCHITECTURES.get(arch, arch)


def find_tool(store: str, name: str, wanted: str, arch: str) -> FoundTool | None:
    """The highest version in the range `wanted` that is complete for `arch`; None where there is none. Blocking."""
    exact = parse_version(wanted)
    if exact is not None:
        return _complete(store, name, str(exact), arch)
    range_ = parse_range(wanted)
    if range_ is None:
        return None
    there = {parsed: text for text, parsed in _versions(store, name, arch)}
    best = highest(there, range_)
    return None if best is None else FoundTool(name=name, version=there[best], arch=arch)


def _versions(store: str, name: str, arch: str) -> Iterator[tuple[str, Version]]:
    try:
        names = os.listdir(f"{store}/{name}")  # noqa: PTH208
    except OSError:
        return
    for each in names:
        parsed = parse_version(each)
        if parsed is not None and _complete(store, name, each, arch) is not None:
            yield each, parsed


def _complete(store: str, name: str, version: str, arch: str) -> FoundTool | None:
    folder = f"{store}/{name}/{version}/{arch}"
    there = os.path.isdir(folder) and os.path.exists(f"{folder}.complete")  # noqa: PTH110, PTH112
    return FoundTool(name=name, version=version, arch=arch) if there else None


def has_tool(store: str, name: str) -> bool:
    """Whether any version of a tool is there at all."""
    return bool(store) and os.path.isdir(f"{store}/{name}")  # noqa: PTH112


def manifest_of(store: str, name: str) -> list[dict[str, object]] | None:
    """The list of releases that may lie beside a tool as `versions-manifest.json`, None where there is none."""
    try:
        with open(f"{store}/{name}/versions-manifest.json", "rb") as file:
            read = json.loads(file.read(_MANIFEST_LIMIT))
    except (OSError, ValueError):
        return None
    return [each for each in read if isinstance(each, dict)] if isinstance(read, list) else None


def only_known(given: Mapping[str, str], known: frozenset[str]) -> None:
    """Raises Original for an input with a value that this build doesn't know: a newer version of the action has it."""
    unknown = [name for name, value in given.items() if value and name.lower() not in known]
    if unknown:
        raise Original(f"it has the input {unknown[0]!r}")


def without(given: Mapping[str, str], names: tuple[str, ...], *, meaning_no: tuple[str, ...] = ("", "false")) -> None:
    """Raises Original where one of these inputs asks for something."""
    for name in names:
        if given.get(name, "").strip().lower() not in meaning_no:
            raise Original(f"it asks for {name}")


def is_true(text: str, name: str, *, default: bool = False) -> bool:
    """A yes or no as the toolkit reads one. Raises Original for what is neither: the original says what is wrong."""
    if not text:
        return default
    if text in _YES:
        return True
    if text in {"false", "False", "FALSE"}:
        return False
    raise Original(f"{name} is neither true nor false")
