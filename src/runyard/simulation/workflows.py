"""Workflows from a seed: needs, conditions, matrices, calls, concurrency groups, labels, environments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from runyard.expression import parse_text, wrap_condition
from runyard.job import BooleanToken, Entry, MappingToken, NumberToken, RunContext, SequenceToken
from runyard.workflow.plan import (
    CalledPlan,
    CallPlan,
    ConcurrencyPlan,
    EnvironmentPlan,
    JobPlan,
    RunPlan,
    StrategyPlan,
)

if TYPE_CHECKING:
    from random import Random

    from runyard.job import Template

REPOSITORIES: Final = ("acme/app", "acme/lib", "zoo/site")
LABELS: Final = (("ubuntu-latest",), ("ubuntu-latest",), ("self-hosted", "gpu"), ("self-hosted", "arm64"))
GROUPS: Final = ("deploy", "Pages", "cache")
POOL: Final = "builders"
CONDITIONS: Final = (None, None, None, None, "always()", "failure()", "!cancelled()")


def template(value: Any) -> Template:
    """A Template from plain data."""
    match value:
        case bool():
            return BooleanToken(value)
        case int():
            return NumberToken(value)
        case list():
            return SequenceToken(tuple(template(item) for item in value))
        case dict():
            return MappingToken(tuple(Entry(parse_text(str(key)), template(item)) for key, item in value.items()))
        case _:
            return parse_text(str(value))


def plan(random: Random, number: int) -> RunPlan:
    """A workflow of one to seven jobs."""
    jobs: list[JobPlan] = []
    for index in range(random.choice((1, 2, 2, 3, 3, 4, 5, 7))):
        needs = tuple(job.id for job in jobs if random.random() < 0.35)
        if random.random() < 0.1 and index:
            jobs.append(_call(random, index, needs))
        else:
            jobs.append(_job(random, f"j{index}", needs))
    return RunPlan(
        path=f".github/workflows/w{number % 3}.yml",
        name=f"w{number % 3}",
        event="push",
        jobs=tuple(jobs),
        concurrency=_group(random, 0.2),
        files=(f".github/workflows/w{number % 3}.yml",),
    )


def context(repository: str) -> RunContext:
    """What a run of that repository sees."""
    return RunContext(
        github={
            "event_name": "push",
            "ref": "refs/heads/main",
            "repository": repository,
            "sha": "1" * 40,
            "workflow": "w",
        }
    )


def _job(random: Random, job_id: str, needs: tuple[str, ...]) -> JobPlan:
    condition = random.choice(CONDITIONS)
    strategy = None
    if random.random() < 0.2:
        strategy = StrategyPlan(
            matrix=template({"n": list(range(random.choice((2, 3))))}),
            fail_fast=template(random.random() < 0.6),
            max_parallel=template(random.choice((1, 2))) if random.random() < 0.3 else None,
        )
    return JobPlan(
        id=job_id,
        needs=needs,
        condition=wrap_condition(condition),
        condition_written=condition,
        strategy=strategy,
        runs_on=template(list(random.choice(LABELS))),
        environment=EnvironmentPlan(name=template("production")) if random.random() < 0.25 else None,
        concurrency=_group(random, 0.2),
        continue_on_error=template(True) if random.random() < 0.1 else None,
    )


def _call(random: Random, index: int, needs: tuple[str, ...]) -> JobPlan:
    inner = [_job(random, "x", ()), _job(random, "y", ("x",))]
    called = CalledPlan(path=".github/workflows/called.yml", concurrency=_group(random, 0.3), jobs=tuple(inner))
    secrets = template({"passed": random.choice(("${{ secrets.TOKEN }}", "${{ fromJSON(secrets.TOKEN) }}"))})
    uses = "./.github/workflows/called.yml"
    call = CallPlan(uses=uses, workflow=called, secrets=secrets, inherit=random.random() < 0.3)
    return JobPlan(id=f"c{index}", needs=needs, call=call)


def _group(random: Random, chance: float) -> ConcurrencyPlan | None:
    if random.random() >= chance:
        return None
    return ConcurrencyPlan(
        group=template(random.choice(GROUPS)),
        cancel_in_progress=template(True) if random.random() < 0.3 else None,
        queue="max" if random.random() < 0.3 else "single",
    )
