"""`runyard secret`: the vault of a project on a server. Values come over standard input or from a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from runyard.cli.client import connection, show, table, talk

_PROJECT = click.argument("project")
_ENVIRONMENT = click.option("--environment", metavar="NAME", help="Of this deployment environment only.")
_PASSPHRASE = click.option("--passphrase-file", metavar="F", help="The passphrase (- for standard input).")


@click.group(epilog="Example: runyard secret set acme/app DEPLOY_TOKEN < token.txt")
def command() -> None:
    """The vault of PROJECT (OWNER/NAME): secrets that its trusted runs get."""


@command.command("set", epilog="Example: runyard secret set acme/app DEPLOY_TOKEN < token.txt")
@_PROJECT
@click.argument("name")
@click.option("--file", "file", metavar="F", default="-", help="Where the value is (default: standard input).")
@_ENVIRONMENT
@connection
def set_(
    project: str, name: str, environment: str | None, url: str | None, token_file: str | None, **given: str
) -> int:
    """Keep a secret. One line end at the value's end is not part of it."""
    body = {"value": _read(given["file"])}
    path = f"projects/{project}/secrets/{name}"
    talk(url, token_file, lambda client: client.call("PUT", path, body, environment=environment))
    return 0


@command.command("list", epilog="Example: runyard secret list acme/app --json")
@_PROJECT
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@connection
def list_(project: str, as_json: bool, url: str | None, token_file: str | None) -> int:
    """Names, never values; and whether the vault is locked."""
    row = talk(url, token_file, lambda client: client.call("GET", f"projects/{project}/secrets"))
    show(row, as_json=as_json, text=_text)
    return 0


def _text(row: Any) -> str:
    rows = [
        (each["name"], each.get("environment", ""), each["updated"][:19].replace("T", " "))
        for each in row.get("secrets", ())
    ]
    state = "locked" if row["locked"] else f"open until {row['until'][:19]}" if row.get("until") else "open"
    listed = table(rows, ("NAME", "ENVIRONMENT", "UPDATED (UTC)"), empty="no secrets yet: runyard secret set")
    return f"{listed}\nthe vault is {state}"


@command.command("remove", epilog="Example: runyard secret remove acme/app DEPLOY_TOKEN")
@_PROJECT
@click.argument("name")
@_ENVIRONMENT
@connection
def remove(project: str, name: str, environment: str | None, url: str | None, token_file: str | None) -> int:
    """Forget a secret."""
    path = f"projects/{project}/secrets/{name}"
    talk(url, token_file, lambda client: client.call("DELETE", path, environment=environment))
    return 0


@command.command("lock", epilog="Example: runyard secret lock acme/app --passphrase-file passphrase.txt")
@_PROJECT
@_PASSPHRASE
@connection
def lock(project: str, passphrase_file: str | None, url: str | None, token_file: str | None) -> int:
    """Close the vault: jobs that need it wait. The first time a passphrase is set, which alone opens it again."""
    body = {"passphrase": _read(passphrase_file) if passphrase_file else ""}
    talk(url, token_file, lambda client: client.call("POST", f"projects/{project}/vault/lock", body))
    return 0


@command.command("unlock", epilog="Example: runyard secret unlock acme/app --passphrase-file - --for 8h")
@_PROJECT
@click.option("--passphrase-file", metavar="F", default="-", help="The passphrase (default: standard input).")
@click.option("--for", "duration", metavar="T", help="Until then, as in 8h (default: until it is locked).")
@connection
def unlock(project: str, passphrase_file: str, duration: str | None, url: str | None, token_file: str | None) -> int:
    """Open the vault; jobs that waited for it go on."""
    from runyard.config import parse_duration
    from runyard.job.errors import InputError

    body: dict[str, Any] = {"passphrase": _read(passphrase_file)}
    if duration:
        try:
            body["for_s"] = float(parse_duration(duration))
        except ValueError as error:
            raise InputError(str(error), key="--for", code="input.duration") from error
    answer = talk(url, token_file, lambda client: client.call("POST", f"projects/{project}/vault/unlock", body))
    click.echo(f"{answer['freed']} waiting job{'' if answer['freed'] == 1 else 's'} may go on")
    return 0


def _read(file: str) -> str:
    from runyard.job.errors import InputError

    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} can't be read: {error}", key="--file", code="input.secret") from error
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise InputError("the value is empty", key="--file", code="input.secret")
    return text
