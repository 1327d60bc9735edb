"""The life of a job: every phase meets every happening, and does what the table says or nothing."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from dispatch.made import NOW, SECOND, job, lease, queued
from runyard.dispatch.happenings import (
    AttemptEnded,
    Beat,
    Began,
    Begun,
    CancelWanted,
    Claimed,
    Cleared,
    Dropped,
    Ended,
    Extended,
    HandedBack,
    Happening,
    Held,
    Offered,
    Opened,
    Ordered,
    OrderGiven,
    Passed,
    Result,
    Step,
    Withdrawn,
)
from runyard.dispatch.life import TABLE, advance, case_of, created, diagram
from runyard.dispatch.records import LIVE, Job, Phase, Settings
from runyard.job import Cancel, Drain

SETTINGS = Settings()
LATE = NOW + 10_000 * SECOND
replace = msgspec.structs.replace


def running(**more: Any) -> Job:
    held = lease(1, confirmed=True)
    return queued(**{"phase": "running", "attempt": 1, "lease": held, "due_ns": held.until_ns, **more})


JOBS: tuple[Job, ...] = (
    job(1, holds=frozenset({"approval"})),
    job(1, holds=frozenset({"approval", "vault"})),
    queued(),
    queued(phase="reserved", reserved_for="big", due_ns=NOW + SECOND),
    queued(phase="leased", attempt=1, lease=lease(), due_ns=NOW + 30 * SECOND),
    queued(phase="leased", attempt=1, lease=lease(), due_ns=NOW + SECOND, unconfirmed=9),
    queued(phase="leased", attempt=1, lease=lease(), due_ns=NOW + SECOND, unconfirmed=2, avoid=frozenset({"w2", "w3"})),
    queued(phase="leased", attempt=1, lease=lease(confirmed=True), due_ns=NOW + SECOND),
    queued(phase="leased", attempt=1, lease=lease(confirmed=True), due_ns=NOW + SECOND, lost=1),
    running(),
    running(lost=1),
    running(phase="cancelling", order_number=1, cancel_until_ns=NOW + 300 * SECOND),
    running(phase="cancelling", order_number=2, cancel_until_ns=NOW + SECOND, cancel_forced=True),
    queued(phase="done", attempt=1, result="digest", conclusion="success"),
    queued(phase="done", attempt=1, conclusion="cancelled"),
)
HAPPENINGS: tuple[Happening, ...] = (
    Cleared("approval"),
    Held("vault"),
    Dropped("skipped", "the condition is false", "condition_false"),
    Offered("big", NOW + SECOND),
    Withdrawn("ill"),
    Claimed(lease(2, "w2")),
    Beat(1, "lease1", 1),
    Began(1, "lease1"),
    Extended(NOW + 600 * SECOND),
    Ordered(Drain()),
    CancelWanted("enough"),
    CancelWanted("now", force=True),
    HandedBack(1, "lease1", "drained"),
    HandedBack(1, "lease1", "drained", counted=True),
    Result(1, "lease1", "digest", "success"),
    Result(1, "lease1", "other", "failure"),
    Passed(),
)


def test_every_phase_meets_every_happening_as_the_table_says() -> None:
    table = {(phase, happening, case): to for phase, happening, case, to in TABLE}
    visited = set()
    assert {type(each) for each in HAPPENINGS} == set(get_args(Happening))
    assert {each.phase for each in JOBS} == set(get_args(Phase))
    for before in JOBS:
        for happening in HAPPENINGS:
            step = advance(before, happening, LATE, SETTINGS)
            assert advance(before, happening, LATE, SETTINGS) == step
            at = (before.phase, type(happening), case_of(before, happening, SETTINGS))
            if at in table and not (isinstance(happening, Passed) and before.due_ns == 0):
                fenced = step.refused is not None and step.refused.code == "lease.over"
                assert not fenced, f"{before} refused {happening}: {step.refused}"
                assert step.job.phase == table[at], f"{at} led to {step.job.phase}"
                visited.add(at)
            else:
                assert step.refused is not None, f"{at} isn't in the table and was done"
            if step.refused is not None:
                assert (step.job, step.effects) == (before, ())
            sound(step.job)
    assert set(table) == visited, "transitions nobody tried"


def sound(after: Job) -> None:
    assert (after.phase in LIVE) == (after.lease is not None), after
    assert (after.due_ns > 0) == (after.phase in LIVE or after.phase == "reserved"), after
    assert (after.phase == "waiting") == bool(after.holds), after
    assert after.phase != "done" or after.conclusion is not None


def test_no_key_stands_in_the_table_twice() -> None:
    keys = [row[:3] for row in TABLE]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("holds", "phase"), [((), "queued"), (("approval",), "waiting"), (("vault", "concurrency"), "waiting")]
)
def test_a_new_job_waits_while_something_holds_it(holds: tuple[Any, ...], phase: str) -> None:
    made = created(job(holds=frozenset(holds)), NOW, SETTINGS)
    assert made.phase == phase
    assert made.queued_ns == (NOW if phase == "queued" else 0)


def test_priority_is_worth_waiting_time() -> None:
    early = created(job(1), NOW, SETTINGS)
    urgent = created(job(2, priority=1), NOW + 599 * SECOND, SETTINGS)
    late_urgent = created(job(3, priority=1), NOW + 601 * SECOND, SETTINGS)
    assert sorted([early, urgent, late_urgent], key=lambda each: each.rank) == [urgent, early, late_urgent]


# --- fences


@pytest.mark.parametrize("happening", [Beat(1, "lease1"), Began(1, "lease1"), HandedBack(1, "lease1", "x")])
def test_an_attempt_that_is_over_is_refused_whatever_it_says(happening: Happening) -> None:
    for now in (
        queued(attempt=1),
        queued(phase="leased", attempt=2, lease=lease(2, "w2"), due_ns=LATE),
        queued(phase="done", attempt=1, conclusion="failure", reason_code="lost"),
    ):
        step = advance(now, happening, NOW, SETTINGS)
        assert step.refused is not None
        assert step.refused.code == "lease.over"
        assert step.job == now


def test_a_lease_of_the_same_attempt_with_another_id_is_refused() -> None:
    step = advance(running(), Beat(1, "guessed"), NOW, SETTINGS)
    assert step.refused is not None
    assert step.refused.code == "lease.over"


def test_the_result_of_an_older_attempt_is_refused() -> None:
    again = running(attempt=2, lease=lease(2, "w2", confirmed=True))
    step = advance(again, Result(1, "lease1", "digest", "success"), NOW, SETTINGS)
    assert step.refused is not None
    assert step.refused.code == "lease.over"
    assert step.job == again


def test_the_same_result_again_is_accepted_again_and_another_refused() -> None:
    first = advance(running(), Result(1, "lease1", "digest", "success"), NOW, SETTINGS)
    assert first.effects == (AttemptEnded(1, "finished", "success"), Ended("success"))
    again = advance(first.job, Result(1, "lease1", "digest", "success"), NOW, SETTINGS)
    assert again == Step(first.job, repeated=True)
    other = advance(first.job, Result(1, "lease1", "else", "failure"), NOW, SETTINGS)
    assert other.refused is not None
    assert other.refused.code == "result.other"


# --- leases


def test_an_unconfirmed_hand_out_goes_back_and_is_not_counted() -> None:
    taken = advance(queued(), Claimed(lease()), NOW, SETTINGS).job
    assert (taken.phase, taken.attempt, taken.due_ns) == ("leased", 1, NOW + 30 * SECOND)
    assert advance(taken, Passed(), NOW + 30 * SECOND - 1, SETTINGS).refused is not None
    step = advance(taken, Passed(), NOW + 30 * SECOND, SETTINGS)
    assert step.effects == (AttemptEnded(1, "unconfirmed", "never confirmed"), Opened())
    assert (step.job.phase, step.job.lost, step.job.unconfirmed) == ("queued", 0, 1)
    assert step.job.queued_ns == NOW, "it keeps its place"
    assert advance(step.job, Claimed(lease(2)), NOW, SETTINGS).job.attempt == 2, "the fence grows all the same"


def test_a_beat_confirms_and_extends_and_the_lease_then_counts() -> None:
    taken = advance(queued(), Claimed(lease()), NOW, SETTINGS).job
    held = advance(taken, Beat(1, "lease1"), NOW + 10 * SECOND, SETTINGS).job
    assert (held.phase, held.due_ns) == ("leased", NOW + 130 * SECOND)
    began = advance(held, Began(1, "lease1"), NOW + 11 * SECOND, SETTINGS)
    assert began.effects == (Begun(),)
    assert advance(began.job, Began(1, "lease1"), NOW + 12 * SECOND, SETTINGS).effects == ()
    lost = advance(began.job, Passed(), NOW + 131 * SECOND, SETTINGS)
    assert (lost.job.phase, lost.job.lost) == ("queued", 1)
    assert lost.job.avoid == {"w1"}


def test_a_job_is_lost_once_and_then_fails() -> None:
    ended = advance(running(lost=1), Passed(), LATE, SETTINGS)
    assert ended.job.conclusion == "failure"
    assert ended.job.reason_code == "lost"
    assert ended.effects[-1] == Ended("failure", ended.job.reason, "lost")
    never = advance(running(retry_lost=0), Passed(), LATE, SETTINGS)
    assert (never.job.phase, never.job.reason_code) == ("done", "lost")


def test_a_clock_that_was_ahead_leaves_no_lease_longer_than_its_kind() -> None:
    ahead = advance(running(), Beat(1, "lease1"), NOW + 86_400 * SECOND, SETTINGS).job
    back = advance(ahead, Beat(1, "lease1"), NOW + SECOND, SETTINGS).job
    assert back.due_ns == NOW + 121 * SECOND


@pytest.mark.parametrize(("workers", "tries"), [(["w1", "w2", "w3"], 3), (["w1"] * 9, 9), (["w1", "w2"] * 5, 9)])
def test_hand_outs_nobody_confirms_end_the_job(workers: list[str], tries: int) -> None:
    now, at = queued(), NOW
    for number, name in enumerate(workers, 1):
        now = advance(
            now,
            Claimed(
                lease(
                    number,
                    name,
                )
            ),
            at,
            SETTINGS,
        ).job
        at = now.due_ns
        step = advance(now, Passed(), at, SETTINGS)
        now = step.job
        if now.phase == "done":
            assert number == tries
            assert step.effects[-1] == Ended("failure", now.reason, "unavailable", unserved=True)
            return
    raise AssertionError("it was handed out for ever")


def test_a_planned_stop_gives_time_to_everybody() -> None:
    until = NOW + 600 * SECOND
    for before in JOBS:
        if before.phase in LIVE:
            after = advance(before, Extended(until), NOW, SETTINGS).job
            assert after.due_ns >= until
            assert advance(after, Passed(), until - 1, SETTINGS).refused is not None


# --- cancelling


def test_a_cancellation_has_a_deadline_and_an_order() -> None:
    step = advance(running(), CancelWanted("enough"), NOW, SETTINGS)
    assert step.effects == (OrderGiven(1, Cancel(reason="enough")),)
    beaten = advance(step.job, Beat(1, "lease1", 1), NOW + 250 * SECOND, SETTINGS).job
    assert (beaten.seen, beaten.due_ns) == (1, NOW + 300 * SECOND), "heartbeats don't move the deadline"
    over = advance(beaten, Passed(), NOW + 300 * SECOND, SETTINGS)
    assert over.effects == (AttemptEnded(1, "cancelled", "enough"), Ended("cancelled", "enough", "cancelled_by_user"))


def test_force_shortens_a_cancellation_and_never_the_other_way() -> None:
    soft = advance(running(), CancelWanted("enough"), NOW, SETTINGS).job
    hard = advance(soft, CancelWanted("now", force=True), NOW + SECOND, SETTINGS)
    assert hard.effects == (OrderGiven(2, Cancel(force=True, reason="now")),)
    assert hard.job.cancel_until_ns == NOW + 16 * SECOND
    again = advance(hard.job, CancelWanted("please"), NOW + 2 * SECOND, SETTINGS)
    assert again == Step(hard.job)


def test_a_result_in_the_time_of_cancellation_counts() -> None:
    soft = advance(running(), CancelWanted("enough"), NOW, SETTINGS).job
    step = advance(soft, Result(1, "lease1", "digest", "success"), NOW + SECOND, SETTINGS)
    assert step.job.conclusion == "success"


def test_a_lost_holder_of_a_cancelled_job_is_not_repeated() -> None:
    soft = advance(running(), CancelWanted("enough"), NOW, SETTINGS).job
    assert soft.due_ns == NOW + 120 * SECOND
    step = advance(soft, Passed(), NOW + 120 * SECOND, SETTINGS)
    assert (step.job.phase, step.job.conclusion) == ("done", "cancelled")


def test_the_diagram_shows_every_transition() -> None:
    drawn = diagram()
    assert drawn.count("-->") == len(TABLE) + 3
