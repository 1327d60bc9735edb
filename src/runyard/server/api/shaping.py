"""Rows as the shapes that people are shown: one place for the API and the page, so that they can't disagree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runyard.expression import to_text
from runyard.server.api.shapes import (
    ArtifactShape,
    HeldShape,
    JobShape,
    ProjectShape,
    ReasonShape,
    RunShape,
    TokenShape,
    WorkerShape,
    rfc3339,
)
from runyard.server.control.codec import decode_matrix
from runyard.server.logs import AttemptKey

if TYPE_CHECKING:
    from runyard.dispatch.records import Job, Worker
    from runyard.server.control import WaitingJob
    from runyard.server.core import Core
    from runyard.server.store.rows import JobBody, Project, Run, Token


def time_or_none(time_ns: int) -> str | None:
    """A time to show; None for one that has not come."""
    return rfc3339(time_ns) if time_ns else None


def project_shape(row: Project) -> ProjectShape:
    """A project."""
    return ProjectShape(
        project=row.repository,
        git=row.url,
        default_branch=row.default_branch,
        created=rfc3339(row.created_ns),
        max_concurrent=row.max_concurrent,
        weight=row.weight,
    )


def run_shape(row: Run, jobs: list[Job] | None = None, bodies: list[JobBody] | None = None) -> RunShape:
    """A run, with its jobs where they were read."""
    return RunShape(
        run=row.number,
        run_attempt=row.attempt,
        project=row.repository,
        workflow=row.workflow,
        name=row.name,
        event=row.event,
        ref=row.ref,
        sha=row.sha,
        trust=row.trust,
        phase=row.phase,
        created=rfc3339(row.created_ns),
        run_number=row.run_number,
        holds=tuple(sorted(row.holds)),
        started=time_or_none(row.started_ns),
        ended=time_or_none(row.ended_ns),
        conclusion=row.conclusion,
        reason=row.reason,
        reason_code=row.reason_code,
        jobs=None if jobs is None or bodies is None else tuple(map(job_shape, jobs, bodies)),
    )


def job_shape(job: Job, body: JobBody) -> JobShape:
    """A job."""
    return JobShape(
        id=job.id,
        key=job.key,
        job=body.path,
        name=body.name,
        phase=job.phase,
        attempt=job.attempt,
        worker=job.lease.worker_name if job.lease is not None else None,
        conclusion=job.conclusion,
        reason=job.reason,
        reason_code=job.reason_code,
        matrix=decode_matrix(body.matrix),
        queued=time_or_none(job.queued_ns),
        ended=time_or_none(job.ended_ns),
    )


def reason_shape(each: WaitingJob) -> ReasonShape:
    """Why a job waits."""
    said = msgspec.to_builtins(each.reason)
    return ReasonShape(
        job=each.job,
        run=each.run,
        key=each.key,
        since=rfc3339(each.since_ns),
        code=to_text(said.pop("code", "")),
        reason=to_text(said.pop("message", "")),
        remedy=to_text(said.pop("remedy", "")),
        details=said or None,
    )


def worker_shape(worker: Worker, jobs: list[Job], now_ns: int, core: Core) -> WorkerShape:
    """A worker as the dispatcher sees it at `now_ns`; `jobs` are the live ones."""
    silent_s = (now_ns - worker.seen_ns) / 1e9
    settings = core.settings
    held = [job for job in jobs if job.lease is not None and job.lease.worker == worker.id]
    return WorkerShape(
        id=worker.id,
        name=worker.name,
        platform=worker.platform,
        state="present" if silent_s <= settings.late_s else "late" if silent_s <= settings.presence_s else "away",
        version=worker.version,
        labels=tuple(sorted(worker.labels)),
        emulates=tuple(sorted(worker.emulates)),
        slots=worker.slots,
        free=worker.free,
        disk_free_mb=worker.disk_free_mb,
        draining=worker.draining or worker.drained,
        seen=rfc3339(worker.seen_ns),
        connected=rfc3339(worker.connected_ns),
        holds=tuple(HeldShape(job=job.id, run=job.run_id, key=job.key) for job in held),
    )


def token_shape(row: Token) -> TokenShape:
    """A token without its text."""
    return TokenShape(
        id=row.id,
        kind=row.kind,
        name=row.name,
        created=rfc3339(row.created_ns),
        scopes=tuple(sorted(row.scopes)),
        used=time_or_none(row.used_ns),
        expires=time_or_none(row.expires_ns),
        revoked=time_or_none(row.revoked_ns),
    )


def artifact_shapes(core: Core, jobs: list[Job]) -> list[ArtifactShape]:
    """What the attempts of some jobs left."""
    found: list[ArtifactShape] = []
    for job in jobs:
        for attempt in range(1, job.attempt + 1):
            folder = core.artifact_folder(AttemptKey(job.id, attempt))
            found += [
                ArtifactShape(job=job.id, attempt=attempt, name=path.name[:-4], size=path.stat().st_size)
                for path in sorted(folder.glob("*.tar"))
                if not path.name.startswith(".")
            ]
    return found
