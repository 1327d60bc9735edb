"""One server, without HTTP: the store and what stands beside it, and what goes on in the background."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import structlog

from runyard.job import Policy
from runyard.report.masks import Masker
from runyard.server.auth import Tokens
from runyard.server.control import Rules, planned_stop, read_masks, sweep, tick_runs
from runyard.server.control.codec import decode_spec
from runyard.server.logs import AttemptKey, FileLogs
from runyard.server.logs.feed import Feed
from runyard.server.mirrors import Mirrors
from runyard.server.vault import StoredVault
from runyard.server.waits import Waits
from runyard.source.git import Git

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from pathlib import Path

    from runyard.dispatch.records import Settings
    from runyard.job import JobSpec
    from runyard.server.store.port import Store, Transaction
    from runyard.server.store.rows import Run

MASKERS_KEPT: Final = 4096
BATCH: Final = 200
SWEEP_S: Final = 2.0
REPAIR_S: Final = 5.0
TICK_S: Final = 600.0
FLUSH_S: Final = 15.0
SEAL_AFTER_S: Final = 2.0
BUNDLES_KEPT_S: Final = 3600.0
STOP_S: Final = 900.0
"""How long leases last beyond a planned stop."""

log = structlog.get_logger("runyard.server")


class Core:
    """Everything a call needs. `start` once, `stop` once."""

    def __init__(self, store: Store, data: Path, key: bytes, settings: Settings, rules: Rules | None = None) -> None:
        self.store = store
        self.data = data
        self.settings = settings
        self.vault = StoredVault(key)
        self.rules = rules or Rules(settings=settings, vault=self.vault)
        self.logs = FileLogs(data / "logs", key=key)
        self.feed = Feed()
        self.waits = Waits(store)
        self.tokens = Tokens(store)
        self.mirrors = Mirrors(data / "mirrors")
        self.policy = Policy(build=True)
        self.features: tuple[str, ...] = ("logs", "checkout", "artifacts")
        self.stopping = False
        self.started_ns = time.time_ns()
        self.failures: dict[str, int] = {}
        self._maskers: OrderedDict[AttemptKey, Masker] = OrderedDict()
        self._trees: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._seals: dict[AttemptKey, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # --- life

    def start(self) -> None:
        """Begin what goes on in the background."""
        self.waits.start()
        for name, every_s, work in (
            ("sweep", SWEEP_S, self._sweep),
            ("repair", REPAIR_S, self.waits.repair),
            ("tick", TICK_S, self._tick),
            ("flush", FLUSH_S, self.tokens.flush),
            ("seal", 1.0, self._seal),
            ("bundles", 300.0, self._forget_bundles),
        ):
            self.spawn(self._every(name, every_s, work), name)

    async def stop(self) -> None:
        """A planned stop: leases outlast it, whoever waits is answered, files are closed."""
        self.stopping = True
        self.waits.stop()
        with contextlib.suppress(Exception):
            kept = await self.store.transact(planned_stop, self.rules, STOP_S)
            log.info("stopping", leases_extended=kept)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(Exception):
            await self.tokens.flush()
        self.logs.close()
        await self.store.close()

    def spawn(self, work: Coroutine[object, object, None], name: str) -> None:
        """Something that goes on beside the calls, until it ends or the server does."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _every(self, name: str, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds * random.uniform(0.8, 1.2))
            try:
                await work()
            except Exception:
                self.failures[name] = self.failures.get(name, 0) + 1
                log.exception("background work failed", work=name)

    async def _sweep(self) -> None:
        while await self.store.transact(sweep, self.rules) >= 100:
            pass
        await self._find_ended()

    async def _tick(self) -> None:
        after = 0
        while (after := await self.store.transact(tick_runs, self.rules, after)) > 0:
            pass

    # --- masks and logs

    async def masker(self, key: AttemptKey) -> Masker:
        """The masks of an attempt, as the store knows them; kept while it is at work here."""
        masker = self._maskers.get(key)
        if masker is None:
            values = await self.store.transact(_masks, self.rules, key)
            masker = self._maskers.setdefault(key, Masker())
            for value in values:
                masker.add_secret(value)
        self._maskers.move_to_end(key)
        while len(self._maskers) > MASKERS_KEPT:
            self._maskers.popitem(last=False)
        return masker

    def ended(self, key: AttemptKey) -> None:
        """An attempt is over: its log is sealed soon."""
        self._seals.setdefault(key, time.monotonic() + SEAL_AFTER_S)
        self.feed.changed(key)

    async def _find_ended(self) -> None:
        """Attempts with an open log that ended by themselves (lost, cancelled at the deadline)."""
        known = await asyncio.to_thread(self.logs.unsealed)
        open_ones = [key for key in known if key not in self._seals]
        for at in range(0, len(open_ones), BATCH):
            for key in await self.store.transact(_over, open_ones[at : at + BATCH]):
                self.ended(key)

    async def _seal(self) -> None:
        moment = time.monotonic()
        for key in [key for key, due in self._seals.items() if due <= moment][:50]:
            masker = await self.masker(key)
            await asyncio.to_thread(self.logs.seal, key, masker)
            await self.store.transact(_forget_masks, key)
            self._maskers.pop(key, None)
            self._seals.pop(key, None)
            self.feed.changed(key)

    # --- repositories and files

    async def tree_of(self, repository: str, sha: str) -> str:
        """The tree of a commit; "" where the mirror doesn't have it."""
        known = self._trees.get((repository, sha))
        if known is None:
            path = str(self.mirrors.path(repository))
            known = await asyncio.to_thread(_tree, path, sha)
            self._trees[repository, sha] = known
            while len(self._trees) > MASKERS_KEPT:
                self._trees.popitem(last=False)
        return known

    async def checkout_of(self, job: str, depth: int) -> Path:
        """The file that a job's checkout is. Raises MachineError."""
        run = await self.store.transact(_run_of, job)
        return await self.mirrors.bundle(run.repository, run.sha, depth, self.data / "bundles")

    async def _forget_bundles(self) -> None:
        folder = self.data / "bundles"
        for path in await asyncio.to_thread(lambda: list(folder.glob("*.tar"))):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > BUNDLES_KEPT_S:
                    path.unlink()

    def artifact_folder(self, key: AttemptKey) -> Path:
        """Where an attempt's artifacts lie."""
        job, attempt = key.checked()
        return self.data / "artifacts" / job / str(attempt)


def _masks(tx: Transaction, rules: Rules, key: AttemptKey) -> tuple[str, ...]:
    return read_masks(tx, rules, key.job, key.attempt)


def _forget_masks(tx: Transaction, key: AttemptKey) -> None:
    tx.delete_masks(key.job, key.attempt)


def _over(tx: Transaction, keys: list[AttemptKey]) -> list[AttemptKey]:
    over: list[AttemptKey] = []
    for key in keys:
        job = tx.job(key.job)
        if job is None or job.lease is None or job.attempt != key.attempt:
            over.append(key)
    return over


def _run_of(tx: Transaction, job_id: str) -> Run:
    job = tx.job(job_id)
    run = tx.run(job.run_id) if job is not None else None
    assert run is not None
    return run


def spec_of(tx: Transaction, job_id: str) -> JobSpec | None:
    """A job's spec; None for one that was never in the queue."""
    body = tx.body(job_id)
    return decode_spec(body.spec) if body is not None and body.spec else None


def _tree(path: str, sha: str) -> str:
    return Git(path).maybe("rev-parse", "--verify", "--quiet", "--end-of-options", f"{sha}^{{tree}}") or ""
