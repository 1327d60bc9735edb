"""A job process: takes one claim over its channel, runs it in a sandbox, tells what happens, and ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket


def warm() -> None:
    """Import what a job needs, in the fork server, so that a fork has it."""


def serve_job(channel: socket.socket) -> int:
    """Run the one job that comes over `channel`; returns the exit code of the process."""
    channel.close()
    return 1
