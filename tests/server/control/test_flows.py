"""The flows, one after the other, over the store double."""

from __future__ import annotations

from typing import Any

from runyard.job import Cancel, JobFinished, Pause
from runyard.server.control import (
    Beaten,
    Call,
    HandOut,
    Refused,
    ResultTaken,
    accept_events,
    add_masks,
    cancel_job,
    check_fence,
    claim,
    explain_job,
    hand_back,
    heartbeat,
    order_job,
    planned_stop,
    read_masks,
    take_result,
    unlocked,
)
from runyard.server.control.sweep import next_due
from server.control.stage import REPOSITORY, Box, Stage, call_of

PAIR: dict[str, dict[str, Any]] = {"build": {}, "test": {"needs": "build"}}


def test_a_trigger_makes_its_runs_once() -> None:
    stage = Stage()
    first = stage.created(PAIR, key="push:1")
    again = stage.created(PAIR, key="push:1")
    assert again.runs == first.runs
    assert again.repeated
    assert stage.created(PAIR, key="push:2").runs != first.runs
    row = stage.run(first.runs[0])
    assert (row.phase, row.number, row.run_number, row.attempt) == ("running", 1, 1, 1)


def test_a_run_goes_through_its_jobs_to_its_end() -> None:
    stage = Stage()
    run = stage.trigger(PAIR)
    given = stage.claim()
    assert given.job.key == "build"
    assert given.context.github["run_id"] == "1"
    assert given.context.github["run_attempt"] == "1"
    stage.nothing()
    stage.begin(given)
    assert stage.phases(run) == {"build": "running"}
    assert stage.finish(given, artifact="yes") == ResultTaken(repeated=False)
    second = stage.claim("w2")
    assert second.spec.needs["build"].outputs == {"artifact": "yes"}
    stage.finish(second)
    assert stage.run(run).conclusion == "success"
    assert stage.do(lambda tx: tx.counts().total) == 0


def test_a_failed_need_skips_and_the_row_is_there_for_people() -> None:
    stage = Stage()
    run = stage.trigger(PAIR)
    assert stage.run_all({"build": "failure"}) == ["build"]
    assert stage.conclusions(run) == {"build": "failure", "test": "skipped"}
    assert stage.run(run).conclusion == "failure"
    assert "build: failure" in (stage.job(run, "test").reason or "")


def test_a_claim_id_again_gets_the_same_hand_out_while_it_lives() -> None:
    stage = Stage()
    stage.trigger({"a": {}, "b": {}})
    ask = stage.ask()
    first = stage.do(claim, stage.rules, ask)
    again = stage.do(claim, stage.rules, ask)
    assert isinstance(first, HandOut)
    assert isinstance(again, HandOut)
    assert (again.job, again.attempt, again.lease, again.spec) == (first.job, first.attempt, first.lease, first.spec)
    assert again.repeated
    stage.finish(first)
    over = stage.do(claim, stage.rules, ask)
    assert isinstance(over, Refused)
    assert over.code == "claim.over"


def test_the_platform_of_a_job_that_names_none_is_where_it_runs() -> None:
    stage = Stage()
    stage.trigger({"a": {}, "b": {"runs-on": ["self-hosted", "arm64"]}})
    given = stage.claim(platform="linux/riscv64")
    assert (given.job.key, given.spec.platform) == ("a", "linux/riscv64")
    stage.nothing(platform="linux/riscv64", labels=frozenset({"self-hosted", "arm64"}))
    given = stage.claim(platform="linux/arm64", labels=frozenset({"SELF-hosted", "arm64"}))
    assert (given.job.key, given.spec.platform) == ("b", "linux/arm64")


# --- leases


def test_a_hand_out_nobody_confirms_goes_to_the_next() -> None:
    stage = Stage()
    run = stage.trigger({"a": {}})
    first = stage.claim()
    assert stage.do(next_due) == stage.now + 30 * 10**9
    assert stage.sweep(29) == 0
    assert stage.sweep(1) == 1
    second = stage.claim("w2")
    assert second.attempt == 2
    assert isinstance(stage.beat(first), Refused)
    late = stage.finish(first)
    assert isinstance(late, Refused)
    assert late.code == "lease.over"
    assert stage.phases(run) == {"a": "leased"}
    assert stage.finish(second) == ResultTaken(repeated=False)
    endings = [row.ending for row in stage.do(lambda tx: tx.attempts(first.job.id))]
    assert endings == ["unconfirmed", "finished"]


def test_heartbeats_keep_a_lease_and_silence_ends_it() -> None:
    stage = Stage()
    stage.trigger({"a": {}})
    given = stage.claim()
    stage.begin(given)
    for _ in range(10):
        stage.wait(100)
        assert stage.sweep() == 0
        assert stage.beat(given) == Beaten(120.0)
    assert stage.sweep(120) == 1
    assert stage.job("1.1", "a").lost == 1
    assert isinstance(stage.beat(given), Refused)
    again = stage.claim("w2")
    stage.begin(again)
    assert stage.sweep(120) == 1
    job = stage.job("1.1", "a")
    assert (job.conclusion, job.reason_code) == ("failure", "lost")
    assert stage.run("1.1").conclusion == "failure"


def test_the_same_result_again_is_accepted_and_another_is_not() -> None:
    stage = Stage()
    stage.trigger({"a": {}})
    given = stage.claim()
    assert stage.finish(given) == ResultTaken(repeated=False)
    assert stage.finish(given) == ResultTaken(repeated=True)
    other = stage.finish(given, "failure")
    assert isinstance(other, Refused)
    assert other.code == "result.other"
    assert stage.run("1.1").conclusion == "success"


def test_a_lease_is_its_workers_alone() -> None:
    stage = Stage()
    stage.trigger({"a": {}})
    given = stage.claim()
    mine = call_of(given)
    for call in (
        Call(mine.job, mine.attempt, mine.lease, "w2"),
        Call(mine.job, mine.attempt, "guess", mine.worker),
        Call(mine.job, mine.attempt + 1, mine.lease, mine.worker),
    ):
        assert isinstance(stage.do(check_fence, call), Refused)
        assert isinstance(stage.do(heartbeat, stage.rules, call), Refused)
        assert isinstance(stage.do(hand_back, stage.rules, call, "no"), Refused)
        finished = JobFinished("success", stage.now)
        assert isinstance(stage.do(take_result, stage.rules, call, b"x", finished), Refused)
    unknown = stage.do(heartbeat, stage.rules, Call("nope", 1, "l", "w1"))
    assert isinstance(unknown, Refused)
    assert unknown.code == "job.unknown"
    assert not isinstance(stage.do(check_fence, mine), Refused)


def test_what_is_handed_back_is_queued_again_where_it_was() -> None:
    stage = Stage()
    stage.trigger({"a": {}, "b": {}})
    given = stage.claim()
    stage.begin(given)
    assert stage.do(hand_back, stage.rules, call_of(given), "draining") is None
    assert stage.do(hand_back, stage.rules, call_of(given), "draining") is None, "safe to repeat"
    assert stage.job("1.1", "a").lost == 0
    again = stage.claim("w2")
    assert (again.job.key, again.attempt) == ("a", 2)
    assert stage.do(hand_back, stage.rules, call_of(again), "broken", counted=True) is None
    assert stage.job("1.1", "a").lost == 1


def test_a_planned_stop_loses_nobody() -> None:
    stage = Stage()
    stage.trigger({"a": {}, "b": {}})
    first, second = stage.claim(), stage.claim("w2")
    stage.begin(first)
    assert stage.do(planned_stop, stage.rules, 600) == 2
    assert stage.sweep(599) == 0
    assert isinstance(stage.beat(first), Beaten)
    assert stage.finish(second) == ResultTaken(repeated=False)


# --- events, orders, masks


def test_events_are_taken_once_and_in_order() -> None:
    stage = Stage()
    stage.trigger({"a": {}})
    given = stage.claim()
    call = call_of(given)

    def send(first: int, *events: bytes) -> object:
        taken = stage.do(accept_events, stage.rules, call, first, list(events))
        return taken.expected if isinstance(taken, Refused) else taken.next

    assert stage.job("1.1", "a").phase == "leased"
    assert send(0, b"a", b"b") == 2
    assert stage.job("1.1", "a").phase == "running"
    assert send(0, b"a", b"b", b"c") == 3
    assert send(1, b"b") == 3
    assert send(5, b"x") == 3, "a gap answers what is wanted"
    rows = stage.do(lambda tx: tx.events(call.job, 1))
    assert [row.event for row in rows] == [b"a", b"b", b"c"]
    stage.sweep(400)
    refused = stage.do(accept_events, stage.rules, call, 3, [b"d"])
    assert isinstance(refused, Refused)
    assert refused.code == "lease.over"


def test_orders_are_repeated_until_they_were_seen() -> None:
    stage = Stage()
    stage.trigger({"a": {}})
    given = stage.claim()
    stage.begin(given)
    assert stage.do(order_job, stage.rules, given.job.id, Pause(), "root") is None
    assert stage.do(cancel_job, stage.rules, given.job.id, "root", reason="enough") is None
    for _ in range(2):
        beaten = stage.beat(given)
        assert isinstance(beaten, Beaten)
        assert [(each.number, each.order) for each in beaten.orders] == [(1, Pause()), (2, Cancel(reason="enough"))]
    beaten = stage.beat(given, seen=1)
    assert isinstance(beaten, Beaten)
    assert [each.number for each in beaten.orders] == [2]
    assert stage.beat(given, seen=2) == Beaten(120.0)
    assert stage.beat(given, seen=0) == Beaten(120.0), "an older heartbeat that comes late brings nothing back"


def test_secrets_are_in_the_hand_out_and_nowhere_in_the_store() -> None:
    stage = Stage(vault=Box(TOKEN="hunter2hunter2"))
    stage.trigger({"a": {}})
    given = stage.claim()
    assert given.secrets == {"TOKEN": "hunter2hunter2"}
    assert "hunter2" not in repr(given)
    assert stage.do(add_masks, stage.rules, call_of(given), ["made-in-job"]) == ("hunter2hunter2", "made-in-job")
    assert stage.do(read_masks, stage.rules, given.job.id, 1) == ("hunter2hunter2", "made-in-job")
    stage.finish(given)
    kept = repr({name: dict(table) for name, table in vars(stage.store.tables).items() if isinstance(table, dict)})
    assert "hunter2" not in kept
    assert "made-in-job" not in kept


def test_an_untrusted_run_gets_no_secret() -> None:
    stage = Stage(vault=Box(TOKEN="hunter2hunter2"))
    stage.trigger({"a": {}}, trust="untrusted")
    assert stage.claim().secrets == {}


def test_a_locked_vault_holds_jobs_with_that_reason_and_lets_them_go() -> None:
    box = Box(TOKEN="hunter2hunter2")
    stage = Stage(vault=box)
    run = stage.trigger({"a": {}})
    box.locked = True
    stage.nothing()
    assert stage.job(run, "a").holds == {"vault"}
    reason = stage.do(explain_job, stage.rules, stage.job(run, "a").id)
    assert reason is not None
    assert "runyard secret unlock acme/app" in reason.message
    stage.trigger({"b": {}})
    assert stage.job("2.1", "b").holds == {"vault"}
    stage.sweep()
    assert stage.job("2.1", "b").phase == "waiting"
    box.locked = False
    assert stage.do(unlocked, stage.rules, REPOSITORY, "root") == 2
    assert stage.claim().secrets


def test_a_sweep_finds_a_vault_that_was_unlocked_elsewhere() -> None:
    box = Box(TOKEN="hunter2hunter2")
    stage = Stage(vault=box)
    box.locked = True
    run = stage.trigger({"a": {}})
    box.locked = False
    stage.sweep()
    assert stage.job(run, "a").phase == "queued"
