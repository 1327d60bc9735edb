"""Builds plans from plain data and drives `advance` as a shell would, without executing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runyard.expression import parse_text, wrap_condition
from runyard.job import (
    BooleanToken,
    Entry,
    MappingToken,
    NullToken,
    NumberToken,
    RunContext,
    SequenceToken,
    Template,
)
from runyard.run import (
    Begin,
    CancelJob,
    CancelRequested,
    CreateJob,
    Decision,
    EndJob,
    Finished,
    FinishRun,
    Happening,
    RunOptions,
    RunState,
    Started,
    StartRun,
    advance,
)
from runyard.workflow.plan import (
    CalledPlan,
    CallPlan,
    ConcurrencyPlan,
    EnvironmentPlan,
    InputDefinition,
    JobPlan,
    RunPlan,
    StrategyPlan,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runyard.job import Conclusion, JobSpec

NOW = 1_900_000_000_000_000_000


def template(value: Any) -> Template:
    """A Template from plain data; text with braces is read as GitHub reads it."""
    match value:
        case None:
            return NullToken()
        case bool():
            return BooleanToken(value)
        case int() | float():
            return NumberToken(value)
        case str():
            return parse_text(value)
        case list():
            return SequenceToken(tuple(template(item) for item in value))
        case dict():
            entries = (Entry(parse_text(str(key)), template(item)) for key, item in value.items())
            return MappingToken(tuple(entries))
        case _:
            raise TypeError(value)


def maybe(value: Any) -> Template | None:
    return None if value is None else template(value)


def concurrency(value: Any) -> ConcurrencyPlan | None:
    if value is None:
        return None
    if isinstance(value, str):
        return ConcurrencyPlan(group=template(value))
    return ConcurrencyPlan(
        group=template(value["group"]),
        cancel_in_progress=maybe(value.get("cancel-in-progress")),
        queue=value.get("queue", "single"),
    )


def job_plan(job_id: str, job: Mapping[str, Any]) -> JobPlan:
    needs = job.get("needs", [])
    strategy = job.get("strategy")
    environment = job.get("environment")
    return JobPlan(
        id=job_id,
        needs=(needs,) if isinstance(needs, str) else tuple(needs),
        condition=wrap_condition(job.get("if")),
        condition_written=job.get("if"),
        name=maybe(job.get("name")),
        strategy=None
        if strategy is None
        else StrategyPlan(
            matrix=template(strategy["matrix"]) if "matrix" in strategy else None,
            fail_fast=maybe(strategy.get("fail-fast")),
            max_parallel=maybe(strategy.get("max-parallel")),
        ),
        runs_on=None if "uses" in job else template(job.get("runs-on", "ubuntu-latest")),
        environment=None if environment is None else EnvironmentPlan(name=template(environment)),
        concurrency=concurrency(job.get("concurrency")),
        permissions=job.get("permissions"),
        timeout_minutes=maybe(job.get("timeout-minutes")),
        continue_on_error=maybe(job.get("continue-on-error")),
        env=maybe(job.get("env")),
        call=_call(job) if "uses" in job else None,
    )


def _call(job: Mapping[str, Any]) -> CallPlan:
    called = job["uses"]
    secrets = job.get("secrets")
    return CallPlan(
        uses="./.github/workflows/called.yml",
        workflow=CalledPlan(
            path=".github/workflows/called.yml",
            inputs=tuple(
                InputDefinition(
                    name=name,
                    type=value.get("type", "string"),
                    required=value.get("required", False),
                    default=maybe(value.get("default")),
                )
                for name, value in called.get("inputs", {}).items()
            ),
            outputs=maybe(called.get("outputs")),
            env=maybe(called.get("env")),
            concurrency=concurrency(called.get("concurrency")),
            permissions=called.get("permissions"),
            jobs=tuple(job_plan(job_id, each) for job_id, each in called["jobs"].items()),
        ),
        inputs=maybe(job.get("with")),
        secrets=None if secrets in (None, "inherit") else template(secrets),
        inherit=secrets == "inherit",
    )


def run_plan(jobs: Mapping[str, Mapping[str, Any]], **more: Any) -> RunPlan:
    return RunPlan(
        path=".github/workflows/ci.yml",
        name=more.get("name", "CI"),
        event=more.get("event", "push"),
        jobs=tuple(job_plan(job_id, job) for job_id, job in jobs.items()),
        run_name=maybe(more.get("run_name")),
        env=maybe(more.get("env")),
        concurrency=concurrency(more.get("concurrency")),
        permissions=more.get("permissions"),
        inputs=more.get("inputs"),
        files=(".github/workflows/ci.yml",),
    )


def context(**more: Any) -> RunContext:
    github = {
        "event_name": "push",
        "ref": "refs/heads/main",
        "repository": "acme/app",
        "sha": "1" * 40,
        "run_id": "7",
        "head_ref": "",
        "workflow": "CI",
        "workflow_ref": "acme/app/.github/workflows/ci.yml@refs/heads/main",
        "workflow_sha": "1" * 40,
        **more.pop("github", {}),
    }
    return RunContext(github=github, **more)


class Drive:
    """A run and all that was decided in it."""

    def __init__(
        self,
        jobs: Mapping[str, Mapping[str, Any]] | RunPlan,
        *,
        options: RunOptions | None = None,
        run_context: RunContext | None = None,
        begin: bool = True,
        **plan: Any,
    ) -> None:
        self.plan = jobs if isinstance(jobs, RunPlan) else run_plan(jobs, **plan)
        self.state = RunState(run_id="7", context=run_context or context(), options=options or RunOptions())
        self.decisions: list[Decision] = []
        self.last: tuple[Decision, ...] = ()
        if begin:
            self.tell(Begin())

    def tell(self, happening: Happening, now: int = NOW) -> tuple[Decision, ...]:
        before = self.state
        self.state, self.last = advance(self.plan, self.state, happening, now)
        assert advance(self.plan, before, happening, now) == (self.state, self.last), (
            "the same arguments, another answer"
        )
        self.decisions += self.last
        return self.last

    def finish(self, key: str, conclusion: Conclusion = "success", **outputs: str) -> tuple[Decision, ...]:
        return self.tell(Finished(key, conclusion, outputs))

    def start(self, key: str) -> None:
        self.tell(Started(key))

    def cancel(self, *, force: bool = False) -> tuple[Decision, ...]:
        return self.tell(CancelRequested(force=force))

    def run(
        self, results: Mapping[str, Conclusion] | None = None, outputs: Mapping[str, dict[str, str]] | None = None
    ) -> Drive:
        """Finish created jobs in order until nothing runs; results and outputs by key, then by job."""
        while running := self.running:
            spec = running[0]
            result = (results or {}).get(spec.key, (results or {}).get(spec.job, "success"))
            given = (outputs or {}).get(spec.key, (outputs or {}).get(spec.job, {}))
            self.finish(spec.key, result, **given)
        return self

    @property
    def specs(self) -> list[JobSpec]:
        return [decision.spec for decision in self.decisions if isinstance(decision, CreateJob)]

    @property
    def running(self) -> list[JobSpec]:
        return [spec for spec in self.specs if self.state.legs[spec.key].phase in ("created", "running")]

    @property
    def created(self) -> list[str]:
        return [spec.key for spec in self.specs]

    @property
    def names(self) -> list[str]:
        return [spec.name for spec in self.specs]

    @property
    def ended(self) -> dict[str, str]:
        return {end.key: end.conclusion for end in self.decisions if isinstance(end, EndJob)}

    def end(self, key: str) -> EndJob:
        return next(end for end in self.decisions if isinstance(end, EndJob) and end.key == key)

    def creation(self, key: str) -> CreateJob:
        return next(made for made in self.decisions if isinstance(made, CreateJob) and made.key == key)

    @property
    def cancelled(self) -> list[str]:
        return [order.key for order in self.decisions if isinstance(order, CancelJob)]

    @property
    def conclusion(self) -> str | None:
        return next((end.conclusion for end in self.decisions if isinstance(end, FinishRun)), None)

    @property
    def finished(self) -> FinishRun:
        return next(end for end in self.decisions if isinstance(end, FinishRun))

    @property
    def started(self) -> StartRun:
        return next(start for start in self.decisions if isinstance(start, StartRun))
