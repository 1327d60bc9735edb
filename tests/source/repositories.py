"""Small git repositories for tests, with a fixed identity and no configuration of the machine's."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

ENVIRONMENT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.invalid",
    "GIT_COMMITTER_NAME": "C",
    "GIT_COMMITTER_EMAIL": "c@example.invalid",
    "GIT_AUTHOR_DATE": "2030-01-02T03:04:05+00:00",
    "GIT_COMMITTER_DATE": "2030-01-02T03:04:05+00:00",
}


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout.strip()


def make_repository(folder: Path, files: dict[str, str] | None = None) -> Path:
    """A repository on branch main with one commit of these files."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main")
    commit(folder, files or {"README": "hello\n"}, "The first commit\n\nWith a body.")
    return folder


def commit(folder: Path, files: dict[str, str], message: str) -> str:
    """Write, add, commit; returns the commit."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def everything_in(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its bytes, to see that nothing was written."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
