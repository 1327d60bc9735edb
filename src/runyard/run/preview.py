"""What a run would do, without doing it: each job with the decision as far as it is known before anything ran.

The run's own first step decides what it can; for jobs that wait for results the answer is `later`, unless it is certain
already that they are skipped. `runs` is false only then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runyard.expression import ExpressionError, calls_status_function, references_of, template_references
from runyard.job import JobSpec, Json
from runyard.run.advance import advance
from runyard.run.evaluate import Status, UnevaluableError
from runyard.run.graph import shown_matrix
from runyard.run.legs import Broken, open_node, plain_name
from runyard.run.matrix import MatrixError
from runyard.run.state import Admitted, Begin, CreateJob, EndJob, FinishRun, LegState, RunState, Why
from runyard.run.work import Work
from runyard.workflow.plan import JobPlan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runyard.run.state import NodeState
    from runyard.workflow.plan import RunPlan


class PreviewJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a plan, `plan` as written; `spec` is None where it isn't known yet.

    `failed` jobs end when they are planned; they are no skipped ones, so `runs` is true for them.
    """

    key: str
    job: str
    name: str
    matrix: Json
    needs: tuple[str, ...]
    runs: bool
    reason: str | None
    why: Why
    plan: JobPlan
    spec: JobSpec | None = None
    failed: bool = False


class Preview(msgspec.Struct, frozen=True):
    """A run before it began; `problem` is set where the run itself can't start."""

    jobs: tuple[PreviewJob, ...]
    problem: FinishRun | None = None


def preview(plan: RunPlan, state: RunState) -> Preview:
    """The jobs of a new run, in file order; legs and called jobs stand where their job does. Pure, safe to repeat."""
    state, decisions = advance(plan, state, Begin(), 1)
    if state.phase == "pending":
        state, more = advance(plan, state, Admitted(), 1)
        decisions += more
    ended = {each.key: each for each in decisions if isinstance(each, EndJob)}
    created = {each.key: each for each in decisions if isinstance(each, CreateJob)}
    if not state.scopes:
        return Preview((), next((each for each in decisions if isinstance(each, FinishRun)), None))
    return Preview(tuple(_Preview(Work(plan, state, 1), ended, created).scope("")))


class _Preview:
    def __init__(self, work: Work, ended: dict[str, EndJob], created: dict[str, CreateJob]) -> None:
        self.work = work
        self.ended = ended
        self.created = created
        self._skipped: dict[str, Why | None] = {}

    def scope(self, key: str) -> Iterator[PreviewJob]:
        for node_key in self.work.scopes[key].nodes:
            yield from self._node(node_key, self.work.nodes[node_key])

    def _node(self, key: str, node: NodeState) -> Iterator[PreviewJob]:
        if key in self.ended:
            yield self._ended(self.ended[key], node)
        for leg_key in node.legs:
            leg = self.work.legs[leg_key]
            if leg.phase == "open":
                yield from self.scope(leg_key)
            elif leg_key in self.ended:
                yield self._ended(self.ended[leg_key], node)
            elif leg.phase != "done":
                yield self._leg(leg_key, leg, node)
        if node.phase == "waiting":
            yield from self._waiting(key, node)

    def _ended(self, end: EndJob, node: NodeState) -> PreviewJob:
        return PreviewJob(
            key=end.key,
            job=end.job,
            name=end.name,
            matrix=end.matrix,
            needs=node.needs,
            runs=end.conclusion == "failure",
            reason=end.reason,
            why=end.why,
            plan=self.work.job_of(node),
            failed=end.conclusion == "failure",
        )

    def _leg(self, key: str, leg: LegState, node: NodeState) -> PreviewJob:
        made = self.created.get(key)
        if made is not None:
            why, reason = made.why, None
        elif leg.phase == "held":
            why = Why("limit", None, {"max-parallel": node.max_parallel})
            reason = f"waits: max-parallel is {node.max_parallel}"
        else:
            group = leg.groups[leg.joined].group
            why, reason = Why("concurrency", None, {"group": group}), f"waits for concurrency group '{group}'"
        return self._job(key, leg, node, why, reason=reason, spec=made.spec if made is not None else leg.spec)

    def _job(  # noqa: PLR0917 - one record, made in one place
        self, key: str, leg: LegState, node: NodeState, why: Why, reason: str | None, spec: JobSpec | None
    ) -> PreviewJob:
        return PreviewJob(
            key=key,
            job=self.work.job_path(node),
            name=leg.name,
            matrix=shown_matrix(self.work, leg),
            needs=node.needs,
            runs=True,
            reason=reason,
            why=why,
            plan=self.work.job_of(node),
            spec=spec,
        )

    # --- jobs that wait for results

    def _waiting(self, key: str, node: NodeState) -> Iterator[PreviewJob]:
        job = self.work.job_of(node)
        certain = self._certainly_skipped(key, node)
        if certain is not None:
            yield self._static(key, node, job, certain, runs=False)
            return
        condition = None if job.condition_written is None else job.condition
        why = Why("later", condition, {f"needs.{need}.result": self._known(node, need) for need in node.needs})
        for leg_key, leg in self._legs(key, node, job):
            if leg is None:
                yield self._static(key, node, job, why, runs=True)
            elif not leg.call:
                yield self._job(leg_key, leg, node, why, reason="depends on its needs", spec=leg.spec)
            else:
                yield from self._called(
                    leg_key, job, self.work.job_path(node), leg.name, why=why, matrix=shown_matrix(self.work, leg)
                )

    def _known(self, node: NodeState, need: str) -> Json:
        return self.work.nodes[self.work.node_path(node.scope, need)].result

    def _static(self, key: str, node: NodeState, job: JobPlan, why: Why, *, runs: bool) -> PreviewJob:
        scope = self.work.scopes[node.scope]
        name = plain_name(job)
        reason = "depends on its needs" if runs else _skip_reason(why)
        return PreviewJob(
            key=key,
            job=self.work.job_path(node),
            name=f"{scope.name} / {name}" if scope.name else name,
            matrix=scope.matrix,
            needs=node.needs,
            runs=runs,
            reason=reason,
            why=why,
            plan=job,
        )

    def _called(self, key: str, job: JobPlan, path: str, name: str, *, why: Why, matrix: Json) -> Iterator[PreviewJob]:
        assert job.call is not None
        for called in job.call.workflow.jobs:
            called_path = f"{path}/{called.id}"
            called_name = f"{name} / {plain_name(called)}"
            if called.call is not None:
                yield from self._called(f"{key}/{called.id}", called, called_path, called_name, why=why, matrix=matrix)
            else:
                yield PreviewJob(
                    key=f"{key}/{called.id}",
                    job=called_path,
                    name=called_name,
                    matrix=matrix,
                    needs=called.needs,
                    runs=True,
                    reason="depends on its needs",
                    why=why,
                    plan=called,
                )

    def _legs(self, key: str, node: NodeState, job: JobPlan) -> list[tuple[str, LegState | None]]:
        """The legs where the strategy doesn't look at results; one unknown leg where it does."""
        strategy = job.strategy
        try:
            for template in (strategy.matrix, strategy.fail_fast, strategy.max_parallel) if strategy else ():
                if "needs" in template_references(template).contexts:
                    return [(key, None)]
            opened = open_node(self.work, key, node)
        except (ExpressionError, UnevaluableError, MatrixError):
            return [(key, None)]
        return [
            (leg.key, LegState(key, "held", leg.name, matrix=leg.matrix)) if isinstance(leg, Broken) else leg
            for leg in opened.legs
        ]

    def _certainly_skipped(self, key: str, node: NodeState) -> Why | None:
        """Why the job can't run whatever its needs' results will be; None where it may."""
        if key not in self._skipped:
            self._skipped[key] = None
            self._skipped[key] = self._why_skipped(node)
        return self._skipped[key]

    def _why_skipped(self, node: NodeState) -> Why | None:
        work = self.work
        selected = work.before.options.jobs
        path = work.job_path(node)
        if selected is not None and path not in selected:
            return Why("selected", None, {"job": path})
        job = work.job_of(node)
        written = job.condition_written
        implicit = written is None or not calls_status_function(written_condition(job))
        if implicit:
            for need in work.ancestors(node):
                needed = work.nodes[work.node_path(node.scope, need)]
                lost = needed.result if needed.phase == "done" and needed.result != "success" else None
                if needed.phase == "waiting" and self._certainly_skipped(work.node_path(node.scope, need), needed):
                    lost = "skipped"
                if lost is not None:
                    condition = None if written is None else job.condition
                    return Why("needs", condition, {"success()": False, f"needs.{need}.result": lost})
        used = references_of(job.condition)
        if "needs" in used.contexts or (not implicit and used.functions & {"success", "failure"}):
            return None
        try:
            holds, values = work.evaluator.condition(job.condition, work.node_contexts(node), Status(False, {}))
        except UnevaluableError:
            return None
        return None if holds else Why("if", job.condition, values)


def written_condition(job: JobPlan) -> str:
    """The condition as an expression: it is stored wrapped, and wrapping adds a status function where there is none."""
    condition = job.condition
    prefix = "success() && ("
    return condition[len(prefix) : -1] if condition.startswith(prefix) and condition.endswith(")") else condition


def _skip_reason(why: Why) -> str:
    if why.rule == "selected":
        return "not selected"
    if why.rule == "needs":
        bad = ", ".join(
            f"{path.split('.')[1]}: {value}" for path, value in why.values.items() if path.startswith("needs.")
        )
        return f"a need does not succeed ({bad})"
    return f"the condition is false: {why.condition}"
