"""Five hundred histories, each from one number; and that a broken rule would be seen in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from runyard.cli.sim import summed
from runyard.dispatch import explain, fit, life
from runyard.server.control.driver import Driver
from runyard.simulation import simulate

if TYPE_CHECKING:
    from collections.abc import Callable

    from runyard.dispatch.happenings import Effect
    from runyard.dispatch.records import Job

SEEDS = 500
AT_ONCE = 25


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_every_promise_holds_in_every_history(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        report = simulate(seed)
        assert report.problem is None, f"{report.problem}\nreplay: runyard sim --seed {seed}"


def test_histories_go_where_the_table_goes() -> None:
    report = summed(simulate(seed) for seed in range(1000, 1040))
    visited = len(report.transitions) / (len(report.transitions) + len(report.never))
    assert visited > 0.75, report.never
    assert {"success", "failure", "cancelled", "skipped"} <= set(report.conclusions)
    assert {"worker crash", "server crash", "partition", "clock jump"} <= set(report.happened)


def test_a_seed_replays_exactly_in_another_process() -> None:
    ours = summed(simulate(seed) for seed in range(40, 52))
    told = subprocess.run(
        [sys.executable, "-m", "runyard.cli.main", "sim", "--seed", "40", "--seeds", "12", "--json"],
        env={**os.environ, "PYTHONHASHSEED": "1234"},
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    assert told.returncode == 0, told.stderr.decode()
    theirs = json.loads(told.stdout)
    assert (theirs["history"], theirs["commits"]) == (ours.history, ours.commits)


# --- broken on purpose, and the seed from which on it shows


def _no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "_fenced", lambda job, happening: None)


def _groups_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Driver, "_leave", lambda self, *args: None)


def _groups_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    from runyard.dispatch.happenings import Cleared

    def ask(self: Driver, job: Job) -> None:
        now = self.tx.job(job.id)
        assert now is not None
        self.happen(now, Cleared("concurrency"))

    monkeypatch.setattr(Driver, "ask_for_groups", ask)


def _no_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "_is_reached", lambda count, bound: False)


def _ends_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    follow = Driver._follow

    def forgets(self: Driver, before: Job, job: Job, effect: Effect, outputs: dict[str, str]) -> None:
        if not (type(effect).__name__ == "Ended" and job.attempt > 1):
            follow(self, before, job, effect, outputs)

    monkeypatch.setattr(Driver, "_follow", forgets)


def _short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "lease_s", lambda kind, settings: 60.0)


def _unconfirmed_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    due = life._due

    def never(job: Job, at: Any) -> Job:
        found = due(job, at)
        unconfirmed = found.lease is not None and not found.lease.confirmed
        return life._with(found, due_ns=0) if unconfirmed else found

    monkeypatch.setattr(life, "_due", never)


def _reasons_that_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "is_taken_by", lambda worker, job, view: True)


@pytest.mark.parametrize(
    ("broken", "first"),
    [
        (_no_fence, 0),
        (_groups_are_kept, 0),
        (_groups_are_ignored, 0),
        (_no_bounds, 0),
        (_ends_are_not_told, 0),
        (_short_leases, 70),
        (_unconfirmed_for_ever, 15),
        (_reasons_that_guess, 0),
    ],
)
def test_a_broken_rule_is_seen(
    broken: Callable[[pytest.MonkeyPatch], None], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    problems = (simulate(seed).problem for seed in range(first, first + 40))
    assert any(problem is not None for problem in problems), "no history noticed"
