"""The end of a job: outputs, environment url, processes that steps left running (job-semantics 3.1, 5, 19)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from runyard.engine.evaluate import text_of, texts_of
from runyard.engine.programs import ask
from runyard.engine.refusals import ask_refusals, end_network
from runyard.job import InputError, MachineError, Usage

if TYPE_CHECKING:
    from runyard.engine.state import Frame, Job

# Every process whose environment has the tracking id in $1 (random, so its place in there doesn't matter): its number
# and name, then the end of it.
_SWEEP = """exec 2>/dev/null
for each in $(grep -lF -- "RUNNER_TRACKING_ID=$1" /proc/[0-9]*/environ); do
  pid=${each#/proc/}
  pid=${pid%/environ}
  read -r name < "/proc/$pid/comm" && printf '%s %s\\n' "$pid" "$name"
  kill -9 "$pid"
done
"""


async def complete_job(frame: Frame) -> tuple[dict[str, str], tuple[str, ...], str | None]:
    """Outputs, the names of dropped ones, the environment's url. An error is in the frame's reason afterwards."""
    if frame.job.skips_everything:
        return {}, (), None
    frame.log.say("Evaluate and set job outputs") if frame.job.spec.outputs is not None else None
    outputs, dropped = await _outputs(frame)
    url = await _environment_url(frame)
    end_network(frame.job)
    frame.log.say("Cleaning up orphan processes")
    sweeping = asyncio.create_task(_sweep(frame.job))
    try:
        await ask_refusals(frame.job)  # asks outside the sandbox, while the sweep goes through it
        for line in await sweeping:
            frame.log.say(line)
    finally:
        sweeping.cancel()
    return outputs, dropped, url


async def _outputs(frame: Frame) -> tuple[dict[str, str], tuple[str, ...]]:
    job, log = frame.job, frame.log
    try:
        values = await texts_of(frame, job.spec.outputs)
    except InputError as error:
        log.issue("error", f"The outputs of the job could not be evaluated: {error}")
        frame.explain("evaluation_error", str(error))
        return {}, ()
    outputs: dict[str, str] = {}
    dropped: list[str] = []
    for name, value in values.items():
        if not value:
            continue
        if job.masker.hides(value):
            log.issue("warning", f"Skip output '{name}' since it may contain secret.")
            dropped.append(name)
        else:
            log.say(f"Set output '{name}'")
            outputs[name] = value
    return outputs, tuple(dropped)


async def _environment_url(frame: Frame) -> str | None:
    job = frame.job
    if job.spec.environment is None or job.spec.environment.url is None:
        return None
    try:
        url = await text_of(frame, job.spec.environment.url)
    except InputError as error:
        frame.log.issue("error", f"The url of the environment could not be evaluated: {error}")
        return None
    if url and job.masker.hides(url):
        frame.log.issue("warning", "Skip setting the environment url since it may contain a secret.")
        return None
    if url:
        frame.log.say(f"Evaluated environment url: {url}")
    return url or None


async def _sweep(job: Job) -> list[str]:
    """End what still carries the job's tracking id, one line each; nothing outlives the sandbox anyway (D15)."""
    try:
        answer = await ask(job.session, ("/bin/sh", "-c", _SWEEP, "sh", job.tracking_id), job.session.environment)
    except MachineError:
        return []
    ended = (line.partition(" ") for line in answer.decode("utf-8", "replace").splitlines())
    return [f"Terminate orphan process: pid ({pid}) ({name})" for pid, _, name in ended]


def used_by(job: Job, wall_s: float) -> Usage:
    """What the job used: as the sandbox counted it, and the sum of the steps for what it could not."""
    counted, steps = job.usage, job.used_by_steps
    return Usage(
        wall_s=wall_s,
        cpu_s=counted.cpu_s or steps.cpu_s,
        peak_memory=counted.peak_memory if counted.peak_memory is not None else steps.peak_memory,
        read_bytes=counted.read_bytes if counted.read_bytes is not None else steps.read_bytes,
        written_bytes=counted.written_bytes if counted.written_bytes is not None else steps.written_bytes,
    )
