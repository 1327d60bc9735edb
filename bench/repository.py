"""A throw-away repository with one workflow, and `runyard run` on it, for rows that measure whole runs.

Byte code is compiled as in an installed package, into a folder of its own: the checkout stays as it is, and a source
tree without byte code is not what anybody runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

RUNYARD = str(Path(sys.executable).parent / "runyard")
_GIT = ("git", "-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "init.defaultBranch=main")


class Repository:
    """Files below `folder`/repository, committed; what a run keeps stays below `folder` too."""

    def __init__(self, folder: str, files: Mapping[str, str]) -> None:
        self.root = Path(folder, "repository")
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        for command in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "first")):
            subprocess.run([*_GIT, *command], cwd=self.root, check=True, timeout=20)
        self.environment = compiled(folder) | {
            "RUNYARD_STATE_DIR": str(Path(folder, "state")),
            "XDG_CACHE_HOME": str(Path(folder, "cache")),
        }

    def run(self, *arguments: str, timeout_s: float = 120) -> bytes:
        """Standard output of `runyard run`; raises CalledProcessError where it doesn't end well."""
        command = [RUNYARD, "run", *arguments]
        return subprocess.run(
            command,
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=True,
            timeout=timeout_s,
        ).stdout


def compiled(folder: str) -> dict[str, str]:
    """This environment with byte code kept below `folder`: from the second start on it is there."""
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return plain | {"PYTHONPYCACHEPREFIX": str(Path(folder, "bytecode"))}
