"""`runyard token`: API and worker tokens of a server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from runyard.cli.client import connection, show, table, talk


@click.group(epilog="Example: runyard token create --worker build-1 --to worker.token")
def command() -> None:
    """API and worker tokens; only administrators see them, and nobody sees their text again."""


@command.command("create", epilog="Example: runyard token create --worker build-1 --to worker.token")
@click.option("--worker", metavar="NAME", help="A token for a worker.")
@click.option("--api", metavar="NAME", help="A token for the API.")
@click.option(
    "--scope",
    "scopes",
    metavar="WORD",
    multiple=True,
    help="read, write, admin; of a worker pool:NAME, trust:TIER, publish:OWNER/NAME.",
)
@click.option("--expires", metavar="T", help="A duration, as in 90d.")
@click.option("--to", metavar="F", help="Write the token into this new file, mode 0600, instead of printing it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@connection
def create(as_json: bool, url: str | None, token_file: str | None, to: str | None, **given: Any) -> int:
    """Make a token for a worker or for the API."""
    from runyard.config import parse_duration
    from runyard.job.errors import InputError

    if bool(given["worker"]) == bool(given["api"]):
        raise InputError("give --worker NAME or --api NAME", key="--worker", code="input.token")
    body: dict[str, Any] = {
        "kind": "worker" if given["worker"] else "api",
        "name": given["worker"] or given["api"],
        "scopes": given["scopes"],
    }
    if given["expires"]:
        try:
            body["expires_s"] = float(parse_duration(given["expires"]))
        except ValueError as error:
            raise InputError(str(error), key="--expires", code="input.duration") from error
    made = talk(url, token_file, lambda client: client.call("POST", "tokens", body))
    if to is not None:
        with os.fdopen(os.open(Path(to), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(made.pop("token") + "\n")
    show(made, as_json=as_json, text=lambda row: row.get("token") or f"token {row['id']} is in {to}")
    return 0


@command.command("list", epilog="Example: runyard token list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@connection
def list_(as_json: bool, url: str | None, token_file: str | None) -> int:
    """All tokens, with their last use."""
    rows = talk(url, token_file, lambda client: client.call("GET", "tokens"))
    show(
        rows,
        as_json=as_json,
        text=lambda found: table(
            [
                (
                    row["id"],
                    row["kind"],
                    row["name"],
                    ", ".join(row.get("scopes", ())),
                    "revoked" if row.get("revoked") else (row.get("used") or "never")[:19].replace("T", " "),
                )
                for row in found
            ],
            ("ID", "KIND", "NAME", "SCOPES", "LAST USE (UTC)"),
            empty="no tokens",
        ),
    )
    return 0


@command.command("revoke", epilog="Example: runyard token revoke 5f2c9a7e1b3d4c60")
@click.argument("token")
@connection
def revoke(token: str, url: str | None, token_file: str | None) -> int:
    """TOKEN, an id, opens nothing any more."""
    talk(url, token_file, lambda client: client.call("DELETE", f"tokens/{token}"))
    return 0
