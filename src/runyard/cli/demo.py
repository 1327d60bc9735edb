"""`runyard demo`: the main job on this machine's embedded defaults, shown on an example repository."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import click

from runyard.job.errors import MachineError

EXAMPLE = Path(__file__).parent / "demo_repository"

GIT_DEADLINE_S = 20


@click.command(epilog="Example: runyard demo --format plain")
@click.option("--once", is_flag=True, help="End with the run's exit code; here that is always so.")
@click.option("--format", "form", type=click.Choice(["tree", "plain", "jsonl", "github"]), help="How to show the run.")
@click.option("--sandbox", help="The backend; as for runyard run.")
def command(once: bool, form: str | None, sandbox: str | None) -> int:
    """Run an example repository's workflow, each job in a sandbox of its own.

    It makes a git repository in a temporary folder (a planned matrix, needs, outputs, a local composite action, a step
    and a job that fail and may) and runs `runyard run` there. Nothing is left behind.
    """
    del once
    from runyard.cli.run import command as run_command

    with tempfile.TemporaryDirectory(prefix="runyard-demo-") as folder:
        repository = Path(folder) / "example"
        _make_repository(repository)
        click.echo(f"the example repository: {EXAMPLE}, as a git repository for this run only", err=True)
        before = Path.cwd()
        os.chdir(repository)
        try:
            arguments = [*(["--format", form] if form else []), *(["--sandbox", sandbox] if sandbox else [])]
            with run_command.make_context("runyard run", arguments) as context:
                code = run_command.invoke(context)
        finally:
            os.chdir(before)
    return code if isinstance(code, int) else 0


def _make_repository(at: Path) -> None:
    """A copy of the example with one commit. Raises MachineError where git is missing or fails."""
    import shutil

    shutil.copytree(EXAMPLE, at)
    identity = ["-c", "user.name=demo", "-c", "user.email=demo@example.invalid", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "-q", "-b", "main"], ["add", "-A"], [*identity, "commit", "-q", "-m", "The example"]):
        try:
            done = subprocess.run(
                ["git", *arguments],
                cwd=at,
                capture_output=True,
                text=True,
                timeout=GIT_DEADLINE_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except FileNotFoundError as error:
            raise MachineError(
                "git is not on this machine", code="git.missing", remedy="apt-get install git"
            ) from error
        if done.returncode:
            raise MachineError(f"git {arguments[0]} failed: {done.stderr.strip()}", code="git.failed")
