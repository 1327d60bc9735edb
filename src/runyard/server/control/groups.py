"""Concurrency groups across runs: who holds one, who waits, kept in the store by `run.concurrency`'s rules.

Inside one run the run graph serialises its own jobs; here stand whole runs (`run:ID`), jobs (`job:ID`) and calls of
reusable workflows (`call:RUN|KEY`, held by the call while any of its jobs may come).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from runyard.run import Arrival, arrive, leave, same_group
from runyard.server.control.codec import GroupMember, decode_member

if TYPE_CHECKING:
    from runyard.dispatch.records import Job
    from runyard.run import RunState
    from runyard.server.store.port import Transaction

KNOT_STEPS: Final = 200
"""Holders that one search for a knot looks at."""


def members_of(state: RunState, run_id: str, job_id: str, key: str) -> tuple[GroupMember, ...]:
    """The groups a job has to hold, outermost first: those of the calls it stands in, then its own."""
    found: list[GroupMember] = []
    leg = state.legs[key]
    found += [GroupMember(f"job:{job_id}", request) for request in reversed(leg.groups)]
    scope = state.nodes[leg.node].scope
    while scope:
        call = state.legs[scope]
        found += [GroupMember(call_member(run_id, scope), request) for request in reversed(call.groups)]
        scope = state.nodes[call.node].scope
    return tuple(reversed(found))


def call_member(run_id: str, key: str) -> str:
    """A call of a run as a member."""
    return f"call:{run_id}|{key}"


def enter(tx: Transaction, repository: str, who: GroupMember) -> Arrival:
    """A member asks for its group; the arrival is stored. Asking again changes nothing."""
    name, request = same_group(who.request.group), who.request
    before = tx.group(repository, name)
    arrival = arrive(before, who.member, cancel_in_progress=request.cancel_in_progress, queue=request.queue)
    if arrival.group != before:
        tx.save_group(repository, name, before, arrival.group)
    return arrival


def go(tx: Transaction, repository: str, member: str, group: str) -> str | None:
    """A member leaves; who holds the group now and did not before."""
    name = same_group(group)
    before = tx.group(repository, name)
    after, heir = leave(before, member)
    if after != before:
        tx.save_group(repository, name, before, after)
    return heir


def knot(tx: Transaction, job: Job, group: str) -> str | None:
    """Who holds `group` and waits itself for this job to end: the newcomer would wait for ever."""
    start = tx.group(job.repository, same_group(group)).holder
    body = tx.body(job.id)
    above = {f"run:{job.run_id}", f"job:{job.id}"}
    above |= {decode_member(blob).member for blob in body.groups} if body is not None else set()
    todo, seen = [start], set[str]()
    while todo and len(seen) < KNOT_STEPS:
        holder = todo.pop()
        if holder is None or holder in seen:
            continue
        seen.add(holder)
        if holder in above:
            return start if holder != start or holder == f"run:{job.run_id}" else None
        todo += _waited_for(tx, holder)
    return None


def run_of(tx: Transaction, member: str) -> str:
    """The row id of the run a member belongs to."""
    kind, _, name = member.partition(":")
    if kind == "run":
        return name
    if kind == "call":
        return name.partition("|")[0]
    found = tx.job(name)
    return found.run_id if found is not None else ""


def _waited_for(tx: Transaction, holder: str) -> list[str | None]:
    """Who holds what the jobs behind `holder` wait for."""
    kind, _, name = holder.partition(":")
    if kind == "job":
        found = tx.job(name)
        waiting = [found] if found is not None else []
    else:
        waiting = tx.jobs_of_run(run_of(tx, holder))
    holders = []
    for job in waiting:
        if "concurrency" in job.holds:
            body = tx.body(job.id)
            if body is not None and body.joined < len(body.groups):
                wanted = decode_member(body.groups[body.joined])
                holders.append(tx.group(job.repository, same_group(wanted.request.group)).holder)
    return holders


def joined(tx: Transaction, job: Job) -> tuple[GroupMember, ...]:
    """The groups that a job holds or waits for itself (its calls' are theirs)."""
    body = tx.body(job.id)
    if body is None:
        return ()
    members = [decode_member(blob) for blob in body.groups[: body.joined + 1]]
    return tuple(each for each in members if each.member == f"job:{job.id}")


def next_group(tx: Transaction, job: Job) -> GroupMember | None:
    """The group a job has to ask for next."""
    body = tx.body(job.id)
    if body is None or body.joined >= len(body.groups):
        return None
    return decode_member(body.groups[body.joined])


def advance_joined(tx: Transaction, job: Job) -> None:
    """It holds one group more."""
    body = tx.body(job.id)
    assert body is not None
    tx.save_body(msgspec.structs.replace(body, joined=body.joined + 1))
