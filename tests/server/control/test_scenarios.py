"""A scenario gives the same list of decisions on the command line and on the server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from run.drive import Drive, context
from runyard.job import JobSpec
from runyard.run import CancelJob, CreateJob, EndJob, FinishRun, StartRun
from runyard.server.control import (
    HandOut,
    Rules,
    claim,
)
from server.control.stage import REPOSITORY, Stage

PAIR: dict[str, dict[str, Any]] = {"build": {}, "test": {"needs": "build"}}


SCENARIOS: dict[str, dict[str, Any]] = {
    "needs": PAIR,
    "failing": {"a": {}, "b": {"needs": "a", "if": "failure()"}, "c": {"needs": "a"}},
    "matrix": {"m": {"strategy": {"matrix": {"n": [1, 2, 3]}, "max-parallel": 2}}, "z": {"needs": "m"}},
    "call": {"call": {"uses": {"jobs": {"x": {}, "y": {"needs": "x"}}}}, "after": {"needs": "call"}},
    "tolerated": {"a": {"continue-on-error": True}, "b": {"needs": "a"}},
    "groups": {"a": {"concurrency": "g"}, "b": {"concurrency": "g"}, "c": {"concurrency": "g"}},
    "broken": {"a": {"if": "fromJSON('{')"}, "b": {}},
}


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("results", [{}, {"a": "failure", "m": "failure", "build": "failure", "call/x": "failure"}])
def test_a_scenario_gives_the_same_decisions_locally_and_on_the_server(name: str, results: dict[str, Any]) -> None:
    jobs = SCENARIOS[name]
    stage = Stage()
    run = stage.trigger(jobs)
    local = Drive(jobs)
    while isinstance(given := stage.do(claim, stage.rules, stage.ask()), HandOut):
        result = results.get(given.spec.job, "success")
        stage.begin(given)
        stage.finish(given, result, made="yes")
        local.start(given.job.key)
        local.finish(given.job.key, result, made="yes")
        for key in [each.key for each in local.last if isinstance(each, CancelJob)]:
            local.finish(key, "cancelled")  # it waited for a slot: nobody has to be told, here or there
    assert [_plain(each) for _, each in stage.decisions] == [_plain(each) for each in local.decisions]
    assert stage.run(run).conclusion == local.conclusion


def _plain(decision: Any) -> Any:
    """A decision without what names one run."""
    match decision:
        case CreateJob(spec):
            spec = msgspec.structs.replace(spec, id="", run_id="", platform="")
            return msgspec.structs.replace(decision, spec=spec)
        case StartRun() | EndJob() | FinishRun():
            return decision
        case _:
            return decision


def test_a_spec_keeps_its_digest_whatever_run_it_belongs_to() -> None:
    stage = Stage()
    stage.trigger({"a": {}})
    stage.trigger({"a": {}})
    digests = {given.spec.digest() for given in (stage.claim(), stage.claim())}
    assert len(digests) == 1
    assert isinstance(stage.rules, Rules)
    assert context().github["repository"] == REPOSITORY
    assert JobSpec.__struct_config__.frozen
