"""The real command line on small repositories, its events as data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from source.repositories import ENVIRONMENT, git

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEADLINE_S = 60
RUNYARD = [sys.executable, "-m", "runyard.cli.main"]


@dataclass
class Told:
    """What a command said: exit code, standard error, and events where it printed some."""

    code: int
    out: str
    err: str
    events: list[dict[str, Any]] = field(default_factory=list)

    def of_type(self, type_: str, /, **fields: Any) -> list[dict[str, Any]]:
        return [
            event
            for event in self.events
            if event["type"] == type_ and all(event.get(key) == value for key, value in fields.items())
        ]

    def log(self, job: str, *kinds: str) -> list[str]:
        """Lines of a job's log, by id or displayed name, of the kinds given (default: without commands)."""
        wanted = kinds or ("output", "runner")
        return [
            event["text"]
            for event in self.of_type("log")
            if job in (event["job"], event["job_name"]) and event["kind"] in wanted
        ]

    def conclusion(self, job: str) -> str | None:
        return next((event["conclusion"] for event in self.of_type("job_finished") if event["key"] == job), None)

    @property
    def run(self) -> str | None:
        return next((event["conclusion"] for event in self.of_type("run_finished")), None)


def environment(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment without the machine's git configuration, with state and cache of the test's own."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GIT_", "GITHUB_", "RUNYARD_", "PYTHON"))
    }
    return {
        **kept,
        **ENVIRONMENT,
        "RUNYARD_STATE_DIR": str(home / "state"),
        "XDG_CACHE_HOME": str(home / "cache"),
        **(more or {}),
    }


def runyard(
    folder: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    deadline_s: float = DEADLINE_S,
    home: Path | None = None,
) -> Told:
    """`runyard` in a folder, to its end."""
    done = subprocess.run(
        [*RUNYARD, *arguments],
        cwd=folder,
        env=environment(home or folder.parent, env),
        capture_output=True,
        timeout=deadline_s,
        check=False,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
    )
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    assert "Traceback" not in err, err
    return Told(done.returncode, out, err)


def run_events(folder: Path, *arguments: str, **more: Any) -> Told:
    """`runyard run --format jsonl`, its events read."""
    told = runyard(folder, "run", "--format", "jsonl", *arguments, **more)
    told.events = [json.loads(line) for line in told.out.split("\n")[:-1]]
    return told


def repository(folder: Path, files: Mapping[str, str]) -> Path:
    """A committed repository with these files."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    commit_all(folder)
    return folder


def commit_all(folder: Path) -> None:
    """Make a repository of a folder, everything committed."""
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A", "-f")
    git(folder, "commit", "-q", "--allow-empty", "-m", "All")
