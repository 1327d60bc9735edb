"""The transitions of nodes, legs and scopes: what opens, what starts, what ends, and what follows from that.

Only `advance` and `cancel` call in here. Everything works on a Work and leaves its decisions there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runyard.job import Conclusion, Position
from runyard.run.calls import call_outputs
from runyard.run.concurrency import Group, arrive, leave, same_group
from runyard.run.evaluate import UnevaluableError
from runyard.run.legs import Broken, Opened, open_node, plain_name
from runyard.run.matrix import MatrixError
from runyard.run.state import (
    CancelJob,
    CreateJob,
    EndJob,
    LegState,
    NodeState,
    RunOptions,
    ScopeState,
    Why,
)
from runyard.run.work import ROOT, Work

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from runyard.job import Json
    from runyard.workflow.plan import JobPlan


class Ending(msgspec.Struct, frozen=True):
    """How something ends without being executed."""

    conclusion: Conclusion
    why: Why
    reason: str
    code: str
    at: Position | None = None


_ACTIVE = ("pending", "created", "running", "open")


# --- scopes


def open_scope(work: Work, key: str, scope: ScopeState, jobs: Sequence[JobPlan]) -> None:
    """Make a scope and its waiting nodes; `settle` goes on from there."""
    ids = {job.id.lower(): job.id for job in jobs}
    nodes = []
    for job in jobs:
        node_key = work.node_path(key, job.id)
        nodes.append(node_key)
        needs = tuple(dict.fromkeys(ids[need.lower()] for need in job.needs))
        work.nodes[node_key] = NodeState(key, job.id, needs)
    work.scopes[key] = msgspec.structs.replace(scope, nodes=tuple(nodes))


def settle(work: Work) -> None:
    """Look at every waiting node whose needs ended, until nothing changes."""
    changed = True
    while changed:
        changed = False
        for key in [key for key, node in work.nodes.items() if node.phase == "waiting"]:
            node = work.nodes[key]
            if node.phase == "waiting" and all(work.nodes[need].phase == "done" for need in work.needs_of(node)):
                _decide_node(work, key, node)
                changed = True


# --- nodes


def _decide_node(work: Work, key: str, node: NodeState) -> None:
    options: RunOptions = work.before.options
    path = work.job_path(node)
    if options.jobs is not None and path not in options.jobs:
        end_node(work, key, Ending("skipped", Why("selected", None, {"job": path}), "not selected", "condition_false"))
        return
    job = work.job_of(node)
    try:
        runs, values = work.evaluator.condition(job.condition, work.node_contexts(node), work.status(node))
    except UnevaluableError as error:
        why = Why("if", job.condition)
        end_node(
            work, key, Ending("failure", why, f"if: {error.message}", "condition_error", error.at or job.condition_at)
        )
        return
    if job.condition_written is not None:
        why = Why("if", job.condition, values)
    elif node.needs:
        why = Why("needs", None, values)
    else:
        why = Why("trigger", None, {"github.event_name": work.plan.event})
    if not runs:
        _skip(work, key, node, why)
        return
    try:
        opened = open_node(work, key, node)
    except UnevaluableError as error:
        at = error.at or (job.strategy.at if job.strategy else None) or job.at
        end_node(
            work,
            key,
            Ending(
                "failure", Why("matrix"), f"the strategy of job '{job.id}': {error.message}", "evaluation_error", at
            ),
        )
        return
    except MatrixError as error:
        at = job.strategy.at if job.strategy else job.at
        end_node(work, key, Ending("failure", Why("matrix"), str(error), "evaluation_error", at))
        return
    _start_node(work, key, why, opened)


def _skip(work: Work, key: str, node: NodeState, why: Why) -> None:
    results = {job_id: work.nodes[work.node_path(node.scope, job_id)].result for job_id in work.ancestors(node)}
    bad = [f"{job_id}: {result}" for job_id, result in results.items() if result != "success"]
    if work.is_cancelled(node.scope):
        reason = work.cancelling or "the call was cancelled"
        end_node(work, key, Ending("cancelled", why, reason, work.cancel_code if work.cancelling else "fail_fast"))
    elif why.values.get("success()") is False and bad:
        why = Why("needs", why.condition, {**why.values, **{f"needs.{job}.result": results[job] for job in results}})
        end_node(work, key, Ending("skipped", why, f"a need did not succeed ({', '.join(bad)})", "needs_failed"))
    else:
        end_node(work, key, Ending("skipped", why, f"the condition is false: {why.condition}", "condition_false"))


def _start_node(work: Work, key: str, why: Why, opened: Opened) -> None:
    legs = opened.legs
    if not legs:
        wanted = Why("matrix", None, dict(work.before.options.matrix))
        end_node(work, key, Ending("skipped", wanted, "no combination is selected", "condition_false"))
        return
    keys = tuple(leg.key if isinstance(leg, Broken) else leg[0] for leg in legs)
    work.set_node(key, phase="open", legs=keys, fail_fast=opened.fail_fast, max_parallel=opened.max_parallel)
    broken = []
    for leg in legs:
        if isinstance(leg, Broken):
            work.legs[leg.key] = LegState(key, "held", leg.name, matrix=leg.matrix)
            broken.append(leg)
        else:
            work.legs[leg[0]] = leg[1]
    for leg in broken:
        _tell_end(
            work, leg.key, Ending("failure", Why("matrix" if leg.matrix else "if"), leg.message, leg.code, leg.at)
        )
        end_leg(work, leg.key, "failure", {}, release=False)
    _release(work, key, why)


def _release(work: Work, key: str, why: Why | None = None) -> None:
    """Start held legs while max-parallel allows it."""
    node = work.nodes[key]
    active = sum(work.legs[leg].phase in _ACTIVE for leg in node.legs)
    for leg_key in node.legs:
        if active >= node.max_parallel:
            return
        if work.legs[leg_key].phase == "held":
            _start_leg(work, leg_key, why or Why("limit", None, {"max-parallel": node.max_parallel}))
            active += work.legs[leg_key].phase in _ACTIVE


def end_node(work: Work, key: str, ending: Ending) -> None:
    """End a node that never had legs, as one job."""
    node = work.nodes[key]
    scope = work.scopes[node.scope]
    name = plain_name(work.job_of(node))
    _told(work, node, ending, key=key, name=f"{scope.name} / {name}" if scope.name else name, matrix=scope.matrix)
    work.set_node(key, phase="done", result=ending.conclusion)
    _close_scope(work, node.scope)


# --- legs


def _start_leg(work: Work, key: str, why: Why) -> None:
    """Join the leg's groups in order; once it holds them all, create the job or open the call."""
    leg = work.legs[key]
    for index in range(leg.joined, len(leg.groups)):
        request = leg.groups[index]
        name = same_group(request.group)
        knot = _knot(work, key, name)
        if knot is not None:
            reason = f"concurrency group '{request.group}' is held by {knot}, which waits for this job"
            _end_early(work, key, Why("concurrency", None, {"group": request.group}), reason)
            return
        arrival = arrive(
            work.groups.get(name, Group()), key, cancel_in_progress=request.cancel_in_progress, queue=request.queue
        )
        work.groups[name] = arrival.group
        why_group = Why("concurrency", None, {"group": request.group, "newcomer": key})
        for other in arrival.cancel_waiting:
            _end_early(work, other, why_group, f"a newer job waits in concurrency group '{request.group}'")
        if work.legs[key].phase == "done":
            return  # the end of the other released a sibling, which took this one's place
        if arrival.verdict == "cancelled":
            _end_early(work, key, why_group, f"concurrency group '{request.group}' is full")
            return
        if arrival.verdict == "waits":
            work.set_leg(key, phase="pending")
            if arrival.cancel_holder is not None:
                reason = f"a newer job of concurrency group '{request.group}' takes its place"
                cancel_leg(work, arrival.cancel_holder, why_group, reason, "concurrency")
            return
        leg = work.set_leg(key, joined=index + 1)
    if leg.call:
        _open_call(work, key, leg)
        return
    assert leg.spec is not None
    work.decisions.append(CreateJob(leg.spec, why, leg.secrets, shown_matrix(work, leg)))
    work.set_leg(key, phase="created", spec=None, secrets=())


def _open_call(work: Work, key: str, leg: LegState) -> None:
    node = work.nodes[leg.node]
    call = work.job_of(node).call
    assert call is not None
    work.set_leg(key, phase="open")
    path = (*work.scopes[node.scope].path, node.job)
    scope = ScopeState(path, leg.name, shown_matrix(work, leg), leg.inputs, leg.secrets, leg.permissions)
    open_scope(work, key, scope, call.workflow.jobs)


def shown_matrix(work: Work, leg: LegState) -> Json:
    """A leg's own combination over those of the calls it stands in."""
    around = work.scopes[work.scope_of_leg(leg)].matrix
    if not isinstance(around, dict):
        return leg.matrix
    return {**around, **leg.matrix} if isinstance(leg.matrix, dict) else around


def _knot(work: Work, key: str, group: str) -> str | None:
    """Who would keep this leg waiting for ever: a holder of the group that itself waits for this leg to end."""
    if work.group is not None and same_group(work.group.group) == group:
        return "the run itself"
    holder = work.groups.get(group, Group()).holder
    if holder is None or holder == key:
        return None
    above = set(_above(work, key))
    seen: set[str] = set()
    queue = [holder]
    while queue:
        other = queue.pop()
        if other in above:
            return f"'{work.legs[holder].name}'"
        if other in seen:
            continue
        seen.add(other)
        queue += _waited_for(work, other)
    return None


def _above(work: Work, key: str) -> Iterable[str]:
    while key:
        yield key
        key = work.scope_of_leg(work.legs[key])


def _waited_for(work: Work, key: str) -> list[str]:
    """Holders that a leg, or a pending leg inside it, waits for."""
    waited = []
    for other, leg in work.legs.items():
        if leg.phase == "pending" and key in _above(work, other):
            holder = work.groups[same_group(leg.groups[leg.joined].group)].holder
            if holder is not None:
                waited.append(holder)
    return waited


def _told(work: Work, node: NodeState, ending: Ending, *, key: str, name: str, matrix: Json) -> None:
    path = work.job_path(node)
    work.decisions.append(
        EndJob(key, path, name, ending.conclusion, ending.why, ending.reason, ending.code, matrix, ending.at)
    )


def _tell_end(work: Work, key: str, ending: Ending) -> None:
    leg = work.legs[key]
    _told(work, work.nodes[leg.node], ending, key=key, name=leg.name, matrix=shown_matrix(work, leg))


def _end_early(work: Work, key: str, why: Why, reason: str, code: str = "concurrency", *, release: bool = True) -> None:
    """Cancel a leg that was never created."""
    _tell_end(work, key, Ending("cancelled", why, reason, code))
    end_leg(work, key, "cancelled", {}, release=release)


def end_leg(
    work: Work,
    key: str,
    conclusion: Conclusion,
    outputs: Mapping[str, str],
    *,
    release: bool = True,
    unserved: bool = False,
) -> None:
    """A leg ended: its groups go on, its siblings are released or cancelled, its node ends with the last leg."""
    leg = work.legs[key]
    if leg.phase == "done":
        return
    leg = work.set_leg(key, phase="done", conclusion=conclusion, spec=None, secrets=(), inputs=None)
    heirs = _leave_groups(work, leg, key)
    node = work.nodes[leg.node]
    kept = {name: value for name, value in outputs.items() if value or name not in node.outputs}
    if kept and (not leg.call or conclusion == "success"):
        node = work.set_node(leg.node, outputs={**node.outputs, **kept})
    if conclusion == "failure" and not leg.tolerated and node.fail_fast and not unserved and len(node.legs) > 1:
        why = Why("matrix", None, {"strategy.fail-fast": True, "failed": leg.name})
        for sibling in node.legs:
            cancel_leg(work, sibling, why, f"fail-fast: {leg.name} failed", "fail_fast")
    for heir, group in heirs:
        if work.legs[heir].phase == "pending":
            work.set_leg(heir, phase="held", joined=work.legs[heir].joined + 1)
            _start_leg(work, heir, Why("concurrency", None, {"group": group}))
    if all(work.legs[sibling].phase == "done" for sibling in node.legs):
        if work.nodes[leg.node].phase != "done":
            _close_node(work, leg.node)
    elif release:
        _release(work, leg.node)


def _leave_groups(work: Work, leg: LegState, key: str) -> list[tuple[str, str]]:
    heirs = []
    for request in leg.groups[: leg.joined + 1]:
        name = same_group(request.group)
        group = work.groups.get(name)
        if group is None:
            continue
        group, heir = leave(group, key)
        if heir is not None:
            heirs.append((heir, request.group))
        if group.is_free:
            del work.groups[name]
        else:
            work.groups[name] = group
    return heirs


def _close_node(work: Work, key: str) -> None:
    node = work.nodes[key]
    legs = [work.legs[leg] for leg in node.legs]
    results = {"success" if leg.tolerated and leg.conclusion == "failure" else leg.conclusion for leg in legs}
    work.set_node(key, phase="done", result=aggregate(results))
    _close_scope(work, node.scope)


def aggregate(results: set[Conclusion | None]) -> Conclusion:
    """One result for several: failure before cancelled before success; all skipped is skipped."""
    if "failure" in results:
        return "failure"
    if "cancelled" in results:
        return "cancelled"
    return "skipped" if results == {"skipped"} else "success"


def _close_scope(work: Work, key: str) -> None:
    """The leg that calls ends with the last node of its scope."""
    if key == ROOT or work.legs[key].phase == "done":
        return
    nodes = [work.nodes[node] for node in work.scopes[key].nodes]
    if any(node.phase != "done" for node in nodes):
        return
    conclusion = aggregate({node.result for node in nodes})
    called = work.called_of(key)
    assert called is not None
    jobs = {node.job: {"result": node.result, "outputs": node.outputs} for node in nodes}
    outputs: dict[str, str] = {}
    try:
        outputs = call_outputs(work.evaluator, called, work.scopes[key].inputs, jobs)
    except UnevaluableError as error:
        conclusion = "failure"
        ending = Ending(conclusion, Why("needs"), f"outputs: {error.message}", "evaluation_error", error.at)
        _tell_end(work, key, ending)
    end_leg(work, key, conclusion, outputs)


# --- cancelling


def cancel_leg(work: Work, key: str, why: Why, reason: str, code: str, *, force: bool = False) -> None:
    """Stop a leg whatever its condition says: ended if it wasn't created, told if it was, all of it if it is a call."""
    leg = work.legs[key]
    if leg.phase in ("held", "pending"):
        _end_early(work, key, why, reason, code, release=False)
    elif leg.phase in ("created", "running"):
        level = 2 if force else 1
        if leg.cancel_sent < level:
            work.set_leg(key, cancel_sent=level)
            work.decisions.append(CancelJob(key, why, reason, code, force))
    elif leg.phase == "open":
        work.set_scope(key, ended=True)
        for node_key in work.scopes[key].nodes:
            cancel_node(work, node_key, why, reason, code, force=force)


def cancel_node(work: Work, key: str, why: Why, reason: str, code: str, *, force: bool = False) -> None:
    """The same for a node and all its legs."""
    node = work.nodes[key]
    if node.phase == "waiting":
        end_node(work, key, Ending("cancelled", why, reason, code))
        return
    for leg in node.legs:
        cancel_leg(work, leg, why, reason, code, force=force)
