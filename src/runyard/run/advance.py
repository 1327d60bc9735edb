"""One step of a run: a plan, a state and a happening give the next state and what is to be done.

Pure, and the only place where a run's jobs come to be: `runyard run` and a server both call it. Rules it keeps: no job
before its needs ended, none twice, every run ends once its jobs do, a forced cancel reaches everything, and the same
plan gives the same keys. Its transitions: a node goes waiting → open → done, a leg held → pending → created → running
→ done (a call: held → pending → open → done).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runyard.run.cancel import cancel_run
from runyard.run.evaluate import UnevaluableError
from runyard.run.graph import end_leg, open_scope, settle
from runyard.run.legs import evaluate_group
from runyard.run.naming import run_name
from runyard.run.state import (
    Admitted,
    Begin,
    CancelRequested,
    Decision,
    Finished,
    FinishRun,
    RunState,
    ScopeState,
    Started,
    StartRun,
    Tick,
    Why,
)
from runyard.run.work import ROOT, Work

if TYPE_CHECKING:
    from runyard.job import Conclusion
    from runyard.run.state import Happening
    from runyard.workflow.plan import RunPlan

RUN_LIMIT_NS: Final = 35 * 24 * 3600 * 1_000_000_000
"""A run, waiting included, ends after 35 days (workflow-language 16)."""


def advance(plan: RunPlan, state: RunState, happening: Happening, now: int) -> tuple[RunState, tuple[Decision, ...]]:
    """The next state, and the decisions to carry out in their order. `now` is int64 nanoseconds UTC.

    Safe to repeat with the same arguments: the answer is equal. A happening that no longer matters (a job that ended
    already, an unknown key, anything after the end) changes nothing. Raises nothing for what a workflow holds: what
    can't be evaluated fails its job or its run, with a place.
    """
    if state.phase == "done":
        return state, ()
    work = Work(plan, state, now)
    match happening:
        case Begin():
            if state.phase == "new":
                _begin(work)
        case Admitted():
            if state.phase == "pending":
                _open_run(work)
        case Started(key):
            leg = work.legs.get(key)
            if leg is not None and leg.phase == "created":
                work.set_leg(key, phase="running")
        case Finished(key, conclusion, outputs, unserved):
            leg = work.legs.get(key)
            if leg is not None and leg.phase in ("created", "running"):
                end_leg(work, key, conclusion, outputs, unserved=unserved)
        case CancelRequested(force, reason, code):
            cancel_run(work, force=force or work.cancelling is not None, reason=reason, code=code)
        case Tick():
            pass
    if work.started_ns and now - work.started_ns > RUN_LIMIT_NS and not work.forced:
        cancel_run(work, force=True, reason="The run was older than 35 days.", code="timed_out")
    if work.phase == "running":
        settle(work)
        _finish(work)
    return work.frozen(), tuple(work.decisions)


def _begin(work: Work) -> None:
    plan = work.plan
    work.started_ns = work.now
    try:
        work.name = run_name(work)
        if plan.concurrency is not None:
            inputs = {} if plan.inputs is None else plan.inputs
            work.group = evaluate_group(work, plan.concurrency, {"inputs": inputs}, "concurrency")
    except UnevaluableError as error:
        _end(work, "failure", Why("trigger"), _placed(work, error), "evaluation_error")
        return
    rule: Why = Why("trigger", None, {"github.event_name": plan.event})
    if work.group is not None:
        rule = Why("concurrency", None, {"group": work.group.group})
    work.decisions.append(StartRun(work.name, rule, work.group))
    if work.group is None:
        _open_run(work)
    else:
        work.phase = "pending"


def _placed(work: Work, error: UnevaluableError) -> str:
    if error.at is None or not 0 < error.at.file <= len(work.plan.files):
        return error.message
    return f"{work.plan.files[error.at.file - 1]}:{error.at.line}:{error.at.column}: {error.message}"


def _open_run(work: Work) -> None:
    work.phase = "running"
    open_scope(work, ROOT, ScopeState(inputs=work.plan.inputs), work.plan.jobs)


def _finish(work: Work) -> None:
    nodes = [work.nodes[key] for key in work.scopes[ROOT].nodes]
    if any(node.phase != "done" for node in nodes):
        return
    results = {node.job: node.result for node in nodes}
    why = Why("needs", None, {f"jobs.{job}.result": result for job, result in results.items()})
    if "failure" in results.values():
        failed = [job for job, result in results.items() if result == "failure"]
        _end(work, "failure", why, f"failed: {', '.join(failed)}", None)
    elif work.cancelling is not None:
        _end(work, "cancelled", why, work.cancelling, work.cancel_code)
    elif "cancelled" in results.values():
        cancelled = [job for job, result in results.items() if result == "cancelled"]
        _end(work, "cancelled", why, f"cancelled: {', '.join(cancelled)}", None)
    elif set(results.values()) == {"skipped"}:
        _end(work, "skipped", why, "all jobs were skipped", None)
    else:
        _end(work, "success", why, None, None)


def _end(work: Work, conclusion: Conclusion, why: Why, reason: str | None, code: str | None) -> None:
    work.phase = "done"
    work.conclusion = conclusion
    work.decisions.append(FinishRun(conclusion, why, reason, code))
