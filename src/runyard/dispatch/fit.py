"""May this worker take this job? One predicate, for who chooses and for who explains.

`obstacles` yields what stands between a worker and a class of jobs, and `job_obstacles` what concerns one job of it. No
obstacle means yes: `choose` looks for the first, `explain` reads them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from runyard.dispatch.records import Bounds, Counts, Settings, Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runyard.dispatch.records import Job, JobClass

ObstacleCode: TypeAlias = Literal[
    "draining",
    "drained",
    "slots",
    "worker_bound",
    "server_bound",
    "repository_bound",
    "group_bound",
    "pool_bound",
    "disk",
    "platform",
    "native_elsewhere",
    "labels",
    "features",
    "pool",
    "trust",
    "publish",
    "reserved",
    "avoided",
]

PASSING: Final[frozenset[ObstacleCode]] = frozenset(
    {
        "slots",
        "worker_bound",
        "server_bound",
        "repository_bound",
        "group_bound",
        "pool_bound",
        "reserved",
        "native_elsewhere",
        "avoided",
        "disk",
        "draining",
        "drained",
    }
)
"""Obstacles that go away by themselves or at a word; the others are what the worker is."""


class Obstacle(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that stands in the way: a word for programs, a sentence, and what it was measured by."""

    code: ObstacleCode
    message: str
    missing: tuple[str, ...] = ()


class View(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What everybody looks at: who is connected, what is counted and bounded, and when. `weights` are repositories'."""

    presence: tuple[Worker, ...] = ()
    counts: Counts = Counts()
    bounds: Bounds = Bounds()
    weights: dict[str, float] = {}
    settings: Settings = Settings()
    now_ns: int


def present(workers: tuple[Worker, ...] | list[Worker], now_ns: int, settings: Settings) -> tuple[Worker, ...]:
    """Those that are still counted on: seen within `presence_s`."""
    since = now_ns - round(settings.presence_s * 1e9)
    return tuple(worker for worker in workers if worker.seen_ns >= since)


def normal_platform(platform: str) -> str:
    """`os/arch[/variant]` in lower case, without a variant that says nothing."""
    return platform.lower().removesuffix("/v8") if platform.lower().startswith("linux/arm64") else platform.lower()


def obstacles(worker: Worker, of: JobClass, view: View) -> Iterator[Obstacle]:
    """What keeps `worker` from the jobs of this class, now; nothing when it may take them."""
    yield from what_it_is(worker, of)
    yield from _platform(worker, of, view)
    if worker.draining:
        yield Obstacle("draining", f"{worker.name} is stopping and takes no more")
    if worker.drained:
        yield Obstacle("drained", f"{worker.name} was drained; `runyard workers resume` undoes it")
    counts, bounds = view.counts, view.bounds
    held = counts.by_worker.get(worker.id, 0)
    if worker.free < 1 or held >= worker.slots:
        yield Obstacle("slots", f"{worker.name} has no free slot ({max(held, worker.slots - worker.free)} busy)")
    if _is_reached(held, worker.max_concurrent):
        yield _bound("worker_bound", f"worker {worker.name}", held, worker.max_concurrent)
    server = _least(bounds.server, view.settings.max_concurrent)
    if _is_reached(counts.total, server):
        yield _bound("server_bound", "this server", counts.total, server)
    count, bound = counts.by_repository.get(of.repository, 0), bounds.repositories.get(of.repository)
    if _is_reached(count, bound):
        yield _bound("repository_bound", of.repository, count, bound)
    if of.group is not None:
        count, bound = counts.by_group.get(of.group, 0), bounds.groups.get(of.group)
        if _is_reached(count, bound):
            yield _bound("group_bound", f"group {of.group}", count, bound)
    if of.pool is not None:
        count, bound = counts.by_pool.get(of.pool, 0), bounds.pools.get(of.pool)
        if _is_reached(count, bound):
            yield _bound("pool_bound", f"pool {of.pool}", count, bound)
    room = disk_mb(worker)
    if of.disk_mb is not None and room is not None and room < of.disk_mb:
        yield Obstacle("disk", f"it needs {of.disk_mb} MB of disk; {worker.name} has or could free {room}")


def what_it_is(worker: Worker, of: JobClass) -> Iterator[Obstacle]:
    """The part that doesn't change with load: labels, features, pool, trust, publishing."""
    lacking = tuple(sorted(of.labels - worker.labels))
    if lacking:
        yield Obstacle("labels", f"{worker.name} has no label {', '.join(lacking)}", lacking)
    lacking = tuple(sorted(of.requires - worker.features))
    if lacking:
        yield Obstacle("features", f"{worker.name} can't do {', '.join(lacking)}", lacking)
    if of.pool is not None and of.pool not in worker.pools:
        yield Obstacle("pool", f"{worker.name} isn't in pool {of.pool}", (of.pool,))
    if worker.trust not in ("any", of.trust):
        yield Obstacle("trust", f"{worker.name} takes {worker.trust} jobs only, and this one is {of.trust}")
    if of.kind == "publish" and of.repository not in worker.publish:
        yield Obstacle("publish", f"{worker.name} doesn't publish for {of.repository}")


def is_native(worker: Worker, of: JobClass) -> bool:
    """Whether a job of the class runs there without emulation."""
    return of.platform is None or normal_platform(worker.platform) == normal_platform(of.platform)


def job_obstacles(worker: Worker, job: Job, view: View) -> Iterator[Obstacle]:
    """What concerns this job and not its whole class: whom it is set aside for, where it was lost before."""
    if job.phase == "reserved" and job.reserved_for not in worker.pools:
        yield Obstacle("reserved", f"it is set aside for pool {job.reserved_for}")
    if worker.id in job.avoid:
        emulates = not is_native(worker, job.of)
        unspent = [each for each in view.presence if each.id not in job.avoid]
        others = [each for each in unspent if _could(each, job.of, emulates=emulates)]
        if others:
            yield Obstacle("avoided", f"{worker.name} lost it before, and {others[0].name} could take it")


def disk_mb(worker: Worker) -> int | None:
    """MiB it has or could free; None where it didn't say."""
    return None if worker.disk_free_mb is None else worker.disk_free_mb + (worker.disk_reclaimable_mb or 0)


def _platform(worker: Worker, of: JobClass, view: View) -> Iterator[Obstacle]:
    """Natives first; what no connected worker is native to goes to who proved that it can emulate it."""
    if is_native(worker, of):
        return
    assert of.platform is not None
    if normal_platform(of.platform) not in {normal_platform(each) for each in worker.emulates}:
        says = f"{worker.name} is {worker.platform} and doesn't emulate {of.platform}"
        yield Obstacle("platform", says, (of.platform,))
        return
    for other in view.presence:
        if other.id != worker.id and is_native(other, of) and _may(other, of):
            yield Obstacle(
                "native_elsewhere", f"{other.name} is native to {of.platform}; {worker.name} only emulates it"
            )
            return


def _may(worker: Worker, of: JobClass) -> bool:
    """It would take jobs of the class, load aside."""
    return not (worker.draining or worker.drained) and next(what_it_is(worker, of), None) is None


def _could(worker: Worker, of: JobClass, *, emulates: bool) -> bool:
    """It would take it instead of another one; by emulation only where that one does no better."""
    proven = {normal_platform(each) for each in worker.emulates} if emulates else set()
    return _may(worker, of) and (is_native(worker, of) or normal_platform(of.platform or "") in proven)


def _is_reached(count: int, bound: int | None) -> bool:
    return bound is not None and count >= bound


def _bound(code: ObstacleCode, whose: str, count: int, bound: int | None) -> Obstacle:
    return Obstacle(code, f"max_concurrent of {whose} is {bound}, and {count} are at work")


def _least(*bounds: int | None) -> int | None:
    return min((bound for bound in bounds if bound is not None), default=None)
