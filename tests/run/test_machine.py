"""Hypothesis walks random runs: no job before its needs or twice, every run ends, a forced cancel reaches all."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from run.drive import Drive
from runyard.run import CancelJob, CreateJob, EndJob, FinishRun, Tick

_IDS = ["a", "b", "c", "d", "e"]
_CONDITIONS = [None, None, "always()", "failure()", "!cancelled()", "false", "cancelled()", "fromJSON('[')"]
_MATRICES: list[dict[str, Any] | None] = [
    None,
    None,
    {"matrix": {"v": [1, 2]}},
    {"matrix": {"v": [1, 2, 3]}, "max-parallel": 1},
    {"matrix": {"v": [1, 2]}, "fail-fast": False},
    {"matrix": {"v": []}},
]
_GROUPS = [None, None, "g", "h", {"group": "g", "cancel-in-progress": True}, {"group": "h", "queue": "max"}]


@st.composite
def jobs(draw: st.DrawFn, depth: int = 0) -> dict[str, Any]:
    """A random acyclic graph; some jobs call another."""
    made: dict[str, Any] = {}
    for job_id in _IDS[: draw(st.integers(1, 5 if depth == 0 else 3))]:
        job: dict[str, Any] = {
            "needs": draw(st.lists(st.sampled_from(list(made)), unique=True, max_size=2)) if made else [],
            "if": draw(st.sampled_from(_CONDITIONS)),
            "strategy": draw(st.sampled_from(_MATRICES)),
            "concurrency": draw(st.sampled_from(_GROUPS)),
        }
        if depth < 2 and draw(st.integers(0, 3)) == 0:
            job["uses"] = {"jobs": draw(jobs(depth + 1)), "concurrency": draw(st.sampled_from(_GROUPS))}
        else:
            job["continue-on-error"] = draw(st.booleans())
        made[job_id] = job
    return made


class Runs(RuleBasedStateMachine):
    """One run; rules are what its jobs and people do."""

    drive: Drive

    @initialize(graph=jobs())
    def begin(self, graph: dict[str, Any]) -> None:
        self.drive = Drive(graph)
        self.forced = False

    def _alive(self) -> bool:
        return self.drive.conclusion is None

    @precondition(lambda self: self._alive() and self.drive.running)
    @rule(data=st.data(), conclusion=st.sampled_from(["success", "failure", "cancelled", "skipped"]))
    def finish_one(self, data: st.DataObject, conclusion: Any) -> None:
        spec = data.draw(st.sampled_from(self.drive.running))
        self.drive.finish(spec.key, conclusion, out=conclusion)
        assert self.drive.finish(spec.key, "failure") == ()

    @precondition(lambda self: self._alive() and self.drive.running)
    @rule(data=st.data())
    def start_one(self, data: st.DataObject) -> None:
        self.drive.start(data.draw(st.sampled_from(self.drive.running)).key)

    @precondition(lambda self: self._alive())
    @rule(force=st.booleans())
    def cancel(self, force: bool) -> None:
        self.forced = force or self.drive.state.cancelling is not None
        created = len(self.drive.created)
        self.drive.cancel(force=force)
        if self.forced:
            assert len(self.drive.created) == created, "nothing starts after a forced cancel"
            told = {order.key for order in self.drive.decisions if isinstance(order, CancelJob) and order.force}
            assert {spec.key for spec in self.drive.running} <= told, "a forced cancel reaches every job"

    @rule()
    def time_goes_by(self) -> None:
        before = self.drive.state
        self.drive.tell(Tick())
        assert self.drive.state == before, "settled runs stay as they are"

    @invariant()
    def no_job_before_its_needs(self) -> None:
        if not hasattr(self, "drive"):
            return
        state = self.drive.state
        for node in state.nodes.values():
            if node.legs and node.phase == "open":
                prefix = f"{node.scope}/" if node.scope else ""
                assert all(state.nodes[prefix + need].phase == "done" for need in node.needs)

    @invariant()
    def no_job_twice(self) -> None:
        if not hasattr(self, "drive"):
            return
        made = self.drive.created
        ended = [end.key for end in self.drive.decisions if isinstance(end, EndJob)]
        assert len(made) == len(set(made))
        assert len(ended) == len(set(ended))
        assert not set(made) & set(ended)

    @invariant()
    def one_member_holds_a_group(self) -> None:
        if not hasattr(self, "drive"):
            return
        for group in self.drive.state.groups.values():
            assert group.holder is not None
            assert group.holder not in group.waiting
            assert self.drive.state.legs[group.holder].phase != "done"

    @invariant()
    def it_is_over_when_nothing_runs(self) -> None:
        if hasattr(self, "drive"):
            assert self.drive.running or self.drive.conclusion is not None

    def teardown(self) -> None:
        if not hasattr(self, "drive"):
            return
        self.drive.run()
        assert self.drive.conclusion is not None
        assert sum(isinstance(each, FinishRun) for each in self.drive.decisions) == 1
        assert isinstance(self.drive.decisions[-1], FinishRun)
        assert all(node.phase == "done" for node in self.drive.state.nodes.values())
        assert not self.drive.state.groups
        keys = [each.key for each in self.drive.decisions if isinstance(each, CreateJob)]
        again = Drive(self.drive.plan)
        first = [each.key for each in again.decisions if isinstance(each, CreateJob)]
        assert first == keys[: len(first)]


TestRuns = Runs.TestCase
TestRuns.settings = settings(
    max_examples=60, stateful_step_count=12, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
