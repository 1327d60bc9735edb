"""What people ask for: cancel, approve, drain, bounds, again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from runyard.dispatch.records import Bounds, Settings
from runyard.job import Cancel
from runyard.server.control import (
    Beaten,
    HandOut,
    Refused,
    approve,
    cancel_run,
    claim,
    drain_worker,
    explain_job,
    explain_queue,
    explain_run,
    hand_back,
    offer_job,
    remove_worker,
    rerun,
    resume_worker,
    tick_runs,
)
from runyard.server.store.rows import Project, Run
from server.control.stage import REPOSITORY, Stage, call_of

if TYPE_CHECKING:
    from runyard.server.store.port import Transaction


def save_project(tx: Transaction, row: Project) -> None:
    tx.save_project(row)


PAIR: dict[str, dict[str, Any]] = {"build": {}, "test": {"needs": "build"}}


def test_a_run_is_cancelled_with_grace_and_by_force() -> None:
    stage = Stage()
    run = stage.trigger({"a": {}, "b": {}, "always": {"if": "always()", "needs": "a"}})
    given = stage.claim()
    stage.begin(given)
    assert stage.do(cancel_run, stage.rules, run, "root") is None
    assert stage.phases(run) == {"a": "cancelling", "b": "done"}
    stage.finish(given, "cancelled")
    cleaning = stage.claim()
    assert cleaning.job.key == "always"
    stage.begin(cleaning)
    assert stage.do(cancel_run, stage.rules, run, "root", force=True) is None
    beaten = stage.beat(cleaning)
    assert isinstance(beaten, Beaten)
    assert [each.order for each in beaten.orders if isinstance(each.order, Cancel) and each.order.force]
    assert stage.sweep(15) == 1
    assert stage.run(run).conclusion == "cancelled"
    assert isinstance(stage.do(cancel_run, stage.rules, run, "root"), Refused)
    assert isinstance(stage.do(cancel_run, stage.rules, "9.1", "root"), Refused)


def test_a_matrix_stops_at_its_first_failure() -> None:
    stage = Stage()
    run = stage.trigger({"m": {"strategy": {"matrix": {"n": [1, 2, 3]}}}})
    first, second = stage.claim(), stage.claim()
    stage.begin(second)
    stage.finish(first, "failure")
    assert sorted(stage.phases(run).values()) == ["cancelling", "done", "done"]
    beaten = stage.beat(second)
    assert isinstance(beaten, Beaten)
    assert [each.order for each in beaten.orders] == [
        Cancel(reason=f"fail-fast: {first.spec.name} failed", reason_code="fail_fast")
    ]
    stage.finish(second, "cancelled")
    assert stage.run(run).conclusion == "failure"


def test_untrusted_runs_wait_for_an_approval() -> None:
    stage = Stage()
    run = stage.trigger(PAIR, approval=True, trust="untrusted")
    stage.nothing()
    (waiting,) = stage.do(explain_run, stage.rules, run)
    assert waiting.reason.code == "hold"
    assert "runyard runs approve 1" in waiting.reason.message
    assert stage.do(approve, stage.rules, run, "root") is None
    assert stage.do(approve, stage.rules, run, "root") is None
    assert stage.run_all() == ["build", "test"]
    assert [row.what for row in stage.do(lambda tx: tx.audit())] == ["run.approve"]


def test_a_drained_worker_gets_nothing_until_it_is_resumed() -> None:
    stage = Stage()
    run = stage.trigger({"a": {}})
    stage.nothing(labels=frozenset())
    assert stage.do(drain_worker, "w1", "root") is None
    stage.nothing()
    reason = stage.do(explain_job, stage.rules, stage.job(run, "a").id)
    assert reason is not None
    assert reason.code == "drained"
    assert stage.do(resume_worker, "w1", "root") is None
    given = stage.claim()
    busy = stage.do(remove_worker, stage.rules, "w1", "root")
    assert isinstance(busy, Refused)
    stage.finish(given)
    assert stage.do(remove_worker, stage.rules, "w1", "root") is None
    assert isinstance(stage.do(drain_worker, "w1", "root"), Refused)


@pytest.mark.parametrize(
    ("bounds", "project"), [(Bounds(server=1), None), (Bounds(repositories={REPOSITORY: 1}), None), (Bounds(), 1)]
)
def test_bounds_are_kept_and_explained(bounds: Bounds, project: int | None) -> None:
    stage = Stage(bounds=bounds)
    row = Project(repository=REPOSITORY, url="", created_ns=stage.now, max_concurrent=project)
    stage.do(lambda tx: tx.save_project(row))
    stage.trigger({"a": {}, "b": {}})
    given = stage.claim()
    stage.nothing("w2")
    (waiting,) = stage.do(explain_queue, stage.rules)
    assert (waiting.key, waiting.reason.code, waiting.reason.next_slot) == ("b", "bound", given.job.id)
    stage.finish(given)
    assert stage.claim("w2").job.key == "b"


def test_a_project_of_three_times_the_weight_gets_three_of_four_slots() -> None:
    stage = Stage()
    for name, weight in (("acme/heavy", 3.0), ("acme/light", 1.0)):
        row = Project(repository=name, url="", created_ns=stage.now, weight=weight)
        stage.do(save_project, row)
        stage.trigger({f"j{number}": {} for number in range(20)}, repository=name)
    given = [stage.claim().job.repository for _ in range(16)]
    assert given.count("acme/heavy") == 12, given


def test_a_reserved_job_is_for_the_pool_and_comes_back() -> None:
    stage = Stage()
    run = stage.trigger({"a": {}})
    job = stage.job(run, "a")
    assert stage.do(offer_job, stage.rules, job.id, "big", stage.now + 60 * 10**9) is None
    stage.nothing()
    given = stage.claim("w2", pools=frozenset({"big"}))
    stage.do(hand_back, stage.rules, call_of(given), "no")
    stage.do(offer_job, stage.rules, job.id, "big", stage.now + 60 * 10**9)
    assert stage.sweep(60) == 1
    assert stage.claim().job.key == "a"


# --- again


def test_a_run_again_in_whole_is_a_new_attempt() -> None:
    stage = Stage()
    run = stage.trigger(PAIR)
    assert isinstance(stage.do(rerun, stage.rules, run, "root"), Refused)
    stage.run_all({"test": "failure"})
    again = stage.do(rerun, stage.rules, run, "root")
    assert isinstance(again, Run)
    assert (again.id, again.attempt, again.number) == ("1.2", 2, 1)
    older = stage.do(rerun, stage.rules, run, "root")
    assert isinstance(older, Refused)
    given = stage.claim()
    assert given.job.key == "build"
    assert given.context.github["run_attempt"] == "2"
    stage.finish(given)
    stage.run_all()
    assert stage.run("1.2").conclusion == "success"
    assert stage.run("1.1").conclusion == "failure"


def test_a_run_again_of_what_failed_keeps_what_succeeded() -> None:
    jobs = {"build": {}, "lint": {}, "test": {"needs": ["build"]}, "ship": {"needs": ["test", "lint"]}}
    stage = Stage()
    run = stage.trigger(jobs)
    while isinstance(given := stage.do(claim, stage.rules, stage.ask()), HandOut):
        stage.finish(given, "failure" if given.job.key == "test" else "success", made=given.job.key)
    nothing = stage.do(rerun, stage.rules, run, "root", failed_only=True)
    assert isinstance(nothing, Run)
    given = stage.claim()
    assert given.job.key == "test"
    assert given.spec.needs["build"].outputs == {"made": "build"}
    stage.finish(given)
    assert stage.run_all() == ["ship"]
    assert stage.run("1.2").conclusion == "success"
    assert stage.conclusions("1.2") == {"build": "success", "lint": "success", "test": "success", "ship": "success"}
    refused = stage.do(rerun, stage.rules, "1.2", "root", failed_only=True)
    assert isinstance(refused, Refused)
    assert refused.code == "run.nothing_failed"


def test_a_run_that_is_too_old_is_ended() -> None:
    stage = Stage()
    run = stage.trigger({"a": {}})
    assert stage.do(tick_runs, stage.rules) == 0
    stage.wait(36 * 24 * 3600)
    stage.do(tick_runs, stage.rules)
    assert stage.run(run).phase == "done"
    assert stage.run(run).reason_code == "timed_out"


def test_a_job_nobody_can_take_hold_of_ends_with_a_reason_and_its_siblings_go_on() -> None:
    stage = Stage(settings=Settings(poison_after=2))
    run = stage.trigger({"m": {"strategy": {"matrix": {"n": [1, 2]}}}})
    first = stage.claim("w1")
    stage.sweep(30)
    assert stage.claim("w2", labels=frozenset({"ubuntu-latest"})).job.id == first.job.id
    stage.sweep(30)
    ended = stage.job(run, first.job.key)
    assert (ended.conclusion, ended.reason_code) == ("failure", "unavailable")
    assert sorted(stage.phases(run).values()) == ["done", "queued"], "no fail-fast for what nobody could serve"
