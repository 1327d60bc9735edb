"""What people and pools ask for: cancel, approve, unlock, drain, reserve. Each is written down in the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runyard.dispatch import happenings as happened
from runyard.run import CancelRequested
from runyard.server.control.driver import Driver
from runyard.server.control.rules import Refused
from runyard.server.store.port import Topic
from runyard.server.store.rows import Audit

if TYPE_CHECKING:
    from runyard.job import Order
    from runyard.server.control.rules import Rules
    from runyard.server.store.port import Transaction


def _noted(tx: Transaction, who: str, what: str, about: str, detail: str = "") -> None:
    tx.insert_audit(Audit(time_ns=tx.now_ns(), who=who, what=what, about=about, detail=detail))


def cancel_run(
    tx: Transaction, rules: Rules, run_id: str, who: str, *, force: bool = False, reason: str = ""
) -> Refused | None:
    """With grace, or by force (and at a second request) at once: jobs get orders with a deadline. Safe to repeat."""
    run = tx.run(run_id)
    if run is None:
        return Refused("run.unknown", f"there is no run {run_id}")
    if run.phase == "done":
        return Refused("run.over", f"run {run_id} ended with {run.conclusion}")
    driver = Driver(tx, rules)
    driver.tell(run_id, CancelRequested(force, reason or f"cancelled by {who}", "cancelled_by_user"))
    driver.settle()
    _noted(tx, who, "run.force" if force else "run.cancel", run_id, reason)
    return None


def cancel_job(
    tx: Transaction, rules: Rules, job_id: str, who: str, *, force: bool = False, reason: str = ""
) -> Refused | None:
    """One job of a run; its run goes on by its own conditions. Safe to repeat."""
    job = tx.job(job_id)
    if job is None:
        return Refused("job.unknown", f"there is no job {job_id}")
    driver = Driver(tx, rules)
    step = driver.happen(job, happened.CancelWanted(reason or f"cancelled by {who}", "cancelled_by_user", force))
    if step.refused is not None:
        return Refused("job.over", step.refused.message)
    driver.settle()
    _noted(tx, who, "job.force" if force else "job.cancel", job_id, reason)
    return None


def order_job(tx: Transaction, rules: Rules, job_id: str, order: Order, who: str) -> Refused | None:
    """Something else to tell the holder of a job (pause, drain)."""
    job = tx.job(job_id)
    if job is None:
        return Refused("job.unknown", f"there is no job {job_id}")
    driver = Driver(tx, rules)
    step = driver.happen(job, happened.Ordered(order))
    if step.refused is not None:
        return Refused(step.refused.code, step.refused.message)
    driver.settle()
    _noted(tx, who, "job.order", job_id, type(order).__name__.lower())
    return None


def approve(tx: Transaction, rules: Rules, run_id: str, who: str) -> Refused | None:
    """Somebody lets a run go: its jobs, and those it still makes, wait for that no more. Safe to repeat."""
    run = tx.run(run_id)
    if run is None:
        return Refused("run.unknown", f"there is no run {run_id}")
    if "approval" not in run.holds:
        return None
    tx.save_run(run, msgspec.structs.replace(run, holds=run.holds - {"approval"}))
    driver = Driver(tx, rules)
    for job in tx.jobs_of_run(run_id):
        if "approval" in job.holds:
            driver.happen(job, happened.Cleared("approval"))
    driver.settle()
    _noted(tx, who, "run.approve", run_id)
    return None


def unlocked(tx: Transaction, rules: Rules, repository: str, who: str) -> int:
    """The vault of a repository can be read: its jobs wait for that no more. How many were let go. Safe to repeat."""
    driver = Driver(tx, rules)
    jobs = tx.held_jobs("vault", repository)
    for job in jobs:
        driver.happen(job, happened.Cleared("vault"))
    driver.settle()
    _noted(tx, who, "vault.unlock", repository)
    return len(jobs)


def drain_worker(tx: Transaction, worker_id: str, who: str) -> Refused | None:
    """It gets no more jobs; what it holds goes on. Safe to repeat."""
    return _set_drained(tx, worker_id, who, drained=True)


def resume_worker(tx: Transaction, worker_id: str, who: str) -> Refused | None:
    """It gets jobs again. Safe to repeat."""
    return _set_drained(tx, worker_id, who, drained=False)


def _set_drained(tx: Transaction, worker_id: str, who: str, *, drained: bool) -> Refused | None:
    worker = tx.worker(worker_id)
    if worker is None:
        return Refused("worker.unknown", f"there is no worker {worker_id}")
    tx.save_worker(msgspec.structs.replace(worker, drained=drained))
    tx.wake(Topic.SLOT)
    _noted(tx, who, "worker.drain" if drained else "worker.resume", worker_id, worker.name)
    return None


def remove_worker(tx: Transaction, rules: Rules, worker_id: str, who: str) -> Refused | None:
    """Forget a worker that holds nothing; one that is busy is drained first."""
    del rules
    if tx.worker(worker_id) is None:
        return Refused("worker.unknown", f"there is no worker {worker_id}")
    held = tx.jobs_of_worker(worker_id)
    if held:
        return Refused("worker.busy", f"it holds {len(held)} job{'s' * (len(held) > 1)}; drain it first")
    tx.delete_worker(worker_id)
    _noted(tx, who, "worker.remove", worker_id)
    return None


def withdraw_job(tx: Transaction, rules: Rules, job_id: str, reason: str) -> Refused | None:
    """The pool that a job was set aside for won't take it: back to the queue, where it was."""
    job = tx.job(job_id)
    if job is None:
        return Refused("job.unknown", f"there is no job {job_id}")
    driver = Driver(tx, rules)
    step = driver.happen(job, happened.Withdrawn(reason))
    if step.refused is not None:
        return Refused(step.refused.code, step.refused.message)
    driver.settle()
    return None


def offer_job(tx: Transaction, rules: Rules, job_id: str, pool: str, until_ns: int) -> Refused | None:
    """Set a queued job aside for a pool whose runner is on its way."""
    job = tx.job(job_id)
    if job is None:
        return Refused("job.unknown", f"there is no job {job_id}")
    driver = Driver(tx, rules)
    step = driver.happen(job, happened.Offered(pool, until_ns))
    if step.refused is not None:
        return Refused(step.refused.code, step.refused.message)
    driver.settle()
    return None
