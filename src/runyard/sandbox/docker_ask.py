"""What an engine answers, told apart: the errors of every call, and the calls that need no event loop."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from runyard.job import MachineError
from runyard.sandbox import docker_now
from runyard.sandbox.docker_wire import Said

_T = TypeVar("_T")


class EngineError(MachineError):
    """The engine answered that it can't; `status` is the HTTP status (0: it answered nonsense)."""

    def __init__(self, message: str, *, status: int = 0, remedy: str | None = None, retryable: bool = False) -> None:
        super().__init__(message, code="sandbox.engine", remedy=remedy, retryable=retryable)
        self.status = status


class NoSuchObjectError(EngineError):
    """The container, image, network or volume isn't there."""


class EngineGoneError(EngineError):
    """Nobody answers on the socket, or the engine went away in the middle of a call."""


def ask_now(socket_path: str, path: str, wanted: type[_T], timeout_s: float = 5.0) -> _T:
    """One GET without an event loop, for what has to be known before there is one. Raises EngineError."""
    try:
        status, body = docker_now.call(socket_path, "GET", path, timeout_s)
    except docker_now.Unanswered as why:
        raise gone(socket_path, why) from why
    if status != 200:
        raise refusal(f"GET {path}", status, body)
    return decode(body, wanted)


def gone(socket_path: str, why: Exception) -> EngineGoneError:
    """The error for a socket where nobody answers."""
    return EngineGoneError(
        f"no container engine answers on {socket_path}: {why}",
        remedy="start the engine, or name its socket with DOCKER_HOST=unix://PATH",
        retryable=True,
    )


def refusal(call: str, status: int, body: bytes) -> EngineError:
    """The engine's own words, as the error of ours that fits."""
    try:
        said = msgspec.json.decode(body[body.find(b"{") :] if b"{" in body else body, type=Said)
        words = said.message or said.cause
    except msgspec.MsgspecError:
        words = body.decode(errors="replace").strip()
    words = words or f"status {status}"
    if status == 404:
        return NoSuchObjectError(words, status=status)
    return EngineError(f"{words} ({call.partition('?')[0]})", status=status, retryable=status >= 500)


def decode(body: bytes, wanted: type[_T]) -> _T:
    """An answer's body. Raises EngineError where it isn't what was asked for."""
    try:
        return msgspec.json.decode(body, type=wanted)
    except msgspec.MsgspecError as unreadable:
        raise EngineError(f"the engine's answer can't be read: {unreadable}") from unreadable
