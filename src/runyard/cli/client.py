"""What every command that asks a server shares: its address, the token, one call, and errors as messages and codes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from runyard.job.errors import InputError, MachineError, WorkError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

    import aiohttp

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8300"
CALL_S = 60.0
CONNECT_S = 10.0


def connection(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which server, and as whom."""
    for option in (
        click.option(
            "--token-file", metavar="F", help="A file with the token (else RUNYARD_TOKEN, RUNYARD_TOKEN_FILE)."
        ),
        click.option("--url", metavar="URL", help=f"The server (else RUNYARD_URL, else {DEFAULT_URL})."),
    ):
        command = option(command)
    return command


class Client:
    """Calls to one server. To be used as an async context."""

    def __init__(self, url: str | None, token_file: str | None) -> None:
        self.url = (url or os.environ.get("RUNYARD_URL") or DEFAULT_URL).rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise InputError(f"--url takes http(s)://HOST, not {self.url!r}", key="--url", code="input.url")
        self._token = _token(token_file)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        import aiohttp

        loopback = self.url.split("://", 1)[1].startswith(("127.", "localhost", "[::1]"))
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {self._token}"},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            trust_env=not loopback,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def call(
        self, method: str, path: str, body: object = None, *, timeout_s: float = CALL_S, **query: object
    ) -> Any:
        """The answer's JSON, None for one without a body. Raises InputError, MachineError, WorkError."""
        import msgspec

        async with self.answer(method, path, body, timeout_s=timeout_s, **query) as answer:
            data = await answer.read()
        return msgspec.json.decode(data) if data else None

    @contextlib.asynccontextmanager
    async def answer(
        self, method: str, path: str, body: object = None, *, timeout_s: float | None = None, **query: object
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer itself, for one that streams."""
        import aiohttp
        import msgspec

        assert self._session is not None
        wanted = {name: str(value) for name, value in query.items() if value is not None}
        data = msgspec.json.encode(body) if body is not None else None
        try:
            async with self._session.request(
                method,
                f"{self.url}/-/api/{path}",
                params=wanted,
                data=data,
                headers={"Content-Type": "application/json"} if data is not None else {},
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_S),
            ) as answer:
                if answer.status >= 300:
                    raise _error(answer.status, await answer.read(), self.url)
                yield answer
        except TimeoutError as error:
            raise MachineError(f"{self.url} gave no answer in time", code="client.away", retryable=True) from error
        except aiohttp.ClientError as error:
            raise MachineError(
                f"{self.url} can't be reached: {error}",
                code="client.away",
                remedy="Start it with `runyard serve`, or name another with --url or RUNYARD_URL.",
                retryable=True,
            ) from error


def _token(token_file: str | None) -> str:
    path = token_file or (None if os.environ.get("RUNYARD_TOKEN") else os.environ.get("RUNYARD_TOKEN_FILE"))
    if path is not None:
        try:
            return Path(path).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path} can't be read: {error}", key="--token-file", code="input.token") from error
    token = os.environ.get("RUNYARD_TOKEN", "").strip()
    if not token:
        raise InputError(
            "which token? Give --token-file, RUNYARD_TOKEN_FILE or RUNYARD_TOKEN",
            key="--token-file",
            code="input.token",
            remedy="The first start of `runyard serve` wrote one for the administrator into its data folder.",
        )
    return token


def _error(status: int, body: bytes, url: str) -> InputError | MachineError | WorkError:
    import msgspec

    from runyard.job.dialout import Problem

    try:
        problem = msgspec.json.decode(body, type=Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return MachineError(f"{url} answered {status}, and nothing of ours", code="client.answer")
    remedy = problem.remedy or None
    if status in (400, 404, 405, 413, 416, 422):
        return InputError(problem.message, code=problem.code, remedy=remedy)
    if status == 409:
        return WorkError(problem.message, code=problem.code, remedy=remedy)
    return MachineError(problem.message, code=problem.code, remedy=remedy, retryable=status in (429, 502, 503))


def talk(url: str | None, token_file: str | None, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
    """One conversation with a server."""

    async def main() -> T:
        async with Client(url, token_file) as client:
            return await work(client)

    return asyncio.run(main())


def show(value: object, *, as_json: bool, text: Callable[[Any], str]) -> None:
    """A result on standard output: one JSON document, or for people."""
    import json

    click.echo(json.dumps(value, indent=2, ensure_ascii=False) if as_json else text(value))


def table(rows: Sequence[tuple[object, ...]], head: tuple[str, ...], *, empty: str) -> str:
    """Columns for people; `empty` where there are no rows."""
    if not rows:
        return empty
    lines = [head, *[tuple("" if cell is None else str(cell) for cell in row) for row in rows]]
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
