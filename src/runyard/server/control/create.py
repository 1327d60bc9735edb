"""A trigger becomes runs, once: the unique row and the runs are one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runyard.dispatch.records import Hold, Trust
from runyard.job import RunContext
from runyard.run import Begin, RunOptions, RunState
from runyard.server.control.codec import digest, encode, encode_state
from runyard.server.control.driver import ANY, Driver
from runyard.server.store.rows import Run, Trigger
from runyard.workflow.plan import RunPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runyard.server.control.rules import Rules
    from runyard.server.store.port import Transaction


class NewTrigger(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What happened: `key` is the same for the same happening however often it is told."""

    key: str
    repository: str
    event: str
    payload_digest: str = ""


class NewRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One workflow to run for it. `approval`: it waits until somebody approves it.

    `context.github` gets `run_id`, `run_number` and `run_attempt` here; the caller fills in the rest.
    """

    plan: RunPlan
    context: RunContext
    ref: str
    sha: str
    options: RunOptions = RunOptions()
    trust: Trust = "trusted"
    approval: bool = False
    priority: int = 0


class Created(msgspec.Struct, frozen=True):
    """The row ids of the runs; `repeated`: the trigger was there before, these are the runs it led to."""

    runs: tuple[str, ...]
    repeated: bool = False


def create_runs(tx: Transaction, rules: Rules, trigger: NewTrigger, wanted: Sequence[NewRun]) -> Created:
    """The runs of a trigger, begun, their first jobs in the queue. Safe to repeat: the same key leads to the same."""
    row = Trigger(
        key=trigger.key,
        repository=trigger.repository,
        event=trigger.event,
        created_ns=tx.now_ns(),
        payload_digest=trigger.payload_digest,
    )
    if not tx.insert_trigger(row):
        known = tx.trigger(trigger.key)
        return Created(known.runs if known is not None else (), repeated=True)
    driver = Driver(tx, rules)
    made = tuple(_insert(tx, rules, trigger, each) for each in wanted)
    tx.set_trigger_runs(trigger.key, made)
    for run_id in made:
        driver.tell(run_id, Begin())
    driver.settle()
    return Created(made)


def row_id(number: int, attempt: int) -> str:
    """The id of one attempt of a run."""
    return f"{number}.{attempt}"


def with_numbers(context: RunContext, number: int, run_number: int, attempt: int) -> RunContext:
    """The context of one attempt of a run."""
    github = {**context.github, "run_id": str(number), "run_number": str(run_number), "run_attempt": str(attempt)}
    return msgspec.structs.replace(context, github=github)


def keep_context(tx: Transaction, context: RunContext) -> str:
    """Store a context; its blob's digest."""
    blob = encode(context)
    name = digest(blob)
    tx.put_blob(name, blob)
    return name


def _insert(tx: Transaction, rules: Rules, trigger: NewTrigger, wanted: NewRun) -> str:
    plan, number = wanted.plan, tx.next_number("run")
    run_number = tx.next_number(f"workflow:{trigger.repository}:{plan.path}")
    context = with_numbers(wanted.context, number, run_number, 1)
    options = msgspec.structs.replace(wanted.options, platform=rules.platform or f"linux/{ANY}", trust=wanted.trust)
    state = RunState(run_id=row_id(number, 1), context=context, options=options)
    plan_blob = encode(plan)
    plan_digest = digest(plan_blob)
    tx.put_blob(plan_digest, plan_blob)
    holds: frozenset[Hold] = frozenset({"approval"}) if wanted.approval else frozenset()
    run = Run(
        id=state.run_id,
        number=number,
        attempt=1,
        run_number=run_number,
        repository=trigger.repository,
        workflow=plan.path,
        name=plan.name,
        event=trigger.event,
        ref=wanted.ref,
        sha=wanted.sha,
        trust=wanted.trust,
        trigger=trigger.key,
        created_ns=tx.now_ns(),
        plan_digest=plan_digest,
        context_digest=keep_context(tx, context),
        state=encode_state(state),
        holds=holds,
        priority=wanted.priority,
    )
    tx.insert_run(run)
    return run.id
