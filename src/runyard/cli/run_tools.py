"""The tool cache that a command line shows to its jobs."""

from __future__ import annotations

import os
from typing import Final

from runyard.job import InputError

VARIABLE: Final = "RUNYARD_TOOL_CACHE"
_OF_THIS_MACHINE: Final = "/opt/hostedtoolcache"


def tool_cache(given: str | None) -> str:
    """The folder of `--tool-cache`, of RUNYARD_TOOL_CACHE, or this machine's own; "" for none, also when it is empty.

    Raises InputError for a flag or variable that names no folder.
    """
    for value, key in ((given, "--tool-cache"), (os.environ.get(VARIABLE), VARIABLE)):
        if value is None:
            continue
        if not value:
            return ""
        folder = os.path.realpath(value)
        if not os.path.isdir(folder):  # noqa: PTH112
            raise InputError(f"{key}: there is no folder {value}", key=key, code="input.tool_cache")
        return folder
    return _OF_THIS_MACHINE if os.path.isdir(_OF_THIS_MACHINE) else ""  # noqa: PTH112


def tools_for(tools: str, backend: str) -> tuple[str, str]:
    """The tool cache that a job on this backend gets, and a line for its log where it gets none."""
    if not tools or backend == "bubblewrap" or os.geteuid() == 0:
        return tools, ""
    return "", f"The tool cache {tools} is left out: a layer over it needs root with an engine, or --sandbox bubblewrap"
