"""`runyard project`: repositories that a server builds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from runyard.cli.client import Client, connection, show, table, talk

_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group(epilog="Example: runyard project add acme/app --git https://git.example.org/acme/app.git")
def command() -> None:
    """Repositories that a server builds; only administrators add and remove them."""


@command.command("add", epilog="Example: runyard project add acme/app --git /srv/git/app.git")
@click.argument("project")
@click.option(
    "--git",
    "git",
    metavar="ADDRESS",
    required=True,
    help="http(s), ssh, user@host:path, or a path of the server's machine.",
)
@click.option("--default-branch", metavar="NAME", help="Default: what the repository's HEAD names.")
@click.option("--max-concurrent", type=click.IntRange(1), help="Jobs of it at a time.")
@click.option(
    "--weight", type=click.FloatRange(0, min_open=True), default=1.0, help="Its share against other projects (1)."
)
@_JSON
@connection
def add(project: str, git: str, as_json: bool, url: str | None, token_file: str | None, **more: Any) -> int:
    """Add the repository PROJECT (OWNER/NAME), and fetch it."""
    address = str(Path(git).absolute()) if Path(git).exists() else git
    body = {"project": project, "git": address, **{name: value for name, value in more.items() if value is not None}}

    async def work(client: Client) -> Any:
        return await client.call("POST", "projects", body, timeout_s=600)

    made = talk(url, token_file, work)
    show(
        made, as_json=as_json, text=lambda row: f"{row['project']} is built from {row['git']} ({row['default_branch']})"
    )
    return 0


@command.command("list", epilog="Example: runyard project list --json")
@_JSON
@connection
def list_(as_json: bool, url: str | None, token_file: str | None) -> int:
    """All projects."""
    rows = talk(url, token_file, lambda client: client.call("GET", "projects"))
    show(
        rows,
        as_json=as_json,
        text=lambda found: table(
            [(row["project"], row["default_branch"], row["git"]) for row in found],
            ("PROJECT", "BRANCH", "GIT"),
            empty="no projects yet: runyard project add OWNER/NAME --git ADDRESS",
        ),
    )
    return 0


@command.command("show", epilog="Example: runyard project show acme/app")
@click.argument("project")
@_JSON
@connection
def show_(project: str, as_json: bool, url: str | None, token_file: str | None) -> int:
    """One project."""
    row = talk(url, token_file, lambda client: client.call("GET", f"projects/{project}"))
    show(row, as_json=as_json, text=lambda found: "\n".join(f"{key}: {value}" for key, value in found.items()))
    return 0


@command.command("remove", epilog="Example: runyard project remove acme/app")
@click.argument("project")
@connection
def remove(project: str, url: str | None, token_file: str | None) -> int:
    """Build PROJECT no more; its runs and logs stay."""
    talk(url, token_file, lambda client: client.call("DELETE", f"projects/{project}"))
    return 0
