"""A worker's life: one parked claim, jobs in slots, a drain, and an end that leaves nothing behind.

One loop holds claims, leases and heartbeats; jobs run in processes of their own. The first SIGTERM drains: no new
claims, busy jobs go on. The second one ends at once and hands back what is not done. Both end with 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import runyard
from runyard.cli.run_execute import say
from runyard.cli.worker_config import disk_free_mb
from runyard.cli.worker_job import HeldJob, Shop
from runyard.cli.worker_left import deliver_left
from runyard.cli.worker_machine import WorkerMachine
from runyard.job import Cancel, MachineError
from runyard.job.dialout import ClaimRequest, Held
from runyard.sandbox.records import state_folder
from runyard.source.dialout import AwayError, DialOut, LeaseOverError
from runyard.source.dialout_checkout import Checkouts
from runyard.source.dialout_lease import Backoff, boot_s

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine

    from runyard.cli.worker_config import WorkerOptions
    from runyard.engine.launch import Launcher
    from runyard.job.dialout import ClaimAnswer

POLL_S: Final = 55.0
LAST_CLAIM_S: Final = 5.0
END_S: Final = 30.0
"""How long the end may take once jobs are handed back."""

SAY_AWAY_S: Final = 60.0
GIVE_BACK_BEFORE_S: Final = 30.0
"""How long before a deadline jobs are handed back; claims end twice as early."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_QUICK_S: Final = 1.0


def work(options: WorkerOptions, launcher: Launcher) -> int:
    """Until it is told to stop. Returns 0; raises MachineError where the server refuses this worker."""
    return asyncio.run(_work(options, launcher))


async def _work(options: WorkerOptions, launcher: Launcher) -> int:
    machine = WorkerMachine(options)
    await asyncio.to_thread(machine.check)
    async with DialOut(options.url, options.token, agent=f"runyard-worker/{runyard.__version__}") as client:
        worker = Worker(options, client, machine, launcher)
        try:
            return await worker.run()
        finally:
            await launcher.close()
            if launcher.lost_any:
                await asyncio.to_thread(_reap)


def _reap() -> None:
    from runyard.sandbox import reap

    left = reap(all_engines=False).left
    if left:
        say(f"left behind by a worker that was killed, and not removed: {', '.join(left)}")


class Worker:
    """See the module."""

    def __init__(self, options: WorkerOptions, client: DialOut, machine: WorkerMachine, launcher: Launcher) -> None:
        self.options = options
        self.machine = machine
        self.jobs: dict[HeldJob, asyncio.Task[None]] = {}
        self.draining = asyncio.Event()
        self.ending = asyncio.Event()
        self._freed = asyncio.Event()
        self._client = client
        self._features: tuple[str, ...] = ()
        self._signals = 0
        self._is_away = False
        self._said_away_s = float("-inf")
        self._tasks: set[asyncio.Task[None]] = set()
        self._shop = Shop(
            options=options,
            client=client,
            machine=machine,
            launcher=launcher,
            checkouts=Checkouts(Path(options.cache_dir) / "checkouts"),
            spools=Path(state_folder()) / "spool",
            say=say,
            away=self._away,
            back=self._back,
            disk_free_mb=lambda: disk_free_mb(options.cache_dir),
        )

    async def run(self) -> int:
        """Until a drain is over."""
        self._features = await asyncio.to_thread(self.machine.features)
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._take_signal)
        self._spawn(asyncio.to_thread(_reap), "reap")
        self._spawn(deliver_left(self._shop), "what was left")
        if self.options.deadline_s is not None:
            self._spawn(self._keep_deadline(self.options.deadline_s), "deadline")
        try:
            await self._claim_until_drained()
        finally:
            # Also after a refusal: what runs is told of it by its own heartbeats.
            self.draining.set()
            await self._finish()
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)
        say("drained")
        return 0

    # Claims -----------------------------------------------------------------------------------------------------

    async def _claim_until_drained(self) -> None:
        claim_id = _fresh()
        backoff = Backoff(most_s=15.0)
        while not self.draining.is_set():
            if len(self.jobs) >= self.options.slots:
                self._freed.clear()
                await _first(self._freed.wait(), self.draining.wait())
                continue
            began = boot_s()
            claiming = asyncio.create_task(self._client.claim(self._request(claim_id, POLL_S)), name="claim")
            await _first(claiming, self.draining.wait())
            if not claiming.done():
                claiming.cancel()
                await asyncio.gather(claiming, return_exceptions=True)
                break
            try:
                answer = claiming.result()
            except AwayError as error:
                self._away(error)
                await _first(asyncio.sleep(backoff.next_s(error.after_s)), self.draining.wait())
                continue
            except LeaseOverError:  # what the claim id led to is over
                answer = None
            self._back()
            backoff.reset()
            claim_id = _fresh()
            if answer is not None:
                self._take(answer, began)
            elif boot_s() - began < _QUICK_S:
                await _first(asyncio.sleep(backoff.next_s(0.1)), self.draining.wait())
        await self._last_claim(claim_id)

    def _request(self, claim_id: str, wait_s: float, *, draining: bool = False) -> ClaimRequest:
        options = self.options
        return ClaimRequest(
            claim_id=claim_id,
            name=options.name,
            platform=options.platform,
            version=runyard.__version__,
            labels=self.machine.labels,
            features=self._features,
            slots=options.slots,
            free=0 if draining else options.slots - len(self.jobs),
            disk_free_mb=disk_free_mb(options.cache_dir),
            sandbox=options.sandbox,
            holds=tuple(Held(*job.fence) for job in self.jobs),
            draining=draining,
            wait_s=wait_s,
        )

    def _take(self, answer: ClaimAnswer, sent_s: float) -> None:
        job = HeldJob(self._shop, answer, sent_s)
        task = asyncio.create_task(job.run(), name=f"job {job.fence.job}")
        self.jobs[job] = task

        def ended(done: asyncio.Task[None]) -> None:
            self.jobs.pop(job, None)
            self._freed.set()
            if not done.cancelled() and (error := done.exception()) is not None:
                say(f"job {job.name}: a defect of Runyard: {type(error).__name__}: {error}")

        task.add_done_callback(ended)

    async def _last_claim(self, claim_id: str) -> None:
        """Say that this worker drains. A job that the cut poll was given meanwhile goes back, not counted."""
        began = boot_s()
        with contextlib.suppress(TimeoutError, AwayError, LeaseOverError, MachineError):
            async with asyncio.timeout(LAST_CLAIM_S):
                answer = await self._client.claim(self._request(claim_id, 0.0, draining=True))
                if answer is not None:
                    job = HeldJob(self._shop, answer, began)
                    await job.refuse("the worker drains")

    # The end ----------------------------------------------------------------------------------------------------

    def _take_signal(self) -> None:
        self._signals += 1
        if self._signals == 1:
            timeout = self.options.drain_timeout_s
            within = "" if timeout is None else f", for at most {timeout:g} s"
            say(f"draining: no new jobs, {len(self.jobs)} running to the end{within}; once more ends them at once")
            self.draining.set()
            if timeout is not None:
                self._spawn(self._cancel_after(timeout), "drain timeout")
        elif not self.ending.is_set():
            say("ending at once: jobs are handed back")
            self.give_back("the worker was stopped")

    async def _cancel_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        for job in list(self.jobs):
            job.cancel(Cancel(reason="runner shutdown", reason_code="runner_shutdown"))

    async def _keep_deadline(self, seconds: float) -> None:
        """By the clock that goes on while the machine sleeps."""
        until = boot_s() + seconds
        before = min(GIVE_BACK_BEFORE_S, seconds / 2)
        while (left := until - boot_s()) > before:
            if left <= min(2 * before, seconds * 0.75) and not self.draining.is_set():
                say(f"{left:.0f} s before the deadline: no new jobs")
                self.draining.set()
            await asyncio.sleep(min(left - before, 1.0))
        say("the deadline is near: jobs are handed back")
        self.give_back("the worker's time is up")

    def give_back(self, reason: str) -> None:
        """No new claims; every job ends now and goes back to the queue."""
        self.ending.set()
        self.draining.set()
        for job in self.jobs:
            job.give_back(reason)

    async def _finish(self) -> None:
        """Until no job is left; bounded from the moment that jobs are handed back."""
        while self.jobs:
            waiting = asyncio.gather(*self.jobs.values(), return_exceptions=True)
            if self.ending.is_set():
                try:
                    await asyncio.wait_for(waiting, END_S)
                except TimeoutError:
                    break
            else:
                await _first(waiting, self.ending.wait())
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What people see --------------------------------------------------------------------------------------------

    def _away(self, error: AwayError) -> None:
        if not self._is_away or boot_s() - self._said_away_s > SAY_AWAY_S:
            say(f"{error.message}; trying again" + (f". {error.remedy}" if error.remedy else ""))
            self._said_away_s = boot_s()
        self._is_away = True

    def _back(self) -> None:
        if self._is_away:
            say(f"connected to {self.options.url}")
        self._is_away = False

    def _spawn(self, work: Coroutine[object, object, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _fresh() -> str:
    return secrets.token_hex(12)


async def _first(*works: Awaitable[object]) -> None:
    """Until one of them is done; coroutines are cancelled then, futures that were given stay as they are."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, given in zip(tasks, works, strict=True):
            if task is not given:
                task.cancel()
