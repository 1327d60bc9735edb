"""`runyard trigger`: starts a run by hand."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import click

from runyard.cli.client import Client, connection, show, talk

POLL_S = 1.0


@click.command(epilog="Example: runyard trigger acme/app --ref main --wait")
@click.argument("project")
@click.option("--ref", metavar="R", help="A branch, tag or commit (default: the project's branch).")
@click.option("--event", metavar="E", default="workflow_dispatch", help="The event (default workflow_dispatch).")
@click.option("--event-file", metavar="F", type=click.Path(dir_okay=False), help="Its payload, JSON.")
@click.option("--workflow", metavar="FILE", help="Only this workflow.")
@click.option("--input", "inputs", metavar="K=V", multiple=True, help="An input of a workflow_dispatch.")
@click.option("--key", metavar="WORD", help="The same key starts the same runs once, however often it is sent.")
@click.option("--wait", is_flag=True, help="Wait for the end; 1 when a run failed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@connection
def command(project: str, as_json: bool, wait: bool, url: str | None, token_file: str | None, **given: Any) -> int:
    """Start the workflows of PROJECT (OWNER/NAME) that an event starts.

    Ends with 2 where the event starts nothing or a workflow is wrong.
    """
    from runyard.job.errors import InputError

    body = _body(given)

    async def work(client: Client) -> tuple[Any, list[Any]]:
        started = await client.call("POST", f"projects/{project}/trigger", body, timeout_s=600)
        ended = [await _end(client, row["run"]) for row in started["runs"]] if wait else []
        return started, ended

    started, ended = talk(url, token_file, work)
    if ended:
        started = {**started, "runs": ended}
    show(started, as_json=as_json, text=_text)
    if not started["runs"]:
        raise InputError(f"event {body['event']!r} starts no workflow of {project}", code="trigger.nothing")
    return 1 if any(row.get("conclusion") in ("failure", "cancelled") for row in ended) else 0


def _body(given: dict[str, Any]) -> dict[str, Any]:
    from runyard.job.errors import InputError

    inputs: dict[str, str] = {}
    for each in given["inputs"]:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise InputError(f"--input takes K=V, not {each!r}", key="--input", code="input.pair")
        inputs[name] = value
    body: dict[str, Any] = {"event": given["event"], "ref": given["ref"] or "", "inputs": inputs}
    if given["workflow"]:
        body["workflow"] = given["workflow"]
    if given["key"]:
        body["key"] = given["key"]
    if given["event_file"]:
        try:
            payload = json.loads(Path(given["event_file"]).read_bytes())
        except (OSError, ValueError) as error:
            raise InputError(f"it can't be read: {error}", path=given["event_file"], code="input.payload") from error
        if not isinstance(payload, dict):
            raise InputError("a payload is a JSON object", path=given["event_file"], code="input.payload")
        body["payload"] = payload
    return body


async def _end(client: Client, number: int) -> Any:
    while True:
        row = await client.call("GET", f"runs/{number}")
        if row["phase"] == "done":
            return row
        await asyncio.sleep(POLL_S)


def _text(started: Any) -> str:
    lines = [
        f"run {row['run']}: {row['name']} ({row['workflow']}) at {row['sha'][:12]}"
        + (f": {row['conclusion']}" if row.get("conclusion") else "")
        for row in started["runs"]
    ]
    for path, reason in started.get("not_triggered", {}).items():
        print(f"{path}: not started: {reason}", file=sys.stderr)
    return "\n".join(lines) if lines else "nothing was started"
