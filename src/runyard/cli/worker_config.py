"""What `runyard worker` is told: flags, then RUNYARD_WORKER_* variables, then a file; checked before it dials."""

from __future__ import annotations

import os
import re
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from runyard.cli.run_actions import cache_folder, read_policy_file
from runyard.cli.run_machine import check_sandbox, parse_images, this_platform
from runyard.cli.run_tools import tool_cache
from runyard.config import ConfigError, Document, Duration, layered, parse_duration
from runyard.config import read as read_toml
from runyard.job import InputError, MachineError, Policy
from runyard.source.dialout import check_url

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX: Final = "RUNYARD_WORKER_"
TOKEN: Final = "RUNYARD_WORKER_TOKEN"
MOST_SLOTS: Final = 64
_TOKEN_LIMIT: Final = 4096
_PLATFORM: Final = re.compile(r"[a-z0-9]+/[a-z0-9_]+(/[a-z0-9._]+)?")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,63}")


class WorkerFile(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of a worker's file."""

    url: str
    token_file: str | None = None
    name: str | None = None
    labels: tuple[str, ...] = ()
    platform: str | None = None
    slots: int = 1
    sandbox: str = "auto"
    network: str | None = None
    images: dict[str, str] = {}
    deadline: str | None = None
    drain_timeout: Duration | None = None
    policy: str | None = None
    cache_dir: str | None = None
    tool_cache: str | None = None


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The same, checked. `deadline_s` is in seconds from the start. No repr: it holds the token."""

    url: str
    token: str
    name: str
    platform: str
    labels: tuple[str, ...] = ()
    slots: int = 1
    sandbox: str = "auto"
    network: str | None = None
    images: dict[str, str] = {}
    deadline_s: float | None = None
    drain_timeout_s: float | None = None
    policy: Policy | None = None
    cache_dir: str = ""
    tools: str = ""

    def __repr__(self) -> str:
        return f"<WorkerOptions of {self.name}>"


def read_options(given: Mapping[str, Any], environ: Mapping[str, str], now: datetime | None = None) -> WorkerOptions:
    """The options in force. Raises InputError for what is wrong, MachineError for what this machine lacks."""
    document = _document(given.get("config"))
    images = given.get("images") or [each for each in environ.get(f"{PREFIX}IMAGES", "").split(",") if each.strip()]
    flags = {
        "url": given.get("url"),
        "token_file": given.get("token_file"),
        "name": given.get("name"),
        "labels": given.get("labels") or None,
        "platform": given.get("platform"),
        "slots": given.get("slots"),
        "sandbox": given.get("sandbox"),
        "network": given.get("network"),
        "images": parse_images(each.strip() for each in images) if images else None,
        "deadline": given.get("deadline"),
        "drain_timeout": _duration(given.get("drain_timeout"), "--drain-timeout"),
        "policy": given.get("policy"),
        "cache_dir": given.get("cache_dir"),
        "tool_cache": given.get("tool_cache"),
    }
    told, _ = layered(WorkerFile, flags=flags, environ=environ, document=document, prefix=PREFIX)
    if given.get("publish"):
        raise MachineError(
            "--publish: publish jobs are not part of this build yet",
            code="cli.not_yet",
            remedy="Start the worker without it; it takes every other job.",
        )
    if not 1 <= told.slots <= MOST_SLOTS:
        raise InputError(f"--slots takes 1 to {MOST_SLOTS}, not {told.slots}", key="--slots", code="input.slots")
    if told.network not in (None, "none", "proxy", "public"):
        raise InputError(
            f"--network takes none, proxy or public, not {told.network!r}", key="--network", code="input.network"
        )
    return WorkerOptions(
        url=check_url(told.url),
        token=read_token(told.token_file, environ),
        name=_name(told.name),
        platform=_platform(told.platform),
        labels=told.labels,
        slots=told.slots,
        sandbox=check_sandbox(told.sandbox),
        network=told.network,
        images=parse_images(f"{label}={image}" for label, image in told.images.items()),
        deadline_s=_deadline(told.deadline, now),
        drain_timeout_s=told.drain_timeout,
        policy=read_policy_file(told.policy),
        cache_dir=cache_folder(told.cache_dir),
        tools=tool_cache(told.tool_cache),
    )


def _document(path: str | None) -> Document | None:
    if path is None:
        return None
    from runyard.cli.run_values import read_input_file

    return read_toml(read_input_file(path), path)


def read_token(path: str | None, environ: Mapping[str, str]) -> str:
    """The worker's token: of the file, else of RUNYARD_WORKER_TOKEN. It is never part of a message."""
    text = environ.get(TOKEN, "")
    place = TOKEN
    if path is not None:
        from runyard.cli.run_values import read_input_file

        text, place = read_input_file(path)[: _TOKEN_LIMIT + 1].decode("utf-8", "replace"), path
    token = text.strip()
    if not token:
        raise MachineError(
            "there is no token for this worker" if place == TOKEN else f"{place}: the file is empty",
            code="worker.no_token",
            remedy=f"On the server, `runyard token create` makes one; give it with --token-file F or {TOKEN}.",
        )
    if len(token) > _TOKEN_LIMIT or not token.isascii() or any(not 32 < ord(char) < 127 for char in token):
        raise InputError("it is no token: one line of plain characters", path=place, code="worker.token")
    return token


def _name(given: str | None) -> str:
    if given is not None:
        if _NAME.fullmatch(given) is None:
            raise InputError(
                f"--name takes up to 64 letters, digits, dots, dashes and spaces, not {given!r}",
                key="--name",
                code="input.name",
            )
        return given
    host = socket.gethostname().partition(".")[0]
    return host if _NAME.fullmatch(host) else "worker"


def _platform(given: str | None) -> str:
    """`os/arch[/variant]`; one that isn't this machine's own would have to be emulated."""
    own = this_platform()
    if given is None:
        return own
    if _PLATFORM.fullmatch(given) is None:
        raise InputError(
            f"--platform takes os/arch or os/arch/variant, as in linux/amd64, not {given!r}",
            key="--platform",
            code="input.platform",
        )
    if given != own and not given.startswith(f"{own}/"):
        raise MachineError(
            f"this machine is {own}; it can't be a worker of {given}, and emulation is not part of this build yet",
            code="worker.platform",
            remedy=f"Leave --platform out, or give {own} with a variant.",
        )
    return given


def _duration(text: str | None, flag: str) -> Duration | None:
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InputError(f"{flag}: {error}", key=flag, code="input.duration") from error


def _deadline(text: str | None, now: datetime | None) -> float | None:
    """Seconds from now: of a duration, or of a time with its zone."""
    if text is None:
        return None
    try:
        seconds: float = parse_duration(text)
    except ValueError:
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            at = None
        if at is None or at.tzinfo is None:
            raise InputError(
                f"--deadline takes a duration (2h) or a time with its zone (2030-01-02T03:04:05Z), not {text!r}",
                key="--deadline",
                code="input.deadline",
            ) from None
        seconds = (at - (now or datetime.now(UTC))).total_seconds()
    if seconds <= 0:
        raise InputError(f"--deadline {text} is over already", key="--deadline", code="input.deadline")
    return seconds


def free_folder(path: str) -> str:
    """The folder, or the nearest one above it that is there: where its bytes will be."""
    found = Path(path)
    while not found.exists() and found != found.parent:
        found = found.parent
    return str(found)


def disk_free_mb(path: str) -> int | None:
    """MiB that this user may still write on the file system of `path`; None where it can't be asked."""
    try:
        facts = os.statvfs(free_folder(path))
    except OSError:
        return None
    return facts.f_bavail * facts.f_frsize >> 20


__all__ = ["ConfigError", "WorkerFile", "WorkerOptions", "disk_free_mb", "read_options", "read_token"]
