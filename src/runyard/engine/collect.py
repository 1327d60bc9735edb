"""Collects what a pipeline declares as artifacts: one tar each, written outside the sandbox when the steps are done.

The tar is made by the image's own tar, as the job's user, and is never unpacked here: names and links in it are the
job's word, and whoever opens it has to look at each member. An artifact is there whole or not at all.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runyard.engine.run_step import fresh_name
from runyard.engine.sandbox_streams import stream
from runyard.job import Artifact, RunyardError, WorkError

if TYPE_CHECKING:
    from runyard.engine.state import Frame
    from runyard.job import Collect

_PACK: Final = """[ -d "./$2" ] && exec tar -C "$1/$2" -cf - .
exec tar -C "$1" -cf - -- "$2"
"""
_CHECK: Final = """cd -- "$1" || exit 1; [ -e "./$2" ] || exit 44; """
_NOTHING: Final = 44
_DISK_WARNING: Final = "the artifacts of one job may hold {limit} bytes in all"


async def collect(frame: Frame) -> None:
    """Collect the job's artifacts; one that can't be had fails the job and is named in its log."""
    job = frame.job
    left = job.settings.collect_limit
    for wanted in job.spec.collect:
        if wanted.when == "success" and job.status != "success":
            frame.log.say(f"Artifact {wanted.name} is not collected: the job has not succeeded")
            continue
        try:
            left -= await _collect(frame, wanted, left)
        except (RunyardError, OSError) as error:
            words = error.message if isinstance(error, RunyardError) else error.strerror or str(error)
            message = f"Artifact {wanted.name} could not be collected: {words}"
            frame.log.issue("error", message)
            frame.explain("command_error", message)


async def _collect(frame: Frame, wanted: Collect, left: int) -> int:
    """Write one artifact; its size in bytes. Raises WorkError, MachineError, OSError."""
    job, log = frame.job, frame.log
    if not job.settings.collect_dir:
        raise WorkError("there is no place for it here", code="collect.no_place")
    folder = Path(job.settings.collect_dir)
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    whole = folder / f"{wanted.name}.tar"
    part = folder / f".{fresh_name()}.part"
    digest = hashlib.sha256()
    size = 0
    command = ("/bin/sh", "-c", _CHECK + _PACK, "sh", job.layout.workspace, wanted.path)
    env = dict(job.base_environment) or dict(job.session.environment)
    out = await asyncio.to_thread(os.open, part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        scratch = f"{job.layout.temp}/{fresh_name()}"
        workspace, good = job.layout.workspace, (0, _NOTHING)
        async for data in stream(job.session, command, env=env, cwd=workspace, scratch=scratch, good=good):
            size += len(data)
            if size > left:
                raise WorkError(_DISK_WARNING.format(limit=f"{job.settings.collect_limit:,}"), code="collect.too_large")
            digest.update(data)
            await asyncio.to_thread(_write, out, data)
        if not size:
            raise WorkError(f"there is no {wanted.path} in the workspace", code="collect.nothing")
        await asyncio.to_thread(part.rename, whole)
    finally:
        os.close(out)
        await asyncio.to_thread(part.unlink, missing_ok=True)
    log.emit(Artifact(log.step, wanted.name, size, f"sha256:{digest.hexdigest()}", job.now_ns()))
    log.say(f"Artifact {wanted.name}: {size} bytes from {wanted.path}")
    return size


def _write(out: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(out, view) :]
