"""What a job asks of its sandbox: image, limits, folders, and what of this machine is shown in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runyard.engine.actions import native_name
from runyard.job import ActionStep, ContainerActionStep
from runyard.sandbox.contract import Mount, Shape

if TYPE_CHECKING:
    from runyard.engine.state import Job


async def shape_of(job: Job) -> Shape:
    """The shape of the job's sandbox; a container of the workflow's own was judged by then."""
    settings, layout = job.settings, job.layout
    own = job.containers.job
    mounts = settings.mounts
    folders = layout.all_folders if _has_docker_actions(job) else layout.folders
    if settings.hooks:
        from runyard.engine.hooks import place_hooks

        mounts += await place_hooks(job)
    if settings.tools:
        mounts += (Mount(source=settings.tools, target=layout.tool_cache, overlay=True),)
        folders = tuple(each for each in folders if each != layout.tool_cache)
    return Shape(
        image=settings.image if own is None else own.image,
        limits=job.spec.limits,
        network=settings.network,
        mounts=mounts,
        home=layout.home,
        directories=folders,
        tmpfs=(layout.command_files, layout.event_folder),
        container=None if own is None else own.wishes,
        login=None if own is None else own.login,
    )


def _has_docker_actions(job: Job) -> bool:
    """Whether a step may turn out to be a docker action, which shares a home of its own kind."""
    return job.capabilities.containers and any(
        isinstance(step, ContainerActionStep) or (isinstance(step, ActionStep) and native_name(job, step) is None)
        for step in job.spec.steps
    )
