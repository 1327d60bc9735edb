"""Which job a worker gets: fair by repository, then the place in the queue; what it is native to before the rest.

Pure. The store narrows: it gives the first open jobs of each class that may fit (`worth_asking`), so a claim costs the
same however many wait; this decides among at most `Settings.window` of them.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.dispatch.fit import is_native, job_obstacles, obstacles
from runyard.dispatch.records import OPEN, Job, Stride

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from runyard.dispatch.fit import View
    from runyard.dispatch.records import JobClass, Worker

EVERYBODY: Final = ""
"""The stride row that holds how far fairness has come: who was away begins there, not with what it saved up."""

CLASSES: Final = 512
"""Classes of which one claim looks at the first jobs."""


class Grant(msgspec.Struct, frozen=True):
    """The job a worker gets, whether it is native to it, and the strides to save."""

    job: Job
    native: bool
    strides: tuple[Stride, ...]


def worth_asking(worker: Worker, classes: Iterable[JobClass], view: View) -> list[JobClass]:
    """The classes without an obstacle for this worker, natives' first."""
    fitting = [of for of in classes if next(obstacles(worker, of, view), None) is None]
    return sorted(fitting, key=lambda of: not is_native(worker, of))[:CLASSES]


def in_turn(worker: Worker, classes: Iterable[JobClass], strides: Mapping[str, Stride]) -> list[list[JobClass]]:
    """The classes in the order in which `choose` looks at their jobs; those that are equal to it stand together."""
    floor = strides.get(EVERYBODY, Stride(EVERYBODY)).at

    def turn(of: JobClass) -> tuple[bool, float]:
        stride = strides.get(of.repository)
        return not is_native(worker, of), floor if stride is None else max(stride.at, floor)

    return [list(group) for _, group in groupby(sorted(classes, key=turn), key=turn)]


def choose(
    worker: Worker,
    candidates: Sequence[Job],
    view: View,
    strides: Mapping[str, Stride],
    waiting: Iterable[str] = (),
) -> Grant | None:
    """The job to hand out, or None. Order: native before emulated, the repository that had least, rank, sequence.

    `waiting` are further repositories with jobs for this worker that are not among the candidates.
    """
    if not candidates:
        return None
    floor = strides.get(EVERYBODY, Stride(EVERYBODY)).at
    names = {job.repository for job in candidates}.union(waiting)
    known = {name: strides.get(name, Stride(name)) for name in sorted(names)}
    had = {name: max(stride.at, floor) for name, stride in known.items()}
    ordered = sorted(
        candidates, key=lambda job: (not is_native(worker, job.of), had[job.repository], job.rank, job.sequence)
    )
    for job in ordered[: view.settings.window]:
        if is_taken_by(worker, job, view):
            stride = known[job.repository]
            weight = view.weights.get(job.repository, stride.weight)
            after = msgspec.structs.replace(stride, at=had[job.repository] + 1 / weight, weight=weight)
            return Grant(job, is_native(worker, job.of), (after, Stride(EVERYBODY, max(floor, min(had.values())))))
    return None


def is_taken_by(worker: Worker, job: Job, view: View) -> bool:
    """The predicate itself: an open job that nothing keeps from this worker."""
    return (
        job.phase in OPEN
        and next(obstacles(worker, job.of, view), None) is None
        and next(job_obstacles(worker, job, view), None) is None
    )
