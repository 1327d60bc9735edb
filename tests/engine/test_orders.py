"""Cancellation, drain, lost leases, job limits: what an order does to a running job (job-semantics 5; D3, D4)."""

from __future__ import annotations

from typing import Any

import pytest

from engine.scripted import Bench, Ran, Reply, by_script, claim
from runyard.engine.job import LeaseGone
from runyard.engine.wire import JobSettings
from runyard.job import Cancel, Drain, JobEvent, LeaseLost, Limits, Log, Order

LONG = Reply(output=b"begun\n", until="interrupt")


def begun(event: JobEvent) -> bool:
    return isinstance(event, Log) and event.kind == "output" and b"begun" in event.data


def ordered(order: Order, *steps: dict[str, Any], settings: JobSettings | None = None, **keys: Any) -> Ran:
    replies: dict[str, Reply] = {"long": LONG, **keys.pop("replies", {})}
    bench = Bench(by_script(replies), settings=settings)
    bench.order_when(begun, order)
    return bench.run(claim(*steps, **keys))


def test_cancel_stops_the_step_and_runs_what_asks_for_it() -> None:
    ran = ordered(
        Cancel(),
        {"run": "long"},
        {},
        {"if_": "failure()"},
        {"if_": "always()"},
        {"if_": "cancelled()"},
        {"if_": "success()"},
    )
    assert [outcome for outcome, _ in ran.outcomes()] == [
        "cancelled",
        "skipped",
        "skipped",
        "success",
        "success",
        "skipped",
    ]
    assert ran.finished.conclusion == "cancelled"
    assert ran.finished.reason_code == "cancelled_by_user"
    assert "##[error]The operation was canceled." in ran.log(1)


@pytest.mark.parametrize("condition", ["always()", "cancelled() || success()"], ids=["O17", "O17-other"])
def test_O17_a_step_whose_condition_still_holds_goes_on(condition: str) -> None:
    replies = {"long": Reply(output=(b"begun\n", b"still here\n"))}
    ran = ordered(Cancel(), {"run": "long", "if_": condition}, {}, replies=replies)
    assert ran.outcomes()[0] == ("success", "success")
    assert ran.session.steps[0].signals == []
    assert ran.finished.conclusion == "cancelled"


def test_O18_O37_conditions_after_a_cancellation() -> None:
    ran = ordered(Cancel(), {"run": "long"}, {"if_": "failure()"}, {"if_": "always()"})
    assert [outcome for outcome, _ in ran.outcomes()[1:]] == ["skipped", "success"]


def test_a_step_that_exits_0_when_cancelled_is_cancelled() -> None:
    replies = {"long": Reply(output=b"begun\n", until="interrupt", ends_itself=True)}
    ran = ordered(Cancel(), {"run": "long", "continue_on_error": True}, replies=replies)
    assert ran.outcomes() == [("cancelled", "cancelled")]


@pytest.mark.parametrize(
    ("until", "kinds"),
    [
        ("interrupt", ["interrupt"]),
        ("terminate", ["interrupt", "terminate"]),
        ("kill", ["interrupt", "terminate", "kill"]),
    ],
)
@pytest.mark.parametrize("strict", [False, True], ids=["D3", "D3-strict"])
def test_D3_the_ladder(until: Any, kinds: list[str], strict: bool) -> None:
    replies = {"long": Reply(output=b"begun\n", until=until)}
    ran = ordered(Cancel(), {"run": "long"}, replies=replies, strict=strict)
    signals = ran.session.steps[0].signals
    sent = [kind for kind, _ in signals]
    assert sent[: len(kinds)] == kinds
    assert all(everyone is not strict for _, everyone in signals)
    # By default what is left behind is killed; strictly only what does not end by itself.
    assert sent[len(kinds) :] == ([] if strict or until == "kill" else ["kill"])


def test_D3_the_next_rung_is_climbed_while_a_child_holds_the_output() -> None:
    replies = {"long": Reply(output=b"begun\n", until="interrupt", leaves_output_open=True)}
    ran = ordered(Cancel(), {"run": "long"}, replies=replies)
    assert [kind for kind, _ in ran.session.steps[0].signals] == ["interrupt", "terminate", "kill"]
    strict = ordered(Cancel(), {"run": "long"}, replies=replies, strict=True)
    assert [kind for kind, _ in strict.session.steps[0].signals] == ["interrupt"]


@pytest.mark.parametrize("until", ["terminate", "kill"])
def test_D3_a_process_without_output_has_the_same_waits(until: Any) -> None:
    replies = {"long": Reply(output=b"begun\n", until="interrupt", child_until=until)}
    ran = ordered(Cancel(), {"run": "long"}, replies=replies)
    assert [kind for kind, _ in ran.session.steps[0].signals] == ["interrupt", "terminate", "kill"]
    strict = ordered(Cancel(), {"run": "long"}, replies=replies, strict=True)
    assert strict.session.steps[0].signals == [("interrupt", False)]


def test_force_kills_at_once_and_runs_nothing_more() -> None:
    ran = ordered(
        Cancel(force=True),
        {"run": "long"},
        {"if_": "always()"},
        replies={"long": Reply(output=b"begun\n", until="kill")},
    )
    assert [kind for kind, _ in ran.session.steps[0].signals] == ["kill"]
    assert [outcome for outcome, _ in ran.outcomes()] == ["cancelled", "skipped"]
    assert ran.finished.conclusion == "cancelled"
    assert ran.session.closed == 1


def test_a_second_cancel_with_force_ends_the_clean_up() -> None:
    bench = Bench(by_script({"long": LONG, "clean": Reply(output=b"cleaning\n", until="kill")}))
    bench.order_when(begun, Cancel())
    bench.order_when(lambda e: isinstance(e, Log) and b"cleaning" in e.data and e.kind == "output", Cancel(force=True))
    ran = bench.run(claim({"run": "long"}, {"run": "clean", "if_": "always()"}, {"if_": "always()"}))
    assert [outcome for outcome, _ in ran.outcomes()] == ["cancelled", "cancelled", "skipped"]


def test_clean_up_has_a_budget_of_its_own() -> None:
    replies = {"clean": Reply(until="kill")}
    ran = ordered(
        Cancel(),
        {"run": "long"},
        {"run": "clean", "if_": "always()"},
        replies=replies,
        settings=JobSettings(clean_up_s=0.1),
    )
    assert [outcome for outcome, _ in ran.outcomes()] == ["cancelled", "cancelled"]
    assert ran.finished.conclusion == "cancelled"


def test_F28_a_job_that_reaches_its_limit_is_cancelled_and_says_which_limit() -> None:
    bench = Bench(by_script({"long": LONG}))
    limits = Limits(timeout_s=0, timeout_from="limit of pool `small`: 10 min")
    ran = bench.run(claim({"run": "long"}, {"if_": "always()"}, limits=limits))
    assert ran.finished.conclusion == "cancelled"
    assert ran.finished.reason == "limit of pool `small`: 10 min"
    assert ran.finished.reason_code == "timed_out"


def test_D4_a_drain_lets_the_job_go_on() -> None:
    replies = {"long": Reply(output=(b"begun\n", b"done\n"))}
    ran = ordered(Drain(timeout_s=20), {"run": "long"}, {}, replies=replies)
    assert ran.finished.conclusion == "success"


def test_D4_a_drain_that_lasts_too_long_cancels_with_clean_up() -> None:
    ran = ordered(Drain(timeout_s=0.02), {"run": "long"}, {"if_": "always()"})
    assert [outcome for outcome, _ in ran.outcomes()] == ["cancelled", "success"]
    assert ran.finished.conclusion == "cancelled"
    assert (ran.finished.reason, ran.finished.reason_code) == ("runner shutdown", "runner_shutdown")


def test_D4_strict_a_drain_fails_the_job_and_skips_even_always() -> None:
    ran = ordered(Drain(timeout_s=20), {"run": "long"}, {"if_": "always()"}, strict=True)
    assert [outcome for outcome, _ in ran.outcomes()] == ["cancelled", "skipped"]
    assert ran.finished.conclusion == "failure"
    assert ran.finished.reason_code == "runner_shutdown"


def test_a_lost_lease_ends_at_once_and_reports_nothing_more() -> None:
    bench = Bench(by_script({"long": Reply(output=b"begun\n", until="kill")}))
    bench.order_when(begun, LeaseLost("attempt 2 runs"))
    with pytest.raises(LeaseGone, match="attempt 2 runs"):
        bench.run(claim({"run": "long"}, {"if_": "always()"}))
    assert bench._sandbox.session.closed == 1
    assert len(bench._sandbox.session.steps) == 1
