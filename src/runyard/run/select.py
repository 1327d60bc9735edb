"""Which jobs run when only some are asked for: those, what they need, and the calls around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from runyard.workflow.plan import JobPlan, RunPlan


def job_paths(plan: RunPlan) -> tuple[str, ...]:
    """The path of every job as written, called ones as `caller/called`, in file order."""
    return tuple(_paths(plan.jobs, ""))


def _paths(jobs: Iterable[JobPlan], prefix: str) -> Iterator[str]:
    for job in jobs:
        yield prefix + job.id
        if job.call is not None:
            yield from _paths(job.call.workflow.jobs, f"{prefix}{job.id}/")


def select_jobs(plan: RunPlan, wanted: Iterable[str]) -> frozenset[str]:
    """The paths to run for those wanted (ignoring case), closed over `needs`. KeyError has the first unknown one."""
    known = {path.lower(): path for path in job_paths(plan)}
    selected: set[str] = set()
    closed: set[str] = set()
    for path in wanted:
        found = known.get(path.lower())
        if found is None:
            raise KeyError(path)
        _close(plan.jobs, found.split("/"), "", selected, closed)
    return frozenset(selected)


def _close(jobs: tuple[JobPlan, ...], path: list[str], prefix: str, selected: set[str], closed: set[str]) -> None:
    """`closed` has every path whose whole call and needs are in already."""
    by_id = {job.id.lower(): job for job in jobs}
    job = by_id[path[0].lower()]
    at = prefix + job.id
    if at in closed:
        return
    selected.add(at)
    if job.call is not None and len(path) > 1:
        _close(job.call.workflow.jobs, path[1:], f"{at}/", selected, closed)
    else:
        closed.add(at)
        if job.call is not None:
            selected.update(_paths(job.call.workflow.jobs, f"{at}/"))
    for need in job.needs:
        _close(jobs, [need], prefix, selected, closed)
