"""`runyard artifacts`: what the jobs of a server's runs left."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from runyard.cli.client import Client, connection, show, table, talk


@click.group(epilog="Example: runyard artifacts get 17 docs --to docs.tar")
def command() -> None:
    """What the jobs of a run left. RUN is a number, or NUMBER.ATTEMPT."""


@command.command("list", epilog="Example: runyard artifacts list 17")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@connection
def list_(run: str, as_json: bool, url: str | None, token_file: str | None) -> int:
    """Every artifact of RUN."""
    rows = talk(url, token_file, lambda client: client.call("GET", f"runs/{run}/artifacts"))
    show(
        rows,
        as_json=as_json,
        text=lambda found: table(
            [(each["name"], each["size"], each["job"], each["attempt"]) for each in found],
            ("NAME", "BYTES", "JOB", "ATTEMPT"),
            empty="this run left no artifacts",
        ),
    )
    return 0


@command.command("get", epilog="Example: runyard artifacts get 17 docs --to docs.tar")
@click.argument("run")
@click.argument("name")
@click.option("--to", metavar="F", help="The file to write (default: NAME.tar); one that exists is not written over.")
@click.option("--job", metavar="ID", help="Of this job, where several left one of that name.")
@connection
def get(run: str, name: str, url: str | None, token_file: str | None, **given: str | None) -> int:
    """Write the tar of artifact NAME to a file. It is what the job made: look before you unpack it."""
    from runyard.job.errors import InputError

    path = Path(given["to"] or f"{name.replace('/', '_')}.tar")
    if path.exists():
        raise InputError(f"{path} is there already", key="--to", code="artifact.exists", remedy="--to another file")

    async def work(client: Client) -> int:
        return await _get(client, (run, name, given["job"]), path)

    size = talk(url, token_file, work)
    click.echo(f"{path}: {size} bytes")
    return 0


async def _get(client: Client, wanted: tuple[str, str, str | None], path: Path) -> int:
    from urllib.parse import quote

    from runyard.job.errors import InputError

    run, name, job = wanted
    rows: list[Any] = await client.call("GET", f"runs/{run}/artifacts")
    found = [each for each in rows if each["name"] == name and job in (None, each["job"])]
    if not found:
        names = ", ".join(sorted({each["name"] for each in rows})) or "none"
        raise InputError(f"run {run} has no artifact {name!r}; it has {names}", key="NAME", code="artifact.unknown")
    jobs = {each["job"] for each in found}
    if len(jobs) > 1:
        raise InputError(f"{len(jobs)} jobs left {name!r}; give --job", key="--job", code="artifact.ambiguous")
    newest = max(found, key=lambda each: int(each["attempt"]))
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    size = 0
    try:
        with part.open("wb") as out:
            place = f"jobs/{newest['job']}/artifacts/{newest['attempt']}/{quote(name, safe='')}"
            async with client.answer("GET", place) as answer:
                async for chunk in answer.content.iter_chunked(1 << 20):
                    out.write(chunk)
                    size += len(chunk)
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)
    return size
