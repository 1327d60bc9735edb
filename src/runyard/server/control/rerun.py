"""A run again: in whole, or what failed. `run_attempt` grows; the plan, the commit and the payload stay."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import msgspec

from runyard.run import Begin, RunState, Tick
from runyard.server.control.codec import decode_context, decode_state, encode_state
from runyard.server.control.create import keep_context, row_id, with_numbers
from runyard.server.control.driver import Driver
from runyard.server.control.rules import Refused
from runyard.server.store.rows import Audit, Run

if TYPE_CHECKING:
    from runyard.server.control.rules import Rules
    from runyard.server.store.port import Transaction


def rerun(tx: Transaction, rules: Rules, run_id: str, who: str, *, failed_only: bool = False) -> Run | Refused:
    """The next attempt of a run that ended, begun. Only of its newest attempt.

    `failed_only` keeps the results and outputs of jobs that succeeded or were skipped, and does again what failed or
    was cancelled, a whole matrix or call at a time, with everything that needs it.
    """
    before = tx.run(run_id)
    if before is None:
        return Refused("run.unknown", f"there is no run {run_id}")
    newest = tx.newest_run(before.number)
    if newest is None or newest.id != before.id:
        return Refused("run.older", f"run {before.number} has a newer attempt")
    if before.phase != "done":
        return Refused("run.not_over", f"run {run_id} is still going on")
    context = decode_context(tx.blob(before.context_digest))
    state = decode_state(before.state, context)
    attempt = before.attempt + 1
    new_id = row_id(before.number, attempt)
    context = with_numbers(context, before.number, before.run_number, attempt)
    fresh = RunState(run_id=new_id, context=context, options=state.options)
    if failed_only and state.scopes:
        fresh = _kept(state, fresh)
        if all(node.phase == "done" for node in fresh.nodes.values()):
            return Refused("run.nothing_failed", f"nothing failed in run {run_id}")
    row = msgspec.structs.replace(
        before,
        id=new_id,
        attempt=attempt,
        created_ns=tx.now_ns(),
        context_digest=keep_context(tx, context),
        state=encode_state(fresh),
        phase="pending",
        version=0,
        started_ns=0,
        ended_ns=0,
        conclusion=None,
        reason=None,
        reason_code=None,
    )
    tx.insert_run(row)
    _copy_kept(tx, before, row, fresh)
    driver = Driver(tx, rules)
    if fresh.phase == "new":
        driver.tell(new_id, Begin())
    elif fresh.group is not None:
        driver.enter_run(row, fresh.group)
    else:
        driver.tell(new_id, Tick())
    driver.settle()
    tx.insert_audit(Audit(time_ns=tx.now_ns(), who=who, what="run.rerun", about=new_id))
    return tx.run(new_id) or row


def _kept(old: RunState, fresh: RunState) -> RunState:
    """The state of the new attempt: nodes that have to run again are waiting, with their calls' insides gone."""
    again = {key for key, node in old.nodes.items() if node.result not in ("success", "skipped")}
    again |= {key for key, node in old.nodes.items() if any(_failed(old, leg) for leg in node.legs)}
    grown = True
    while grown:
        grown = False
        for key, node in old.nodes.items():
            prefix = f"{node.scope}/" if node.scope else ""
            if key not in again and any(f"{prefix}{need}" in again for need in node.needs):
                again.add(key)
                grown = True
    gone = {leg for key in again for leg in old.nodes[key].legs}
    scopes = {key: scope for key, scope in old.scopes.items() if not _inside(old, key, gone)}
    nodes = {
        key: msgspec.structs.replace(node, phase="waiting", legs=(), result=None, outputs={}) if key in again else node
        for key, node in old.nodes.items()
        if node.scope in scopes
    }
    legs = {key: leg for key, leg in old.legs.items() if leg.node in nodes and key not in gone}
    return msgspec.structs.replace(
        fresh, phase="running", name=old.name, group=old.group, scopes=scopes, nodes=nodes, legs=legs
    )


def _failed(state: RunState, key: str) -> bool:
    return state.legs[key].conclusion in ("failure", "cancelled")


def _inside(state: RunState, scope: str, gone: set[str]) -> bool:
    """Whether a scope belongs to a call that is done again."""
    while scope:
        if scope in gone:
            return True
        scope = state.nodes[state.legs[scope].node].scope
    return False


def _copy_kept(tx: Transaction, before: Run, row: Run, fresh: RunState) -> None:
    """Rows for people: the jobs whose results are kept stand in the new attempt as well."""
    kept = set(fresh.legs) | {key for key, node in fresh.nodes.items() if node.phase == "done"}
    for job in tx.jobs_of_run(before.id):
        body = tx.body(job.id)
        if job.key in kept and body is not None:
            new_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{row.id}/{job.key}"))
            number = tx.next_number("job")
            copy = msgspec.structs.replace(job, id=new_id, run_id=row.id, sequence=number, result=None, attempt=0)
            tx.insert_job(copy, msgspec.structs.replace(body, job=new_id, run_id=row.id))
