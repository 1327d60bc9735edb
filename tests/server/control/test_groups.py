"""Concurrency groups across runs: whole runs, jobs, calls, and knots that nobody would ever undo."""

from __future__ import annotations

from typing import Any

from runyard.job import Cancel
from runyard.server.control import Beaten, cancel_run, explain_job
from server.control.stage import Stage, call_of

GROUPED: dict[str, dict[str, Any]] = {"ship": {"concurrency": "Deploy"}}


def test_runs_of_one_group_go_one_after_the_other() -> None:
    stage = Stage()
    first = stage.trigger({"a": {}}, concurrency="main")
    second = stage.trigger({"a": {}}, concurrency="MAIN")
    assert (stage.run(first).phase, stage.run(second).phase) == ("running", "pending")
    given = stage.claim()
    stage.nothing()
    stage.finish(given)
    assert stage.run(second).phase == "running"
    stage.run_all()
    assert stage.run(second).conclusion == "success"
    assert stage.store.tables.groups == {}


def test_the_newest_that_waits_takes_the_place_of_the_one_before() -> None:
    stage = Stage()
    runs = [stage.trigger({"a": {}}, concurrency="g") for _ in range(3)]
    assert [stage.run(run).phase for run in runs] == ["running", "done", "pending"]
    ended = stage.run(runs[1])
    assert (ended.conclusion, ended.reason_code) == ("cancelled", "concurrency")
    assert "a newer run of it takes its place: 3.1" in (ended.reason or "")


def test_a_newer_run_cancels_the_one_in_progress_where_it_says_so() -> None:
    stage = Stage()
    group = {"group": "g", "cancel-in-progress": True}
    first = stage.trigger({"a": {}}, concurrency=group)
    given = stage.claim()
    stage.begin(given)
    second = stage.trigger({"a": {}}, concurrency=group)
    beaten = stage.beat(given)
    assert isinstance(beaten, Beaten)
    assert [type(each.order) for each in beaten.orders] == [Cancel]
    assert stage.run(second).phase == "pending", "the holder keeps the group until it has left"
    stage.finish(given, "cancelled")
    assert stage.run(first).conclusion == "cancelled"
    assert stage.run(second).phase == "running"


def test_jobs_of_two_runs_share_a_group_and_the_one_that_waits_says_for_whom() -> None:
    stage = Stage()
    stage.trigger(GROUPED)
    second = stage.trigger(GROUPED)
    given = stage.claim()
    stage.nothing("w2")
    waiting = stage.job(second, "ship")
    assert waiting.holds == {"concurrency"}
    reason = stage.do(explain_job, stage.rules, waiting.id)
    assert reason is not None
    assert reason.message == "it waits for concurrency group Deploy, which ship of run 1 holds"
    stage.finish(given)
    stage.finish(stage.claim("w2"))
    assert stage.run(second).conclusion == "success"


def test_groups_of_other_repositories_are_other_groups() -> None:
    stage = Stage()
    stage.trigger(GROUPED)
    stage.trigger(GROUPED, repository="acme/lib")
    assert stage.claim().job.repository != stage.claim().job.repository


def test_a_waiting_job_that_is_cancelled_leaves_its_place() -> None:
    stage = Stage()
    stage.trigger(GROUPED)
    waits = {"ship": {"concurrency": {"group": "deploy", "queue": "max"}}}
    second, third = stage.trigger(waits), stage.trigger(waits)
    stage.do(cancel_run, stage.rules, second, "root")
    assert stage.run(second).conclusion == "cancelled"
    stage.finish(stage.claim())
    assert stage.claim().job.run_id == third


def test_a_call_holds_its_group_until_its_last_job_ended() -> None:
    called = {"jobs": {"x": {}, "y": {"needs": "x"}}, "concurrency": "pages"}
    stage = Stage()
    first = stage.trigger({"call": {"uses": called}})
    second = stage.trigger({"call": {"uses": called}})
    assert stage.job(second, "call/x").holds == {"concurrency"}
    stage.finish(stage.claim())
    assert stage.job(second, "call/x").phase == "waiting", "y has still to come"
    given = stage.claim()
    assert given.job.key == "call/y"
    stage.finish(given)
    assert stage.run(first).conclusion == "success"
    assert stage.run_all() == ["call/x", "call/y"]
    assert stage.store.tables.groups == {}


def test_a_knot_between_runs_is_cut_at_the_newcomer() -> None:
    stage = Stage()
    stage.trigger({"first": {}, "then": {"needs": "first", "concurrency": "two"}}, concurrency="one")
    other = {"first": {}, "then": {"needs": "first", "concurrency": "one"}}
    second = stage.trigger(other, concurrency="two")
    held = [stage.claim(), stage.claim()]
    for given in held:
        stage.finish(given)
    cut = stage.job(second, "then")
    assert (cut.conclusion, cut.reason_code) == ("cancelled", "concurrency")
    assert "which waits for this job" in (cut.reason or "")
    assert stage.run_all() == ["then"]
    assert {run.phase for run in stage.store.tables.runs.values()} == {"done"}


def test_a_lost_holder_lets_the_group_go_when_it_ends() -> None:
    stage = Stage()
    stage.trigger(GROUPED)
    second = stage.trigger(GROUPED)
    for _ in range(2):
        given = stage.claim()
        assert given.job.run_id == "1.1"
        stage.begin(given)
        assert call_of(given).attempt == given.attempt
        stage.sweep(121)
    assert stage.job("1.1", "ship").reason_code == "lost"
    assert stage.claim().job.run_id == second
