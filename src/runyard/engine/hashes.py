"""`hashFiles` for files that are inside a sandbox (job-semantics 14)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runyard.job import InputError

if TYPE_CHECKING:
    from runyard.engine.state import Job


async def hash_in_sandbox(job: Job, arguments: tuple[str, ...]) -> str:
    """The hash of the workspace's files that match, in hex; "" where none does. Raises InputError."""
    raise InputError("hashFiles can't be answered yet")
