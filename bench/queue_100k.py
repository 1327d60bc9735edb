"""Row queue-100k: a claim with 100,000 jobs waiting, against one with 1,000, at the store's door."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import msgspec

from bench.figure import Figure, median
from runyard.dispatch.records import Worker
from runyard.server.control import Ask, HandOut, NewRun, NewTrigger, Rules, claim, create_runs
from runyard.server.store.sqlite import open_store
from runyard.simulation import workflows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runyard.server.store.port import Store, Transaction

CLAIMS = 150
BATCH = 2000
AT_MOST = 2.0
REPOSITORIES = 20
LABELS = frozenset({"ubuntu-latest", "self-hosted", "gpu", "arm64"})


def measure() -> Iterator[Figure]:
    """Milliseconds of a claim, median, in a queue of many repositories and classes."""
    few, many = (asyncio.run(_claims(waiting)) for waiting in (1_000, 100_000))
    yield Figure(
        "queue-100k", "a claim, 100,000 waiting", many, "ms", few, "a claim, 1,000 waiting", AT_MOST, of_ratio=True
    )


async def _claims(waiting: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Path(folder, "bench.db"))
        rules = Rules()
        try:
            await _fill(store, rules, waiting)
            times = []
            for number in range(CLAIMS):
                worker = Worker(id="w", name="w", platform="linux/amd64", labels=LABELS, slots=CLAIMS, free=1)
                begun = time.perf_counter()
                given = await store.transact(claim, rules, Ask(worker=worker, claim=f"c{number}", lease=f"l{number}"))
                times.append(time.perf_counter() - begun)
                assert isinstance(given, HandOut), given
            return median(times) * 1000
        finally:
            await store.close()


async def _fill(store: Store, rules: Rules, waiting: int) -> None:
    """One real run, and copies of its job under other names, repositories and labels."""
    plan = workflows.plan(Random(1), 1)
    run = NewRun(plan=plan, context=workflows.context("acme/app"), ref="refs/heads/main", sha="1" * 40)
    trigger = NewTrigger(key="bench", repository="acme/app", event="push")
    (run_id,) = (await store.transact(create_runs, rules, trigger, [run])).runs
    for first in range(0, waiting, BATCH):
        await store.transact(_copies, run_id, first, min(BATCH, waiting - first))


def _copies(tx: Transaction, run_id: str, first: int, count: int) -> None:
    model = next(job for job in tx.jobs_of_run(run_id) if job.phase == "queued")
    body = tx.body(model.id)
    assert body is not None
    for number in range(first, first + count):
        labels = frozenset(("ubuntu-latest", "self-hosted", "gpu")[: 1 + number % 3])
        of = msgspec.structs.replace(
            model.of, repository=f"acme/r{number % REPOSITORIES}", platform=None, labels=labels
        )
        name = f"copy{number}"
        job = msgspec.structs.replace(
            model, id=name, key=name, sequence=1000 + number, rank=model.rank + number, of=of, class_id=of.id
        )
        tx.insert_job(job, msgspec.structs.replace(body, job=name, key=name))
