"""A run is cancelled: conditions are looked at again, and what no longer holds is stopped (job-semantics 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runyard.run.evaluate import UnevaluableError
from runyard.run.graph import cancel_leg, cancel_node
from runyard.run.state import FinishRun, Why
from runyard.run.work import ROOT, Work

if TYPE_CHECKING:
    from runyard.job import Json
    from runyard.run.state import NodeState


def cancel_run(work: Work, *, force: bool, reason: str, code: str) -> None:
    """With grace: jobs whose condition still holds go on. By force: everything ends, nothing new starts."""
    if work.cancelling is None:
        work.cancelling, work.cancel_code = reason, code
    work.forced = work.forced or force
    why = Why("if", None, {"cancelled()": True})
    if work.phase in ("new", "pending"):
        work.phase = "done"
        work.conclusion = "cancelled"
        work.decisions.append(FinishRun("cancelled", why, reason, code))
        return
    if work.phase != "running":
        return
    _cancel_scope(work, ROOT, force=force, reason=reason, code=code)


def _cancel_scope(work: Work, scope_key: str, *, force: bool, reason: str, code: str) -> None:
    for node_key in work.scopes[scope_key].nodes:
        node = work.nodes[node_key]
        if force:
            cancel_node(work, node_key, Why("if", None, {"cancelled()": True}), reason, code, force=True)
        elif node.phase == "open":
            _cancel_node(work, node, reason=reason, code=code)


def _cancel_node(work: Work, node: NodeState, *, reason: str, code: str) -> None:
    job = work.job_of(node)
    values: dict[str, Json] = {}
    try:
        holds, values = work.evaluator.condition(job.condition, work.node_contexts(node), work.status(node))
    except UnevaluableError:
        holds = False
    why = Why("if", job.condition, values)
    for leg_key in node.legs:
        leg = work.legs[leg_key]
        if leg.phase == "open":
            _cancel_scope(work, leg_key, force=False, reason=reason, code=code)
        elif not holds:
            cancel_leg(work, leg_key, why, reason, code)
