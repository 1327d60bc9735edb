"""`runyard workers`: who is connected to a server, and what they hold."""

from __future__ import annotations

from typing import Any

import click

from runyard.cli.client import connection, show, table, talk

_WORKER = click.argument("worker")


@click.group(invoke_without_command=True, epilog="Example: runyard workers drain build-1")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@connection
@click.pass_context
def command(context: click.Context, as_json: bool, url: str | None, token_file: str | None) -> int:
    """Who is connected, and what they hold. WORKER is a name or an id."""
    return _list(as_json, url, token_file) if context.invoked_subcommand is None else 0


@command.command("list", epilog="Example: runyard workers list --json")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@connection
def list_(as_json: bool, url: str | None, token_file: str | None) -> int:
    """Who is connected, and what they hold."""
    return _list(as_json, url, token_file)


def _list(as_json: bool, url: str | None, token_file: str | None) -> int:
    rows = talk(url, token_file, lambda client: client.call("GET", "workers"))
    show(rows, as_json=as_json, text=_text)
    return 0


def _text(rows: Any) -> str:
    lines: list[tuple[object, ...]] = [
        (
            row["name"],
            row["state"] + (", draining" if row.get("draining") else ""),
            row["platform"],
            f"{row.get('free', 0)}/{row.get('slots', 0)}",
            row.get("version", ""),
            ", ".join(f"{held['run']} {held['key']}" for held in row.get("holds", ())),
        )
        for row in rows
    ]
    return table(
        lines,
        ("WORKER", "STATE", "PLATFORM", "FREE", "VERSION", "HOLDS"),
        empty="no worker was seen yet: runyard worker --url URL --token-file F",
    )


@command.command("drain", epilog="Example: runyard workers drain build-1")
@_WORKER
@connection
def drain(worker: str, url: str | None, token_file: str | None) -> int:
    """Give it no more jobs; what it holds goes on to its end."""
    talk(url, token_file, lambda client: client.call("POST", f"workers/{worker}/drain"))
    return 0


@command.command("resume", epilog="Example: runyard workers resume build-1")
@_WORKER
@connection
def resume(worker: str, url: str | None, token_file: str | None) -> int:
    """Give it jobs again."""
    talk(url, token_file, lambda client: client.call("POST", f"workers/{worker}/resume"))
    return 0


@command.command("remove", epilog="Example: runyard workers remove build-1")
@_WORKER
@connection
def remove(worker: str, url: str | None, token_file: str | None) -> int:
    """Forget a worker that holds nothing."""
    talk(url, token_file, lambda client: client.call("DELETE", f"workers/{worker}"))
    return 0
