"""Who gets which job, and why the others wait: tables for what people think of, Hypothesis for what they don't."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.made import NOW, SECOND, job, klass, lease, queued, worker
from runyard.dispatch.choose import EVERYBODY, choose, in_turn, is_taken_by, worth_asking
from runyard.dispatch.explain import Held, explain
from runyard.dispatch.fit import View, obstacles, present
from runyard.dispatch.records import Bounds, Counts, Job, JobClass, Settings, Stride, Worker

replace = msgspec.structs.replace


def view(*workers: Worker, **more: Any) -> View:
    return View(presence=workers, now_ns=NOW, **more)


ARM = worker(2, platform="linux/arm64", emulates=frozenset({"linux/amd64"}))
AMD = worker(1)


@pytest.mark.parametrize(
    ("taker", "of", "others", "codes"),
    [
        (AMD, klass(), (), []),
        (AMD, klass(platform="linux/amd64"), (), []),
        (AMD, klass(platform="linux/arm64"), (), ["platform"]),
        (ARM, klass(platform="linux/arm64/v8"), (), []),
        (ARM, klass(platform="linux/amd64"), (), []),
        (ARM, klass(platform="linux/amd64"), (AMD,), ["native_elsewhere"]),
        (ARM, klass(platform="linux/amd64"), (replace(AMD, drained=True),), []),
        (ARM, klass(platform="linux/amd64", trust="untrusted"), (replace(AMD, trust="trusted"),), []),
        (ARM, klass(platform="linux/riscv64"), (), ["platform"]),
        (AMD, klass(labels=frozenset({"gpu"})), (), ["labels"]),
        (replace(AMD, labels=frozenset({"gpu", "big"})), klass(labels=frozenset({"gpu"})), (), []),
        (AMD, klass(requires=frozenset({"containers"})), (), ["features"]),
        (AMD, klass(pool="big"), (), ["pool"]),
        (replace(AMD, pools=frozenset({"big"})), klass(pool="big"), (), []),
        (replace(AMD, trust="trusted"), klass(trust="untrusted"), (), ["trust"]),
        (replace(AMD, trust="untrusted"), klass(), (), ["trust"]),
        (AMD, klass(kind="publish"), (), ["publish"]),
        (replace(AMD, publish=frozenset({"acme/app"})), klass(kind="publish"), (), []),
        (replace(AMD, publish=frozenset({"acme/other"})), klass(kind="publish"), (), ["publish"]),
        (replace(AMD, disk_free_mb=10, disk_reclaimable_mb=5), klass(disk_mb=16), (), ["disk"]),
        (replace(AMD, disk_free_mb=10, disk_reclaimable_mb=6), klass(disk_mb=16), (), []),
        (AMD, klass(disk_mb=16), (), []),
        (replace(AMD, free=0), klass(), (), ["slots"]),
        (replace(AMD, draining=True), klass(), (), ["draining"]),
        (replace(AMD, drained=True), klass(), (), ["drained"]),
    ],
)
def test_what_keeps_a_worker_from_a_job(
    taker: Worker, of: JobClass, others: tuple[Worker, ...], codes: list[str]
) -> None:
    seen = view(taker, *others)
    assert [each.code for each in obstacles(taker, of, seen)] == codes
    assert is_taken_by(taker, queued(of=of), seen) == (not codes)


@pytest.mark.parametrize(
    ("counts", "bounds", "code"),
    [
        (Counts(total=3), Bounds(server=3), "server_bound"),
        (Counts(by_repository={"acme/app": 1}), Bounds(repositories={"acme/app": 1}), "repository_bound"),
        (Counts(by_group={"builders": 2}), Bounds(groups={"builders": 2}), "group_bound"),
        (Counts(by_pool={"big": 2}), Bounds(pools={"big": 2}), "pool_bound"),
        (Counts(by_worker={"w1": 2}), Bounds(), "worker_bound"),
        (Counts(by_worker={"w1": 4}), Bounds(), "slots"),
    ],
)
def test_a_bound_that_is_reached_keeps_everybody(counts: Counts, bounds: Bounds, code: str) -> None:
    taker = worker(1, slots=4, free=4, pools=frozenset({"big"}), max_concurrent=2 if code == "worker_bound" else None)
    of = klass(group="builders", pool="big")
    assert [each.code for each in obstacles(taker, of, view(taker, counts=counts, bounds=bounds))] == [code]
    below = Counts(
        total=max(counts.total - 1, 0),
        by_repository={name: count - 1 for name, count in counts.by_repository.items()},
        by_group={name: count - 1 for name, count in counts.by_group.items()},
        by_pool={name: count - 1 for name, count in counts.by_pool.items()},
        by_worker={name: count - 1 for name, count in counts.by_worker.items()},
    )
    assert [each.code for each in obstacles(taker, of, view(taker, counts=below, bounds=bounds))] == []


# --- order


def test_natives_go_before_what_is_emulated_then_place_in_the_queue() -> None:
    amd = klass(platform="linux/amd64")
    jobs = [queued(1, of=amd, rank=1), queued(2, rank=9), queued(3, rank=5), queued(4, rank=5)]
    taken = []
    while grant := choose(ARM, jobs, view(ARM), {}):
        taken.append((grant.job.sequence, grant.native))
        jobs.remove(grant.job)
    assert taken == [(3, True), (4, True), (2, True), (1, False)]


def test_repositories_take_turns_by_weight_whatever_they_queue() -> None:
    jobs = [queued(number, of=klass(repository="acme/loud"), rank=number) for number in range(1, 40)]
    jobs += [queued(number, of=klass(repository="acme/calm"), rank=number) for number in range(100, 110)]
    strides = {"acme/loud": Stride("acme/loud", weight=3.0)}
    order = []
    for _ in range(16):
        grant = choose(AMD, jobs, view(AMD), strides)
        assert grant is not None
        jobs.remove(grant.job)
        strides |= {stride.repository: stride for stride in grant.strides}
        order.append(grant.job.repository)
    assert order.count("acme/calm") == 4, order


def test_who_was_away_does_not_save_up() -> None:
    strides = {"acme/busy": Stride("acme/busy", at=1000.0), EVERYBODY: Stride(EVERYBODY, at=999.0)}
    jobs = [queued(number, of=klass(repository="acme/busy")) for number in range(1, 10)]
    jobs += [queued(number, of=klass(repository="acme/new")) for number in range(20, 30)]
    order = []
    for _ in range(6):
        grant = choose(AMD, jobs, view(AMD), strides)
        assert grant is not None
        jobs.remove(grant.job)
        strides |= {stride.repository: stride for stride in grant.strides}
        order.append(grant.job.repository)
    assert order.count("acme/busy") >= 2, order


def test_a_reserved_job_is_for_its_pool() -> None:
    kept = queued(phase="reserved", reserved_for="big", due_ns=NOW + SECOND)
    assert choose(AMD, [kept], view(AMD), {}) is None
    assert choose(replace(AMD, pools=frozenset({"big"})), [kept], view(AMD), {}) is not None


def test_a_worker_that_lost_a_job_gets_it_only_where_nobody_else_could() -> None:
    lost = queued(avoid=frozenset({"w1"}))
    other = worker(3)
    assert choose(AMD, [lost], view(AMD), {}) is not None
    assert choose(AMD, [lost], view(AMD, other), {}) is None
    assert choose(other, [lost], view(AMD, other), {}) is not None
    assert choose(AMD, [lost], view(AMD, replace(other, drained=True)), {}) is not None


def test_a_native_worker_that_lost_a_job_is_not_passed_over_for_one_that_only_emulates() -> None:
    lost = queued(of=klass(platform="linux/amd64"), avoid=frozenset({"w1"}))
    assert choose(ARM, [lost], view(AMD, ARM), {}) is None
    assert choose(AMD, [lost], view(AMD, ARM), {}) is not None
    again = queued(of=klass(platform="linux/amd64"), avoid=frozenset({"w2"}))
    other = replace(ARM, id="w3", name="worker 3")
    assert choose(ARM, [again], view(ARM, other), {}) is None
    assert choose(other, [again], view(ARM, other), {}) is not None


# --- reasons


@pytest.mark.parametrize(
    ("waiting", "seen", "code", "words"),
    [
        (queued(), view(), "no_worker", "runyard worker"),
        (queued(), view(AMD), "ready", "worker 1"),
        (
            queued(of=klass(labels=frozenset({"gpu", "x"}))),
            view(AMD, replace(ARM, labels=frozenset({"x"}))),
            "no_match",
            "worker 2 has no label gpu",
        ),
        (queued(), view(replace(AMD, free=0)), "slot", "no free slot"),
        (queued(), view(AMD, bounds=Bounds(server=0)), "bound", "max_concurrent of this server is 0"),
        (queued(), view(replace(AMD, drained=True)), "drained", "runyard workers resume"),
        (queued(of=klass(disk_mb=9)), view(replace(AMD, disk_free_mb=3)), "disk", "needs 9 MB"),
        (queued(phase="reserved", reserved_for="big", due_ns=NOW), view(AMD), "reserved", "pool big"),
        (queued(phase="done", conclusion="failure", reason="bad"), view(AMD), "done", "bad"),
        (queued(phase="running", lease=lease(confirmed=True)), view(AMD), "held", "W1"),
    ],
)
def test_why_a_job_waits(waiting: Job, seen: View, code: str, words: str) -> None:
    reason = explain(waiting, seen)
    assert reason.code == code
    assert words in reason.message


def test_a_job_that_waits_for_a_slot_names_the_one_that_was_busy_longest() -> None:
    busy = [
        queued(number, phase="running", lease=replace(lease(number, confirmed=True), since_ns=NOW - number))
        for number in (5, 7, 6)
    ]
    reason = explain(queued(), view(replace(AMD, free=0)), busy)
    assert reason.next_slot == "j7"
    assert "job7" in reason.message


def test_what_holds_a_waiting_job_is_named_with_its_remedy() -> None:
    held = Held(group="deploy", holder="run 4", remedies={"approval": "runyard runs approve 5"})
    reason = explain(job(holds=frozenset({"approval", "concurrency", "vault"})), view(AMD), held=held)
    assert reason.code == "hold"
    assert reason.holds == ("approval", "concurrency", "vault")
    assert "runyard runs approve 5" in reason.message
    assert "group deploy, which run 4 holds" in reason.message
    assert "the vault of acme/app is locked" in reason.message


def test_presence_ends() -> None:
    gone = replace(AMD, seen_ns=NOW - 301 * SECOND)
    assert present([gone, ARM], NOW, Settings()) == (ARM,)


# --- any of it

_WORDS = st.sets(st.sampled_from(["a", "b", "c"]), max_size=2).map(frozenset)
_PLATFORMS = st.sampled_from(["linux/amd64", "linux/arm64", "linux/riscv64"])
_REPOSITORIES = st.sampled_from(["acme/app", "acme/lib"])
_CLASSES = st.builds(
    JobClass,
    repository=_REPOSITORIES,
    platform=st.none() | _PLATFORMS,
    labels=_WORDS,
    requires=st.sets(st.sampled_from(["containers"])).map(frozenset),
    pool=st.none() | st.sampled_from(["a", "b"]),
    group=st.none() | st.just("g"),
    trust=st.sampled_from(["trusted", "untrusted"]),
    kind=st.sampled_from(["job", "job", "publish"]),
    disk_mb=st.none() | st.integers(1, 20),
)
_JOBS = st.builds(
    lambda number, of, rank, avoid, reserved: queued(
        number,
        of=of,
        rank=rank,
        avoid=avoid,
        **({"phase": "reserved", "reserved_for": reserved, "due_ns": NOW} if reserved else {}),
    ),
    st.integers(1, 1000),
    _CLASSES,
    st.integers(0, 5),
    st.sets(st.sampled_from(["w1", "w2", "w3"]), max_size=2).map(frozenset),
    st.none() | st.none() | st.sampled_from(["a", "b"]),
)
_WORKER = {
    "platform": _PLATFORMS,
    "emulates": st.sets(_PLATFORMS).map(frozenset),
    "labels": _WORDS,
    "features": st.sets(st.sampled_from(["containers"])).map(frozenset),
    "pools": st.sets(st.sampled_from(["a", "b"])).map(frozenset),
    "slots": st.integers(1, 3),
    "free": st.integers(0, 2),
    "disk_free_mb": st.none() | st.integers(0, 20),
    "max_concurrent": st.none() | st.integers(1, 3),
    "trust": st.sampled_from(["any", "any", "trusted", "untrusted"]),
    "publish": st.sets(_REPOSITORIES).map(frozenset),
    "draining": st.booleans(),
    "drained": st.booleans(),
}
_PRESENCE = st.integers(1, 3).flatmap(
    lambda count: st.tuples(
        *(
            st.builds(
                Worker, id=st.just(f"w{number}"), name=st.just(f"worker {number}"), seen_ns=st.just(NOW), **_WORKER
            )
            for number in range(1, count + 1)
        )
    )
)
_COUNT = st.integers(0, 3)
_VIEWS = st.builds(
    View,
    presence=_PRESENCE,
    counts=st.builds(
        Counts,
        total=_COUNT,
        by_repository=st.dictionaries(_REPOSITORIES, _COUNT),
        by_worker=st.dictionaries(st.sampled_from(["w1", "w2"]), _COUNT),
        by_pool=st.dictionaries(st.sampled_from(["a", "b"]), _COUNT),
    ),
    bounds=st.builds(
        Bounds,
        server=st.none() | st.integers(1, 4),
        repositories=st.dictionaries(_REPOSITORIES, st.integers(1, 3)),
        pools=st.dictionaries(st.sampled_from(["a", "b"]), st.integers(1, 3)),
    ),
    now_ns=st.just(NOW),
)


@settings(max_examples=120, deadline=None)
@given(seen=_VIEWS, waiting=_JOBS)
def test_explain_says_taken_exactly_when_choose_takes(seen: View, waiting: Job) -> None:
    takers = [each.id for each in seen.presence if choose(each, [waiting], seen, {}) is not None]
    reason = explain(waiting, seen)
    assert (reason.code == "ready") == bool(takers), f"{reason} and {takers}"
    if takers:
        assert reason.worker in takers
    else:
        assert reason.obstacles
        assert reason.message


@settings(max_examples=80, deadline=None)
@given(seen=_VIEWS, jobs=st.lists(_JOBS, max_size=8, unique_by=lambda each: each.sequence))
def test_choose_takes_the_first_that_fits_and_the_classes_it_asks_for_are_enough(seen: View, jobs: list[Job]) -> None:
    for taker in seen.presence:
        asked = {of.id for of in worth_asking(taker, {each.class_id: each.of for each in jobs}.values(), seen)}
        narrowed = [each for each in jobs if each.class_id in asked]
        grant = choose(taker, narrowed, seen, {})
        fits = [each for each in jobs if is_taken_by(taker, each, seen)]
        assert (grant is None) == (not fits)
        if grant is not None:
            assert grant.job in fits
            same = [each for each in fits if each.class_id == grant.job.class_id]
            assert (grant.job.rank, grant.job.sequence) == min((each.rank, each.sequence) for each in same)
            assert all(stride.at >= 0 for stride in grant.strides)


@settings(max_examples=80, deadline=None)
@given(
    seen=_VIEWS,
    jobs=st.lists(_JOBS, max_size=8, unique_by=lambda each: each.sequence),
    had=st.dictionaries(_REPOSITORIES, st.integers(0, 3)),
)
def test_asking_class_by_class_in_turn_gives_what_asking_all_at_once_gives(
    seen: View, jobs: list[Job], had: dict[str, int]
) -> None:
    strides = {name: Stride(name, float(at)) for name, at in had.items()}
    for taker in seen.presence:
        classes = worth_asking(taker, {each.class_id: each.of for each in jobs}.values(), seen)
        repositories = {of.repository for of in classes}
        ids = {of.id for of in classes}
        whole = choose(taker, [each for each in jobs if each.class_id in ids], seen, strides)
        in_parts = None
        for group in in_turn(taker, classes, strides):
            members = {of.id for of in group}
            part = [each for each in jobs if each.class_id in members]
            in_parts = in_parts or choose(taker, part, seen, strides, repositories)
        assert in_parts == whole
