"""Jobs, workers and leases for tests."""

from __future__ import annotations

from typing import Any

from runyard.dispatch.records import Job, JobClass, Lease, Worker

NOW = 1_900_000_000_000_000_000
SECOND = 1_000_000_000


def klass(**more: Any) -> JobClass:
    return JobClass(repository=more.pop("repository", "acme/app"), **more)


def job(number: int = 1, **more: Any) -> Job:
    of = more.pop("of", None) or klass()
    return Job(
        id=f"j{number}",
        run_id="1.1",
        key=f"job{number}",
        sequence=number,
        created_ns=NOW,
        of=of,
        class_id=of.id,
        **more,
    )


def queued(number: int = 1, **more: Any) -> Job:
    return job(number, **{"phase": "queued", "queued_ns": NOW, "rank": NOW, **more})


def lease(number: int = 1, worker: str = "w1", **more: Any) -> Lease:
    return Lease(
        id=f"lease{number}",
        kind="dialout",
        worker=worker,
        worker_name=worker.upper(),
        since_ns=NOW,
        until_ns=NOW + 120 * SECOND,
        **more,
    )


def worker(number: int = 1, **more: Any) -> Worker:
    return Worker(
        id=f"w{number}",
        name=f"worker {number}",
        platform=more.pop("platform", "linux/amd64"),
        seen_ns=NOW,
        **more,
    )
