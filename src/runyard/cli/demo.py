"""`runyard demo`: a server, a worker and an example repository on this machine, on embedded defaults."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runyard.job.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLE = Path(__file__).parent / "demo_repository"
PROJECT = "example/demo"

GIT_DEADLINE_S = 20
START_S = 60.0
STOP_S = 20.0


@click.command(epilog="Example: runyard demo --once")
@click.option("--once", is_flag=True, help="End with the run, and with its exit code; also where there is no terminal.")
@click.option("--local", is_flag=True, help="Without server and worker: `runyard run` on the example repository.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["tree", "plain", "jsonl", "github"]),
    help="With --local: how to show the run.",
)
@click.option("--sandbox", help="The backend; as for runyard run.")
def command(once: bool, local: bool, form: str | None, sandbox: str | None) -> int:
    """Run an example repository's workflow, each job in a sandbox of its own, and show where to look at it.

    It makes a git repository in a temporary folder (a planned matrix, needs, outputs, a local composite action, a step
    and a job that fail and may), starts `runyard serve` on a free port and one `runyard worker`, triggers the workflow
    and streams its logs. Nothing is left behind.
    """
    from runyard.job.errors import InputError

    if form and not local:
        raise InputError("--format goes with --local", key="--format", code="input.format")
    with tempfile.TemporaryDirectory(prefix="runyard-demo-") as folder:
        repository = Path(folder) / "example"
        _make_repository(repository)
        click.echo(f"the example repository: {EXAMPLE}, as a git repository for this run only", err=True)
        if local:
            return _run_here(repository, form, sandbox)
        return _serve(Path(folder), repository, once=once or not sys.stdin or not sys.stdin.isatty(), sandbox=sandbox)


def _run_here(repository: Path, form: str | None, sandbox: str | None) -> int:
    from runyard.cli.run import command as run_command

    before = Path.cwd()
    os.chdir(repository)
    try:
        arguments = [*(["--format", form] if form else []), *(["--sandbox", sandbox] if sandbox else [])]
        with run_command.make_context("runyard run", arguments) as context:
            code = run_command.invoke(context)
    finally:
        os.chdir(before)
    return code if isinstance(code, int) else 0


# --- with a server


def _serve(folder: Path, repository: Path, *, once: bool, sandbox: str | None) -> int:
    from runyard.cli.client import talk

    data = folder / "server"
    with _running(["serve", "--data", str(data), "--listen", "127.0.0.1:0"], "runyard serve: http") as server:
        url = server.said.partition(": ")[2].split(" ")[0]
        token_file = str(data / "admin.token")

        async def prepare(client: Any) -> str:
            await client.call("POST", "projects", {"project": PROJECT, "git": str(repository)})
            made = await client.call("POST", "tokens", {"kind": "worker", "name": "demo"})
            return str(made["token"])

        worker_token = folder / "worker.token"
        worker_token.touch(0o600)
        worker_token.write_text(talk(url, token_file, prepare) + "\n")
        worker = ["worker", "--url", url, "--token-file", str(worker_token), "--name", "demo", "--slots", "2"]
        if sandbox:
            worker += ["--sandbox", sandbox]
        with _running(worker, "runyard worker demo"):
            click.echo(f"the server: {url} (its administrator's token is in {token_file})", err=True)
            code = talk(url, token_file, _trigger_and_show)
            if not once:
                click.echo(f"look at it on {url}; Ctrl+C ends the demo", err=True)
                with contextlib.suppress(KeyboardInterrupt):
                    while server.process.poll() is None:
                        time.sleep(0.2)
    return code


async def _trigger_and_show(client: Any) -> int:
    from runyard.cli.runs import follow_logs, run_text

    started = await client.call("POST", f"projects/{PROJECT}/trigger", {"event": "push"})
    number = started["runs"][0]["run"]
    await follow_logs(client, str(number))
    row = await client.call("GET", f"runs/{number}")
    while row["phase"] != "done":
        await asyncio.sleep(0.2)
        row = await client.call("GET", f"runs/{number}")
    click.echo(run_text(row))
    return 0 if row["conclusion"] in ("success", "skipped") else 1


class _Running:
    """One of our own commands as a process; `said` is the line that told that it is ready."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said = ""
        self.lines: list[str] = []
        self.ready = threading.Event()


@contextlib.contextmanager
def _running(arguments: list[str], ready: str) -> Iterator[_Running]:
    """Start a command, wait for its line that begins with `ready`, and end it in the end. Raises MachineError."""
    process = subprocess.Popen(
        [sys.executable, "-m", "runyard.cli.main", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    running = _Running(process)
    reader = threading.Thread(target=_read, args=(running, ready), daemon=True)
    reader.start()
    try:
        if not running.ready.wait(START_S) or not running.said:
            said = "\n".join(running.lines[-5:])
            raise MachineError(f"`runyard {arguments[0]}` did not start: {said}", code="demo.start")
        yield running
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(STOP_S)


def _read(running: _Running, ready: str) -> None:
    assert running.process.stdout is not None
    for line in running.process.stdout:
        running.lines.append(line.rstrip())
        del running.lines[:-100]
        if line.startswith(ready) and not running.said:
            running.said = line.rstrip()
            running.ready.set()
    running.ready.set()


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
