"""`runyard sim` as people and programs meet it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from click.testing import CliRunner, Result

from runyard.cli import sim
from runyard.simulation.invariants import Watch
from runyard.simulation.world import every_transition

if TYPE_CHECKING:
    import pytest


def told(*arguments: str) -> Result:
    return CliRunner().invoke(sim.command, list(arguments), standalone_mode=False)


def test_one_seed_is_told_in_text() -> None:
    result = told("--seed", "7")
    assert result.return_value == 0
    assert result.output.startswith("one history\n")
    assert "transitions visited:" in result.output
    assert "queued, claimed" in result.output
    assert told("--seed", "7").output == result.output


def test_many_seeds_are_told_as_one_document() -> None:
    result = told("--seed", "3", "--seeds", "4", "--json")
    document = json.loads(result.output)
    assert document["seeds"] == 4
    assert document["failures"] == []
    assert set(document["transitions"]) | set(document["never"]) == set(every_transition())
    assert told("--seed", "3", "--seeds", "4", "--format", "json").output == result.output


def test_a_broken_promise_is_exit_1_with_the_command_that_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watch, "problems", lambda self: ["two leases for one job"])
    result = told("--seed", "5", "--seeds", "2", "--json")
    assert result.return_value == 1
    failures = json.loads(result.output)["failures"]
    assert [each["replay"] for each in failures] == ["runyard sim --seed 5", "runyard sim --seed 6"]
    assert "two leases for one job" in failures[0]["problem"]
    assert "runyard sim --seed 5" in told("--seed", "5").output
