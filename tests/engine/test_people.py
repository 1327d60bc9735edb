"""What somebody outside learns and decides while a job runs: refused destinations (D17), a pause at a failed step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from engine.scripted import Bench, Ran, Reply, ScriptedNetwork, by_script, claim
from runyard.engine.state import JobHooks
from runyard.engine.wire import JobSettings
from runyard.job import Refusal

if TYPE_CHECKING:
    from runyard.engine.state import Frame
    from runyard.engine.wire import PauseAction


class Person(JobHooks):
    """Answers one choice after the other."""

    def __init__(self, *choices: PauseAction) -> None:
        self.choices = list(choices)

    async def pause(self, frame: Frame) -> PauseAction:
        return self.choices.pop(0)


def paused(*choices: PauseAction) -> tuple[Ran, Person]:
    person = Person(*choices)
    bench = Bench(
        by_script({"bad": Reply(code=3)}), hooks=person, settings=JobSettings(pause_on_failure=True, network="none")
    )
    given = claim(
        {"run": "bad", "id": "b"}, {"run": "after"}, {"run": "clean", "if_": "always()"}, outputs={"o": "${{ 1 }}"}
    )
    return bench.run(given), person


def test_going_on_leaves_the_rest_of_the_job_to_its_conditions() -> None:
    ran, _ = paused("go_on")
    assert [outcome for outcome, _ in ran.outcomes()] == ["failure", "skipped", "success"]
    assert ran.finished.outputs == {"o": "1"}


def test_giving_up_runs_nothing_more_and_the_job_failed() -> None:
    ran, _ = paused("give_up")
    assert [outcome for outcome, _ in ran.outcomes()] == ["failure", "skipped", "skipped"]
    assert ran.finished.conclusion == "failure"
    assert ran.finished.reason_code == "exit_code"
    assert ran.finished.outputs == {}
    assert "given up" in ran.log(1, "runner")
    assert ran.session.closed == 1


def test_giving_up_after_a_retry() -> None:
    ran, person = paused("retry", "retry", "give_up")
    assert person.choices == []
    assert len(ran.session.steps) == 3


@pytest.mark.parametrize("strict", [False, True], ids=["D17", "D17-strict"])
def test_D17_a_refused_destination_is_a_line_and_an_event_in_the_failed_step(strict: bool) -> None:
    bench = Bench(by_script({"bad": Reply(code=7)}), settings=JobSettings(network="public"))
    refused = ScriptedNetwork(("10.0.0.1:80", "a private address"), ("s3cret.example:25", "this port"))
    bench.session.network = refused
    ran = bench.run(claim({"run": "bad"}, secrets={"S": "s3cret"}, strict=strict))
    assert [(e.step, e.destination) for e in ran.events if isinstance(e, Refusal)] == [
        (1, "10.0.0.1:80"),
        (1, "***.example:25"),
    ]
    assert "The network level public refused 10.0.0.1:80: a private address" in ran.log(1, "runner")
    assert "s3cret" not in ran.log()


def test_D17_what_was_refused_without_a_failure_is_told_at_the_end() -> None:
    bench = Bench(settings=JobSettings(network="public"))
    bench.session.network = ScriptedNetwork(("10.0.0.1:80", "a private address"))
    ran = bench.run(claim({"run": "good"}))
    assert ran.finished.conclusion == "success"
    assert [e.step for e in ran.events if isinstance(e, Refusal)] == [2]


@pytest.mark.parametrize(("keep", "hung_up"), [(False, 1), (True, 0)])
def test_the_network_begins_to_end_after_the_last_step_unless_the_sandbox_may_be_kept(keep: bool, hung_up: int) -> None:
    bench = Bench(settings=JobSettings(network="public", keep=keep))
    network = bench.session.network = ScriptedNetwork(("10.0.0.1:80", "a private address"))
    ran = bench.run(claim({"run": "good"}))
    assert network.hung_up == hung_up
    assert [e.step for e in ran.events if isinstance(e, Refusal)] == [2], "what was refused is still told"
