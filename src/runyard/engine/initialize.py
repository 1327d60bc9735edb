"""The generated steps of a job with containers: `Initialize containers`, `Pull`, `Build`, `Stop containers` (3.2).

The job's own container is the sandbox itself, so it begins with the sandbox and ends with it; services come and go on
the job's network. A service that doesn't start fails the record, and the steps' own conditions decide what still runs
(pair O35).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from runyard.engine.results import Result
from runyard.engine.state import PostStep
from runyard.job import RunStep, RunyardError, TextToken, WorkError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from runyard.engine.state import Control, Frame, Job
    from runyard.sandbox.contract import ContainerState, ContainerSupport

_Value = TypeVar("_Value")

STOP_TIMEOUT_S = 20.0
CANCEL_TIMEOUT_S = 20.0


class Stopped(Exception):  # noqa: N818 - unwinds what is no longer wanted
    """The step was stopped while it waited."""


async def unless_stopped(work: Awaitable[_Value], control: Control) -> _Value:
    """Await work that a stop of the step cancels. Raises Stopped then."""
    doing = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(control.stopped.wait())
    try:
        await asyncio.wait({doing, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        doing.cancel()
        await asyncio.wait({doing}, timeout=CANCEL_TIMEOUT_S)
        raise Stopped
    finally:
        stopped.cancel()
        if not doing.done():
            doing.cancel()


def support_of(job: Job) -> ContainerSupport | None:
    """The containers beside the job's sandbox, None where the backend has none."""
    return job.session.containers


def told_to(frame: Frame) -> Callable[[str], None]:
    """A line of the engine for this record's log."""

    def told(line: str) -> None:
        frame.log.say(line)

    return told


async def start_containers(frame: Frame, open_session: Callable[[], Awaitable[None]] | None) -> Result:
    """The record `Initialize containers`. Raises RunyardError only where there is no sandbox to go on in."""
    job = frame.job
    wanted = job.containers
    if wanted.job is not None:
        frame.log.say(f"Start the job's container from {wanted.job.image}")
    if open_session is not None:
        await open_session()
    support = support_of(job)
    assert support is not None  # refused in set-up where there is none
    job.posts.append(_stopping(job))
    started: Mapping[str, ContainerState] = {}
    try:
        if wanted.services:
            frame.log.say(f"Start services: {', '.join(each.name for each in wanted.services)}")
            started = await unless_stopped(support.start_services(wanted.services, told_to(frame)), frame.control)
    except Stopped:
        return Result.CANCELLED
    except RunyardError as error:
        code = "service_failed" if isinstance(error, WorkError) else "unavailable"
        frame.log.issue("error", error.message)
        frame.explain(code, error.message)
        return Result.FAILURE
    finally:
        _fill_contexts(job, support, started)
    for name, state in started.items():
        ports = ", ".join(f"{inside} at localhost:{outside}" for inside, outside in state.ports.items())
        frame.log.say(f"Service {name} is {state.id[:12]}" + (f", {ports}" if ports else ""))
    return Result.SUCCESS


def _fill_contexts(job: Job, support: ContainerSupport, started: Mapping[str, ContainerState]) -> None:
    """`job.container` and `job.services` (17.5)."""
    own = support.job
    container = {"id": own.id} if job.containers.job is not None else {}
    if own.network:
        container["network"] = own.network
    job.job_context["container"] = container
    job.job_context["services"] = {
        name: {"id": state.id, "network": state.network, "ports": dict(state.ports)} for name, state in started.items()
    }


def _stopping(job: Job) -> PostStep:
    step = RunStep(id="", number=0, script=TextToken(""), condition="always()")
    return PostStep("Stop containers", step, job.scope, {}, _stop_containers)


async def _stop_containers(frame: Frame) -> Result:
    job = frame.job
    support = support_of(job)
    if support is None:
        return Result.SUCCESS
    if job.settings.keep and job.status == "failure":
        frame.log.say("The services stay with the kept sandbox")
        return Result.SUCCESS
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await support.stop_services(told_to(frame))
    except (TimeoutError, RunyardError) as error:
        frame.log.issue("warning", f"The services did not stop in time and end with the sandbox: {error}")
    for each in job.containers.services:
        frame.log.say(f"Service {each.name} is gone")
    if job.containers.job is not None:
        frame.log.say("The job's container ends with the sandbox")
    return Result.SUCCESS
