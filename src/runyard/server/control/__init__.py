"""The flows of the control plane: what a transaction does for one call, as sync functions over `store.Transaction`.

    created = await store.transact(create_runs, rules, NewTrigger(…), [NewRun(…)])
    given = await store.transact(claim, rules, Ask(…))
    answer = await store.transact(take_result, rules, Call(…), body, finished)

A flow has no side effects and no randomness: ids and lease ids come in, topics to wake go through the transaction. It
may be begun anew. A refusal is a value (`Refused`), never an exception. `driver.py` is the middle: what `dispatch.life`
and `run.advance` decide, carried out in the transaction that learned of it. Read `rules.py`, then `driver.py`,
`claims.py`, `attempts.py`.
"""

from runyard.server.control.attempts import (
    Beaten,
    Call,
    EventsTaken,
    ResultTaken,
    accept_events,
    add_masks,
    check_fence,
    hand_back,
    heartbeat,
    read_masks,
    take_result,
)
from runyard.server.control.claims import Ask, HandOut, claim
from runyard.server.control.create import Created, NewRun, NewTrigger, create_runs
from runyard.server.control.people import (
    approve,
    cancel_job,
    cancel_run,
    drain_worker,
    offer_job,
    order_job,
    remove_worker,
    resume_worker,
    unlocked,
    withdraw_job,
)
from runyard.server.control.reasons import WaitingJob, explain_job, explain_queue, explain_run
from runyard.server.control.rerun import rerun
from runyard.server.control.rules import LockedError, NoVault, Refused, Rules, Vault
from runyard.server.control.sweep import planned_stop, sweep, tick_runs

__all__ = [
    "Ask",
    "Beaten",
    "Call",
    "Created",
    "EventsTaken",
    "HandOut",
    "LockedError",
    "NewRun",
    "NewTrigger",
    "NoVault",
    "Refused",
    "ResultTaken",
    "Rules",
    "Vault",
    "WaitingJob",
    "accept_events",
    "add_masks",
    "approve",
    "cancel_job",
    "cancel_run",
    "check_fence",
    "claim",
    "create_runs",
    "drain_worker",
    "explain_job",
    "explain_queue",
    "explain_run",
    "hand_back",
    "heartbeat",
    "offer_job",
    "order_job",
    "planned_stop",
    "read_masks",
    "remove_worker",
    "rerun",
    "resume_worker",
    "sweep",
    "take_result",
    "tick_runs",
    "unlocked",
    "withdraw_job",
]
