"""A worker asks for a job, and gets it with its secrets. Nothing of a hand-out that is secret is stored in clear."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from runyard.dispatch import happenings as happened
from runyard.dispatch.choose import EVERYBODY, choose, in_turn, worth_asking
from runyard.dispatch.fit import View, present
from runyard.dispatch.life import SECOND_NS, lease_s
from runyard.dispatch.records import Bounds, Job, Lease, LeaseKind, Worker
from runyard.job import JobSpec, RunContext
from runyard.run import UnevaluableError, resolve_secrets
from runyard.server.control.codec import decode_context, decode_levels, decode_spec
from runyard.server.control.driver import ANY, Driver
from runyard.server.control.rules import LockedError, Refused
from runyard.server.store.port import Topic
from runyard.server.store.rows import Attempt, MaskRow, Run

if TYPE_CHECKING:
    from runyard.dispatch.choose import Grant
    from runyard.server.control.rules import Rules
    from runyard.server.store.port import Transaction

BEHIND: Final = 4
"""Jobs of each class that a claim looks at where the first ones are not for this worker."""

TRIES: Final = 16
"""Jobs that one claim may find unfit to hand out (locked, without a value for a secret) before it comes back empty."""


class Ask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One claim: what the worker is now (pools, trust, publish and bounds as its token says), ids made outside."""

    worker: Worker
    claim: str
    lease: str
    kind: LeaseKind = "dialout"


class HandOut(msgspec.Struct, frozen=True, kw_only=True):
    """All that a Claim is built from. It holds secrets: never stored, no repr."""

    job: Job
    spec: JobSpec
    context: RunContext
    run: Run
    attempt: int
    lease: str
    expires_in_s: float
    native: bool
    secrets: dict[str, str]
    repeated: bool = False

    def __repr__(self) -> str:
        return f"<HandOut of {self.job.id}, attempt {self.attempt}>"


class _Content(NamedTuple):
    spec: JobSpec
    context: RunContext
    levels: bytes


# --- claim


def claim(tx: Transaction, rules: Rules, ask: Ask) -> HandOut | Refused | None:
    """A job for the worker, or None. The same claim id gets the same hand-out while that lives. Notes its presence."""
    worker = _note_presence(tx, ask.worker)
    earlier = tx.attempt_of_claim(worker.id, ask.claim)
    if earlier is not None:
        return _again(tx, rules, worker, earlier)
    if worker.draining or worker.drained or worker.free < 1:
        return None
    tx.lock_claims(worker.id)
    driver = Driver(tx, rules)
    given: HandOut | None = None
    for _ in range(TRIES):
        grant = _grant(tx, rules, worker)
        if grant is None:
            break
        given = _hand_out(driver, ask, worker, grant)
        if given is not None:
            break
    driver.settle()
    return given


def _note_presence(tx: Transaction, worker: Worker) -> Worker:
    now = tx.now_ns()
    before = tx.worker(worker.id)
    worker = msgspec.structs.replace(
        worker,
        labels=frozenset(label.lower() for label in worker.labels),
        seen_ns=now,
        connected_ns=before.connected_ns if before is not None else now,
        drained=before.drained if before is not None else False,
    )
    tx.save_worker(worker)
    return worker


def view_of(tx: Transaction, rules: Rules) -> View:
    """What everybody looks at, now."""
    now = tx.now_ns()
    projects = tx.projects()
    limits = {row.repository: row.max_concurrent for row in projects if row.max_concurrent is not None}
    bounds = rules.bounds
    return View(
        presence=present(tx.workers(now - round(rules.settings.presence_s * SECOND_NS)), now, rules.settings),
        counts=tx.counts(),
        bounds=Bounds(bounds.server, {**limits, **bounds.repositories}, bounds.groups, bounds.pools),
        weights={row.repository: row.weight for row in projects if row.weight > 0},
        settings=rules.settings,
        now_ns=now,
    )


def _grant(tx: Transaction, rules: Rules, worker: Worker) -> Grant | None:
    view = view_of(tx, rules)
    classes = worth_asking(worker, tx.open_classes(worker.pools), view)
    if not classes:
        return None
    repositories = {of.repository for of in classes}
    strides = tx.strides([EVERYBODY, *sorted(repositories)])
    for group in in_turn(worker, classes, strides):
        ids = [of.id for of in group]
        for each in (1, BEHIND):  # the first of a class may be one that this worker lost before: look behind it
            grant = choose(worker, tx.heads(ids, worker.pools, each), view, strides, repositories)
            if grant is not None:
                return grant
    return None


def _hand_out(driver: Driver, ask: Ask, worker: Worker, grant: Grant) -> HandOut | None:
    """The lease, where the job's secrets can be had; else the job is held or ended, and another one may be tried."""
    tx, rules, job = driver.tx, driver.rules, grant.job
    body, run = tx.body(job.id), driver.load(job.run_id)
    assert body is not None
    assert run is not None
    spec = decode_spec(body.spec)
    try:
        secrets = _secrets(tx, rules, run.row, _Content(spec, run.state.context, body.secrets))
    except LockedError:
        driver.happen(job, happened.Held("vault"))
        return None
    except UnevaluableError as error:
        driver.happen(job, happened.Dropped("failure", error.message, "evaluation_error"))
        return None
    now = driver.now_ns
    seconds = lease_s(ask.kind, rules.settings)
    lease = Lease(
        id=ask.lease,
        kind=ask.kind,
        worker=worker.id,
        worker_name=worker.name,
        since_ns=now,
        until_ns=now + round(seconds * SECOND_NS),
    )
    step = driver.happen(job, happened.Claimed(lease))
    assert step.refused is None
    attempt = Attempt(
        job=job.id,
        number=step.job.attempt,
        lease=lease.id,
        worker=worker.id,
        worker_name=worker.name,
        claim=ask.claim,
        granted_ns=now,
        platform=worker.platform,
    )
    tx.insert_attempt(attempt)
    hidden = tuple(dict.fromkeys(value for value in secrets.values() if value))
    if hidden:
        sealed = rules.vault.seal(msgspec.msgpack.encode(hidden))
        tx.save_masks(MaskRow(job.id, step.job.attempt, sealed, len(hidden)))
    for stride in grant.strides:
        tx.save_stride(stride)
    tx.wake(Topic.of_job(job.id))
    tx.wake(Topic.of_run(job.run_id))
    return HandOut(
        job=step.job,
        spec=_placed(spec, worker.platform),
        context=run.state.context,
        run=run.row,
        attempt=step.job.attempt,
        lease=lease.id,
        expires_in_s=seconds,
        native=grant.native,
        secrets=secrets,
    )


def _again(tx: Transaction, rules: Rules, worker: Worker, earlier: Attempt) -> HandOut | Refused:
    """The answer was lost on its way: the same hand-out once more, with secrets as they are now."""
    job = tx.job(earlier.job)
    if job is None or job.lease is None or (job.attempt, job.lease.id) != (earlier.number, earlier.lease):
        return Refused("claim.over", f"what claim {earlier.claim} led to is over; claim with a new id")
    body, run = tx.body(job.id), tx.run(job.run_id)
    assert body is not None
    assert run is not None
    spec, context = decode_spec(body.spec), decode_context(tx.blob(run.context_digest))
    try:
        secrets = _secrets(tx, rules, run, _Content(spec, context, body.secrets))
    except LockedError:
        return Refused("claim.over", f"the vault of {job.repository} is locked by now")
    left = (job.lease.until_ns - tx.now_ns()) / SECOND_NS
    return HandOut(
        job=job,
        spec=_placed(spec, earlier.platform),
        context=context,
        run=run,
        attempt=job.attempt,
        lease=job.lease.id,
        expires_in_s=max(left, 0.0),
        native=job.of.platform in (None, worker.platform),
        secrets=secrets,
        repeated=True,
    )


def _secrets(tx: Transaction, rules: Rules, run: Run, content: _Content) -> dict[str, str]:
    """What this job may know, by name. Raises LockedError, UnevaluableError."""
    spec = content.spec
    if spec.trust == "untrusted":
        return {}
    if rules.vault.is_locked(tx, run.repository):
        raise LockedError(run.repository)
    environment = spec.environment.name if spec.environment is not None else None
    available = rules.vault.secrets(tx, run, environment)
    return resolve_secrets(decode_levels(content.levels), available, content.context)


def _placed(spec: JobSpec, platform: str) -> JobSpec:
    """A job that names no platform gets the one it runs on."""
    return msgspec.structs.replace(spec, platform=platform) if spec.platform.endswith(f"/{ANY}") else spec
