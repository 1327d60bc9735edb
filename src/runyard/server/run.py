"""One server process, from its options to its end."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from runyard.dispatch.records import Settings
from runyard.job import MachineError
from runyard.server.app import ServerApp
from runyard.server.auth import new_token
from runyard.server.core import Core
from runyard.server.front import Front, check_tls, listen
from runyard.server.keys import server_key
from runyard.server.store.sqlite import open_store

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from runyard.server.auth import Made
    from runyard.server.store.port import Store, Transaction

ADMIN_TOKEN = "admin.token"
"""The file of the data folder with the token that the first start made: for this machine's administrator."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a server was told."""

    host: str
    port: int
    data: Path
    database: Path
    public_url: str | None = None
    tls: tuple[str, str] | None = None
    proxies: tuple[str, ...] = ()
    settings: Settings = field(default_factory=Settings)


def serve(options: Options, *, say: Callable[[str], None]) -> int:
    """Serve until SIGTERM, then drain; 0. Raises MachineError, OSError for what stops the start."""
    import uvloop

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(),
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(options, say))


async def _serve(options: Options, say: Callable[[str], None]) -> int:
    options.data.mkdir(parents=True, exist_ok=True, mode=0o700)
    if options.tls is not None:
        try:
            check_tls(*options.tls)
        except OSError as error:
            raise MachineError(
                f"{options.tls[0]} and {options.tls[1]} make no identity: {error}", code="server.tls"
            ) from error
    key = server_key(options.data / "server.key")
    store = open_store(options.database)
    try:
        await _first_start(store, options.data, say)
        sock = _listen(options)
    except BaseException:
        await store.close()
        raise
    core = Core(store, options.data, key, options.settings)
    core.start()
    host, port = sock.getsockname()[:2]
    scheme = "https" if options.tls else "http"
    say(f"runyard serve: {options.public_url or f'{scheme}://{host}:{port}'} (data in {options.data})")
    front = Front(ServerApp(core), sock, tls=options.tls, proxies=options.proxies)

    async def on_stop() -> None:
        core.stopping = True
        core.waits.stop()

    try:
        await front.serve(on_stop=on_stop)
    finally:
        await core.stop()
    say("runyard serve: stopped; leases of running jobs outlast this")
    return 0


def _listen(options: Options) -> socket.socket:
    try:
        return listen(options.host, options.port)
    except OSError as error:
        raise MachineError(
            f"{options.host}:{options.port} can't be listened on: {error.strerror or error}",
            code="server.listen",
            remedy="Another server may be there already; --listen takes another place, port 0 a free one.",
        ) from error


async def _first_start(store: Store, data: Path, say: Callable[[str], None]) -> None:
    """The administrator's token, where nobody has one."""
    path = data / ADMIN_TOKEN
    made = await store.transact(_admin, new_token("api", "admin", scopes=frozenset({"admin"}), now_ns=1))
    if made is not None:
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(f"{made}\n")
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
        say(f"runyard serve: the administrator's token is in {path}")


def _admin(tx: Transaction, made: Made) -> str | None:
    import msgspec

    if any(not token.revoked_ns and "admin" in token.scopes for token in tx.tokens("api")):
        return None
    tx.insert_token(msgspec.structs.replace(made.token, created_ns=tx.now_ns(), created_by="first start"))
    return made.text
