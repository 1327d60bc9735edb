"""`runyard serve`: the control plane in one process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from runyard.config import Duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runyard.config import Document

DEFAULT_LISTEN = "127.0.0.1:8300"


class LimitsTable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bounds and durations of dispatch; what is absent is the default."""

    max_concurrent: int | None = None
    poll: Duration | None = None
    heartbeat: Duration | None = None
    lease: Duration | None = None
    confirm: Duration | None = None
    presence: Duration | None = None
    cancel: Duration | None = None


class ServerFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The configuration of a server: the same names as its flags, and `limits`."""

    listen: str = DEFAULT_LISTEN
    data: str = ""
    database: str | None = None
    blobs: str | None = None
    public_url: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    trusted_proxy: tuple[str, ...] = ()
    insecure: bool = False
    limits: LimitsTable = LimitsTable()


@click.command(epilog="Example: runyard serve --data /var/lib/runyard --listen 127.0.0.1:8300")
@click.option(
    "--listen", metavar="HOST:PORT", help=f"Where to listen (default {DEFAULT_LISTEN}); port 0 takes a free one."
)
@click.option("--data", metavar="DIR", help="Where everything is kept (default: ~/.local/share/runyard/server).")
@click.option("--database", metavar="URL", help="sqlite:PATH (default: runyard.db in the data folder).")
@click.option("--blobs", metavar="URL", help="Where blobs are kept; only the data folder so far.")
@click.option("--config", metavar="F", type=click.Path(dir_okay=False), help="A TOML file with the same names.")
@click.option("--public-url", metavar="URL", help="How people and workers reach this server; needed beyond loopback.")
@click.option("--tls-cert", metavar="F", help="A certificate chain, with --tls-key.")
@click.option("--tls-key", metavar="F", help="Its key.")
@click.option("--trusted-proxy", metavar="ADDRESS", multiple=True, help="A proxy in front whose headers are believed.")
@click.option(
    "--insecure", is_flag=True, default=None, help="Plain HTTP beyond loopback, knowing that tokens are seen."
)
def command(config: str | None, **flags: Any) -> int:
    """The control plane: queue, leases, logs and the API that workers and people use.

    Every setting is also RUNYARD_SERVER_NAME, and a key of the file of --config. SIGTERM drains: running jobs go on on
    their workers, their leases outlast the stop, and the next start takes their results.
    """
    settings = _settings(config, flags, os.environ)
    host, port = _place(settings)
    from runyard.server.run import Options, serve

    data = Path(settings.data or default_data()).absolute()
    options = Options(
        host=host,
        port=port,
        data=data,
        database=database_path(settings, data),
        public_url=settings.public_url,
        tls=(settings.tls_cert, settings.tls_key) if settings.tls_cert and settings.tls_key else None,
        proxies=settings.trusted_proxy,
        settings=_limits(settings.limits),
    )
    return serve(options, say=lambda line: print(line, file=sys.stderr, flush=True))


def _settings(config: str | None, flags: Mapping[str, Any], environ: Mapping[str, str]) -> ServerFile:
    """The effective configuration. Raises InputError with every problem."""
    from runyard.config import layered, read
    from runyard.job import InputError

    config = config or environ.get("RUNYARD_SERVER_CONFIG")
    document: Document | None = None
    if config:
        try:
            document = read(Path(config).read_bytes(), config)
        except OSError as error:
            raise InputError(f"it can't be read: {error.strerror}", path=config, code="config.unreadable") from error
    given = {name: value for name, value in flags.items() if value not in (None, ())}
    settings, _ = layered(ServerFile, flags=given, environ=environ, document=document, prefix="RUNYARD_SERVER_")
    return settings


def _place(settings: ServerFile) -> tuple[str, int]:
    """Host and port. Raises InputError for what isn't safe or isn't an address."""
    from runyard.job import InputError

    host, colon, port = settings.listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(f"--listen takes HOST:PORT, not {settings.listen!r}", key="--listen", code="input.listen")
    is_public = host not in ("127.0.0.1", "::1", "localhost") and not host.startswith("127.")
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise InputError("--tls-cert and --tls-key go together", key="--tls-cert", code="input.tls")
    if is_public and not settings.public_url:
        raise InputError(
            f"{settings.listen} can be reached by others, so links need --public-url",
            key="--public-url",
            code="input.public_url",
            remedy="--public-url https://ci.example.org",
        )
    if is_public and not (settings.tls_cert or settings.trusted_proxy or settings.insecure):
        raise InputError(
            f"{settings.listen} can be reached by others, and tokens would go there in the clear",
            key="--tls-cert",
            code="input.insecure",
            remedy="Give --tls-cert and --tls-key, name the proxy that ends TLS (--trusted-proxy), or say --insecure.",
        )
    if settings.blobs is not None:
        raise InputError("--blobs: only the data folder keeps blobs in this build", key="--blobs", code="input.blobs")
    return host, int(port)


def database_path(settings: ServerFile, data: Path) -> Path:
    """The file of the database. Raises InputError for one that this build doesn't take."""
    from runyard.job import InputError

    if settings.database is None:
        return data / "runyard.db"
    kind, colon, path = settings.database.partition(":")
    if not colon or kind == "sqlite":
        return Path((path if colon else kind).removeprefix("//")).absolute()
    raise InputError(
        f"--database: {kind} is not part of this build yet; it takes sqlite:PATH",
        key="--database",
        code="input.database",
    )


def _limits(table: LimitsTable) -> Any:
    from runyard.dispatch.records import Settings

    named: dict[str, Any] = {
        "max_concurrent": table.max_concurrent,
        "poll_s": table.poll,
        "heartbeat_s": table.heartbeat,
        "dialout_lease_s": table.lease,
        "confirm_s": table.confirm,
        "presence_s": table.presence,
        "cancel_s": table.cancel,
    }
    # Plain numbers: a Duration can't be written as JSON, and a claim's answer holds some of these.
    plain: dict[str, Any] = {name: float(value) if isinstance(value, float) else value for name, value in named.items()}
    return Settings(**{name: value for name, value in plain.items() if value is not None})


def default_data() -> str:
    """The data folder where none is named."""
    return os.path.expanduser(os.environ.get("XDG_DATA_HOME", "~/.local/share") + "/runyard/server")  # noqa: PTH111
