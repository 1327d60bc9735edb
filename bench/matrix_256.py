"""Row matrix-256: 256 legs planned, from an evaluated plan to 256 job specs, against the same plan with one leg."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bench.figure import Figure, median
from runyard.job import ExpressionToken, NumberToken, RunContext, SequenceToken, TextToken
from runyard.job.template import Entry, MappingToken
from runyard.run import Begin, CreateJob, RunState, advance
from runyard.workflow.plan import JobPlan, RunPlan, StrategyPlan

if TYPE_CHECKING:
    from collections.abc import Iterator


def _plan(size: int) -> RunPlan:
    vector = SequenceToken(tuple(NumberToken(number) for number in range(size)))
    matrix = MappingToken(
        (Entry(TextToken("a"), vector), Entry(TextToken("b"), vector), Entry(TextToken("os"), _texts("linux")))
    )
    job = JobPlan(
        id="build",
        name=ExpressionToken("format('{0} on {1}', matrix.a, matrix.os)"),
        runs_on=ExpressionToken("format('{0}-latest', matrix.os)"),
        timeout_minutes=ExpressionToken("fromJSON('30')"),
        continue_on_error=ExpressionToken("matrix.b == 3"),
        strategy=StrategyPlan(matrix=matrix),
    )
    return RunPlan(path=".github/workflows/ci.yml", name="ci", event="push", jobs=(job,))


def _texts(*texts: str) -> SequenceToken:
    return SequenceToken(tuple(TextToken(text) for text in texts))


def _took_ms(size: int, times: int = 9) -> float:
    plan = _plan(size)
    state = RunState(run_id="1", context=RunContext(github={"ref": "refs/heads/main"}))
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        _, decisions = advance(plan, state, Begin(), 1)
        taken.append((time.perf_counter() - start) * 1000)
        assert sum(isinstance(each, CreateJob) for each in decisions) == size * size
    return median(taken)


def measure() -> Iterator[Figure]:
    """The median of nine."""
    one = _took_ms(1)
    yield Figure("matrix-256", "256 legs planned", _took_ms(16), "ms", one, "one leg", 120)
