"""What happens by itself: leases that ended, cancellations whose time is over, runs that are too old, a planned stop.

Level-triggered: a sweep looks at what is, so it repairs what a lost wake-up or a dead server left. Any replica may
sweep, several at once too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runyard.dispatch import happenings as happened
from runyard.dispatch.life import SECOND_NS
from runyard.dispatch.records import LIVE
from runyard.run import Tick
from runyard.server.control.driver import Driver

if TYPE_CHECKING:
    from runyard.server.control.rules import Rules
    from runyard.server.store.port import Transaction

BATCH: Final = 100


def sweep(tx: Transaction, rules: Rules, limit: int = BATCH) -> int:
    """Everything that is due now, at most `limit` jobs; how many there were (call again when it was `limit`)."""
    driver = Driver(tx, rules)
    due = tx.due(tx.now_ns(), limit)
    for job in due:
        now = tx.job(job.id)
        if now is not None:
            driver.happen(now, happened.Passed())
    for job in tx.held_jobs("vault", limit=limit):
        if not rules.vault.is_locked(tx, job.repository):
            now = tx.job(job.id)
            if now is not None and "vault" in now.holds:
                driver.happen(now, happened.Cleared("vault"))
    driver.settle()
    return len(due)


def next_due(tx: Transaction) -> int | None:
    """When the next sweep has something to do, in nanoseconds; None with nothing at work."""
    first = tx.due((1 << 63) - 1, 1)
    return first[0].due_ns if first else None


def tick_runs(tx: Transaction, rules: Rules, after: int = 0, limit: int = BATCH) -> int:
    """Tell unfinished runs the time: a run ends after 35 days. The number to go on from; 0 at the end."""
    driver = Driver(tx, rules)
    rows = tx.unfinished_runs(after, limit)
    for row in rows:
        driver.tell(row.id, Tick())
    driver.settle()
    return rows[-1].number if len(rows) == limit else 0


def planned_stop(tx: Transaction, rules: Rules, seconds: float) -> int:
    """The server will be away for so long: no lease ends before. The last thing it does; how many were extended."""
    driver = Driver(tx, rules)
    until_ns = tx.now_ns() + round(seconds * SECOND_NS)
    count = after = 0
    while jobs := tx.jobs_in(sorted(LIVE), after, BATCH):
        for job in jobs:
            driver.happen(job, happened.Extended(until_ns))
        count, after = count + len(jobs), jobs[-1].sequence
    driver.settle()
    return count
