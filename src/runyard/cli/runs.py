"""`runyard runs`: what ran and runs on a server."""

from __future__ import annotations

import sys
from typing import Any

import click

from runyard.cli.client import Client, connection, show, table, talk

_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
_RUN = click.argument("run")


@click.group(epilog="Example: runyard runs logs 17 -f")
def command() -> None:
    """What ran and runs on a server. RUN is a number, or NUMBER.ATTEMPT."""


@command.command("list", epilog="Example: runyard runs list --project acme/app")
@click.option("--project", metavar="OWNER/NAME", help="Only this project's.")
@click.option("--limit", type=click.IntRange(1, 200), default=30, help="How many (30).")
@click.option("--before", type=click.IntRange(1), help="Only runs with a lower number.")
@_JSON
@connection
def list_(as_json: bool, url: str | None, token_file: str | None, **query: Any) -> int:
    """Runs, newest first."""
    rows = talk(url, token_file, lambda client: client.call("GET", "runs", **query))
    show(
        rows,
        as_json=as_json,
        text=lambda found: table(
            [
                (
                    f"{row['run']}" + (f".{row['run_attempt']}" if row["run_attempt"] > 1 else ""),
                    row.get("conclusion") or row["phase"],
                    row["project"],
                    row["name"],
                    row["event"],
                    row["ref"].removeprefix("refs/heads/"),
                    row["created"][:19].replace("T", " "),
                )
                for row in found
            ],
            ("RUN", "STATE", "PROJECT", "NAME", "EVENT", "REF", "CREATED (UTC)"),
            empty="no runs yet: runyard trigger OWNER/NAME",
        ),
    )
    return 0


@command.command("show", epilog="Example: runyard runs show 17 --json")
@_RUN
@_JSON
@connection
def show_(run: str, as_json: bool, url: str | None, token_file: str | None) -> int:
    """One run with its jobs."""
    row = talk(url, token_file, lambda client: client.call("GET", f"runs/{run}"))
    show(row, as_json=as_json, text=run_text)
    return 0


def run_text(row: Any) -> str:
    """A run and its jobs for people."""
    head = f"run {row['run']}, attempt {row['run_attempt']}: {row['name']} of {row['project']} at {row['sha'][:12]}"
    state = row.get("conclusion") or row["phase"]
    lines = [head, f"{row['event']} on {row['ref']}: {state}" + (f", {row['reason']}" if row.get("reason") else "")]
    jobs = [
        (
            job["name"],
            job.get("conclusion") or job["phase"],
            job.get("worker") or "",
            job.get("attempt", 0) or "",
            job.get("reason") or "",
        )
        for job in row["jobs"]
    ]
    return "\n".join([*lines, table(jobs, ("JOB", "STATE", "WORKER", "ATTEMPT", "REASON"), empty="no jobs")])


@command.command("logs", epilog="Example: runyard runs logs 17 --job build -f")
@_RUN
@click.option("--job", "wanted", metavar="KEY", help="Only the job with this key or name.")
@click.option("--attempt", type=click.IntRange(1), help="Of this hand-out; lost ones stay readable.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run is over.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each piece.")
@connection
def logs(run: str, wanted: str | None, as_json: bool, url: str | None, token_file: str | None, **more: Any) -> int:
    """The logs of a run's jobs."""

    async def work(client: Client) -> None:
        await _logs(client, run, wanted, as_json=as_json, **more)

    talk(url, token_file, work)
    return 0


async def follow_logs(client: Client, run: str) -> None:
    """Every log of a run until it is over, as `runyard runs logs -f` shows it."""
    await _logs(client, run, None, as_json=False, attempt=None, follow=True)


async def _logs(
    client: Client, run: str, wanted: str | None, *, as_json: bool, attempt: int | None, follow: bool
) -> None:
    import asyncio

    from runyard.job.errors import InputError

    shown: set[str] = set()
    while True:
        row = await client.call("GET", f"runs/{run}")
        jobs = [job for job in row["jobs"] if wanted is None or wanted in (job["key"], job["name"], job["job"])]
        if wanted is not None and not jobs and (row["phase"] == "done" or not follow):
            names = ", ".join(job["key"] for job in row["jobs"])
            raise InputError(
                f"run {run} has no job {wanted!r}; it has {names or 'none yet'}", key="--job", code="runs.job"
            )
        for job in jobs:
            if job["id"] not in shown and (job.get("attempt", 0) or job["phase"] == "done"):
                shown.add(job["id"])
                if job.get("attempt", 0):
                    await _log(client, job, as_json=as_json, attempt=attempt, follow=follow, alone=len(jobs) == 1)
        if not follow or (row["phase"] == "done" and all(job["id"] in shown for job in jobs)):
            return
        await asyncio.sleep(1.0)


async def _log(client: Client, job: Any, *, as_json: bool, attempt: int | None, follow: bool, alone: bool) -> None:
    import json

    head = "" if alone else f"{job['name']} | "
    follows = "1" if follow else None
    async with client.answer("GET", f"jobs/{job['id']}/log", attempt=attempt, follow=follows) as answer:
        begins = True
        while line := await answer.content.readline():
            if not line.strip():
                continue
            if as_json:
                click.echo(json.dumps({"job": job["id"], "key": job["key"], **json.loads(line)}, ensure_ascii=False))
                continue
            text = json.loads(line)["text"]
            for piece in text.splitlines(keepends=True):
                click.echo((head if begins else "") + piece, nl=False)
                begins = piece.endswith("\n")
            sys.stdout.flush()
        if not begins:
            click.echo("")


@command.command("reasons", epilog="Example: runyard runs reasons 17")
@click.argument("run", required=False)
@_JSON
@connection
def reasons(run: str | None, as_json: bool, url: str | None, token_file: str | None) -> int:
    """Why each waiting job of RUN, or of the whole queue, waits."""
    path = f"runs/{run}/reasons" if run else "reasons"
    rows = talk(url, token_file, lambda client: client.call("GET", path))
    show(
        rows,
        as_json=as_json,
        text=lambda found: (
            "\n".join(
                f"{row['run']} {row['key']}: {row['reason']}" + (f" ({row['remedy']})" if row.get("remedy") else "")
                for row in found
            )
            or "no job waits"
        ),
    )
    return 0


@command.command("cancel", epilog="Example: runyard runs cancel 17")
@_RUN
@click.option("--force", is_flag=True, help="End at once, without the jobs' clean-up steps.")
@click.option("--reason", metavar="TEXT", default="", help="What people read.")
@connection
def cancel(run: str, force: bool, reason: str, url: str | None, token_file: str | None) -> int:
    """Cancel a run: conditions are looked at again, clean-up steps run in their own time."""
    body = {"force": force, "reason": reason}
    talk(url, token_file, lambda client: client.call("POST", f"runs/{run}/cancel", body))
    return 0


@command.command("approve", epilog="Example: runyard runs approve 17")
@_RUN
@connection
def approve(run: str, url: str | None, token_file: str | None) -> int:
    """Let an untrusted run go."""
    talk(url, token_file, lambda client: client.call("POST", f"runs/{run}/approve"))
    return 0


@command.command("rerun", epilog="Example: runyard runs rerun 17 --failed")
@_RUN
@click.option("--failed", is_flag=True, help="Only what failed or was cancelled, and what needs it.")
@_JSON
@connection
def rerun(run: str, failed: bool, as_json: bool, url: str | None, token_file: str | None) -> int:
    """Run it again with the same plan, commit and payload; raises the run's attempt."""
    row = talk(url, token_file, lambda client: client.call("POST", f"runs/{run}/rerun", {"failed": failed}))
    show(row, as_json=as_json, text=lambda found: f"run {found['run']}, attempt {found['run_attempt']}")
    return 0
