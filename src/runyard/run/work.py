"""The state of a run while one happening is worked in, and the questions that every transition asks of it.

`Work` is a mutable copy that never leaves `advance`: it is filled from a frozen RunState and frozen again at the end.
What jobs may see (`needs`, inputs, results of ancestors) is answered here and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from runyard.run.evaluate import Evaluator, Status
from runyard.run.state import Decision, LegState, NodeState, RunState, ScopeState

if TYPE_CHECKING:
    from runyard.job import Conclusion, Json
    from runyard.workflow.plan import CalledPlan, JobPlan, RunPlan

ROOT = ""
_State = TypeVar("_State", ScopeState, NodeState, LegState)


class Work:
    """One step of a run. `decisions` grow in the order in which they are to be carried out."""

    def __init__(self, plan: RunPlan, state: RunState, now: int) -> None:
        self.plan = plan
        self.before = state
        self.now = now
        self.phase = state.phase
        self.name = state.name
        self.group = state.group
        self.started_ns = state.started_ns
        self.cancelling = state.cancelling
        self.cancel_code = state.cancel_code
        self.forced = state.forced
        self.conclusion = state.conclusion
        self.scopes = dict(state.scopes)
        self.nodes = dict(state.nodes)
        self.legs = dict(state.legs)
        self.groups = dict(state.groups)
        self.decisions: list[Decision] = []
        self.evaluator = Evaluator(state.context, strict=state.options.strict_github)
        self._jobs: dict[str, dict[str, JobPlan]] = {}
        self._ancestors: dict[tuple[tuple[str, ...], str], tuple[str, ...]] = {}

    def frozen(self) -> RunState:
        """The state after this step."""
        return msgspec.structs.replace(
            self.before,
            phase=self.phase,
            name=self.name,
            group=self.group,
            started_ns=self.started_ns,
            cancelling=self.cancelling,
            cancel_code=self.cancel_code,
            forced=self.forced,
            conclusion=self.conclusion,
            scopes=self.scopes,
            nodes=self.nodes,
            legs=self.legs,
            groups=self.groups,
        )

    # --- the plan behind a state

    def jobs_of(self, scope_key: str) -> dict[str, JobPlan]:
        """The jobs as written in a scope, by id in lower case, in file order."""
        found = self._jobs.get(scope_key)
        if found is None:
            jobs = self.plan.jobs
            for job_id in self.scopes[scope_key].path:
                call = next(job for job in jobs if job.id == job_id).call
                assert call is not None
                jobs = call.workflow.jobs
            found = self._jobs[scope_key] = {job.id.lower(): job for job in jobs}
        return found

    def job_of(self, node: NodeState) -> JobPlan:
        """The job as written of a node."""
        return self.jobs_of(node.scope)[node.job.lower()]

    def called_of(self, scope_key: str) -> CalledPlan | None:
        """The called workflow that a scope is an instance of; None for the run itself."""
        path = self.scopes[scope_key].path
        jobs, called = self.plan.jobs, None
        for job_id in path:
            call = next(job for job in jobs if job.id == job_id).call
            assert call is not None
            called = call.workflow
            jobs = called.jobs
        return called

    def scope_of_leg(self, leg: LegState) -> str:
        """The key of the scope a leg stands in."""
        return self.nodes[leg.node].scope

    def job_path(self, node: NodeState) -> str:
        """`caller/called`, as events and `--job` name a job."""
        return "/".join((*self.scopes[node.scope].path, node.job))

    def node_path(self, scope_key: str, job_id: str) -> str:
        """The key of a node: the calling leg's key and the job id."""
        return f"{scope_key}/{job_id}" if scope_key else job_id

    # --- what a job may see

    def is_cancelled(self, scope_key: str) -> bool:
        """Whether the run, or a call that this scope belongs to, is being cancelled."""
        if self.cancelling is not None:
            return True
        while scope_key:
            if self.scopes[scope_key].ended:
                return True
            scope_key = self.scope_of_leg(self.legs[scope_key])
        return False

    def needs_of(self, node: NodeState) -> list[str]:
        """Keys of the nodes that a node needs directly."""
        return [self.node_path(node.scope, job_id) for job_id in node.needs]

    def ancestors(self, node: NodeState) -> tuple[str, ...]:
        """Ids of all direct and transitive needs, nearest first."""
        at = (self.scopes[node.scope].path, node.job)
        found = self._ancestors.get(at)
        if found is None:
            jobs = self.jobs_of(node.scope)
            seen: dict[str, None] = {}
            queue = list(node.needs)
            while queue:
                job_id = queue.pop(0)
                if job_id not in seen:
                    seen[job_id] = None
                    queue += [jobs[need.lower()].id for need in jobs[job_id.lower()].needs]
            found = self._ancestors[at] = tuple(seen)
        return found

    def status(self, node: NodeState) -> Status:
        """What the status functions of a job's `if` answer for this node."""
        results: dict[str, Conclusion] = {}
        for job_id in self.ancestors(node):
            result = self.nodes[self.node_path(node.scope, job_id)].result
            if result is not None:
                results[job_id] = result
        return Status(cancelled=self.is_cancelled(node.scope), results=results)

    def node_contexts(self, node: NodeState) -> dict[str, Json]:
        """`needs` and `inputs`, beside what belongs to the whole run."""
        needs = {}
        for job_id in node.needs:
            needed = self.nodes[self.node_path(node.scope, job_id)]
            needs[job_id] = {"result": needed.result, "outputs": needed.outputs}
        return {"needs": needs, "inputs": self.inputs_of(node.scope)}

    def inputs_of(self, scope_key: str) -> Json:
        """The `inputs` context of a scope; empty where there are none."""
        inputs = self.scopes[scope_key].inputs
        return {} if inputs is None else inputs

    # --- changing parts

    def set_scope(self, key: str, **changes: object) -> ScopeState:
        """Replace fields of a scope."""
        self.scopes[key] = msgspec.structs.replace(self.scopes[key], **changes)
        return self.scopes[key]

    def set_node(self, key: str, **changes: object) -> NodeState:
        """Replace fields of a node."""
        self.nodes[key] = msgspec.structs.replace(self.nodes[key], **changes)
        return self.nodes[key]

    def set_leg(self, key: str, **changes: object) -> LegState:
        """Replace fields of a leg."""
        self.legs[key] = msgspec.structs.replace(self.legs[key], **changes)
        return self.legs[key]
