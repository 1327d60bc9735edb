"""One job in a worker's hands: confirmed, executed in a process of its own, told, and ended with its lease.

Nothing is executed before the first sign of life was answered. While it runs, one task reads what the job tells into
the spool, one carries that up, one beats, one watches the clock. Whatever ends first decides: the result was accepted,
the lease is over, or the job is given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from runyard.engine.launch import Parent
from runyard.engine.wire import Extend
from runyard.job import Cancel, JobFinished, JobStarted, LeaseLost, Log, MachineError, RunyardError, StepFinished
from runyard.job import StepStarted as Begun
from runyard.job.dialout import HandBack, Heartbeat
from runyard.report.spool import Spool, SpoolOwner
from runyard.source.dialout import AwayError, Fence, LeaseOverError, RefusedError
from runyard.source.dialout_checkout import Holder
from runyard.source.dialout_delivery import Delivery
from runyard.source.dialout_lease import Backoff, Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from runyard.cli.worker_config import WorkerOptions
    from runyard.cli.worker_machine import WorkerMachine
    from runyard.engine.launch import JobHandle, Launcher
    from runyard.job import Conclusion, Order
    from runyard.job.dialout import ClaimAnswer, HeartbeatAnswer
    from runyard.source.dialout import DialOut
    from runyard.source.dialout_checkout import Checkouts

END_S: Final = 3.0
"""How long a job has to end by itself once its lease is over, before its process is killed."""

FORCE_S: Final = 8.0
HAND_BACK_S: Final = 10.0
_MOST_WAIT_S: Final = 55.0
_QUICK_S: Final = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shop:
    """What all jobs of one worker share."""

    options: WorkerOptions
    client: DialOut
    machine: WorkerMachine
    launcher: Launcher
    checkouts: Checkouts
    spools: Path
    say: Callable[[str], None]
    away: Callable[[AwayError], None]
    back: Callable[[], None]
    disk_free_mb: Callable[[], int | None]


class HeldJob(Parent):
    """See the module. `run` once; the other methods from the same loop at any time."""

    def __init__(self, shop: Shop, answer: ClaimAnswer, sent_s: float) -> None:
        self.shop = shop
        self.claim = answer.claim
        self.fence = Fence(self.claim.spec.id, self.claim.attempt, self.claim.lease_id)
        self.lease = Lease(sent_s + self.claim.expires_in_s)
        self._heartbeat_s = max(0.05, min(answer.heartbeat_s, _MOST_WAIT_S))
        self._seen = 0
        self._phase = "confirming"
        self._cancel: Cancel | None = None
        self._handle: JobHandle | None = None
        self._delivery: Delivery | None = None
        self._spool: Spool | None = None
        self._give_back: str | None = None
        self._wanted_back = asyncio.Event()
        self._has_run = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.claim.spec.name} ({self.fence.job}, attempt {self.fence.attempt})"

    async def run(self) -> None:
        """To its end. Raises nothing that a job or a server could cause."""
        try:
            await self._beat_once(0.0)
            self.shop.say(f"job {self.name} starts")
            self._spool = await asyncio.to_thread(self._new_spool)
            await self._execute()
        except LeaseOverError as error:
            self.shop.say(f"job {self.name}: the lease is over ({error.message}); nothing more is reported")
            await self._end_process()
            self._drop_spool()
        except (RunyardError, OSError) as error:
            self.shop.say(f"job {self.name} is handed back: {error}")
            await self._hand_back(str(error))
        finally:
            await self._end_process()
            for task in list(self._tasks):
                task.cancel()
            if self._spool is not None:
                self._spool.close()

    async def refuse(self, reason: str) -> None:
        """Give it back without having begun. Quiet where the server doesn't take it: it was never confirmed."""
        await self._hand_back(reason)

    def _new_spool(self) -> Spool:
        owner = SpoolOwner(self.shop.client.url, self.shop.options.name, *self.fence)
        return Spool.create(self.shop.spools, owner)

    # Orders -----------------------------------------------------------------------------------------------------

    def cancel(self, order: Cancel) -> None:
        """The ladder of a cancellation; by force the process is killed when it doesn't end soon."""
        self._cancel = order if self._cancel is None or order.force else self._cancel
        self._send(order)
        if order.force and self._handle is not None:
            self._spawn(self._kill_soon(self._handle))

    def give_back(self, reason: str) -> None:
        """End the sandbox and hand the job back."""
        if self._give_back is None:
            self._give_back = reason
            self._wanted_back.set()

    def _obey(self, order: Order) -> None:
        match order:
            case Cancel():
                self.shop.say(f"job {self.name} is cancelled{': ' + order.reason if order.reason else ''}")
                self.cancel(order)
            case LeaseLost():
                self.lease.end(order.reason or "the server took it back")
            case _:
                self._send(order)

    def _send(self, message: object) -> None:
        if self._handle is not None:
            self._spawn(self._handle.send(message))

    async def _kill_soon(self, handle: JobHandle) -> None:
        await asyncio.sleep(FORCE_S)
        handle.kill()

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # What the job process asks: see Parent -------------------------------------------------------------------------

    def hide(self, values: tuple[str, ...]) -> None:
        """See Parent."""
        if self._delivery is not None:
            self._delivery.hide(values)

    async def repository(self, depth: int) -> str:
        """See Parent."""
        checkout = self.claim.checkout
        if checkout is None:
            return await super().repository(depth)
        if checkout.git_dir is not None:
            return checkout.git_dir
        holder = Holder(self.shop.client, self.fence, self.lease, self.shop.away)
        return await self.shop.checkouts.get(holder, checkout, depth)

    # Execution --------------------------------------------------------------------------------------------------

    async def _execute(self) -> None:
        assert self._spool is not None
        self._delivery = Delivery(
            self.shop.client, self.fence, self.lease, self._spool, away=self.shop.away, back=self.shop.back
        )
        reading = asyncio.create_task(self._read(), name=f"events of {self.fence.job}")
        delivering = asyncio.create_task(self._delivery.run(), name=f"delivery of {self.fence.job}")
        beating = asyncio.create_task(self._beat(), name=f"heartbeat of {self.fence.job}")
        watching = asyncio.create_task(self.lease.watch(), name=f"lease of {self.fence.job}")
        wanted = asyncio.create_task(self._wanted_back.wait(), name=f"hand-back of {self.fence.job}")
        tasks: set[asyncio.Task[object]] = {reading, delivering, beating, watching, wanted}
        waiting = set(tasks)
        try:
            while not delivering.done():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if wanted in done:
                    raise MachineError(self._give_back or "", code="worker.given_back")
                self.lease.check()
                for task in done:
                    task.result()
            delivering.result()
            self._spool.remove()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self) -> None:
        """Start the process and put what it tells into the spool."""
        assert self._delivery is not None
        if self._cancel is not None:  # a job that was cancelled before it started never starts
            await self._tell_ended(
                "cancelled", self._cancel.reason or "the job was cancelled", self._cancel.reason_code
            )
            return
        try:
            settings = await asyncio.to_thread(self.shop.machine.settings, self.claim)
        except MachineError as error:
            await self._tell_ended("failure", str(error), "unavailable")
            return
        self.lease.check()
        self._handle = await self.shop.launcher.launch(self.claim, settings, parent=self)
        self._phase = "running"
        await self._handle.send(Extend(self.lease.until_s))
        if self._cancel is not None:
            self._send(self._cancel)
        finished: JobFinished | None = None
        async for event in self._handle.events():
            self._has_run = self._has_run or (isinstance(event, Begun) and event.step > 0)
            if isinstance(event, JobFinished):
                finished = await self._bring(event, settings.collect_dir)
                self._phase = "telling"
                self.shop.say(f"job {self.name} ended: {finished.conclusion}{_why(finished)}")
            if not self.lease.ended.is_set():
                await self._delivery.take(finished or event)
        if finished is None:
            raise MachineError("the job process ended without a word", code="engine.no_result")

    async def _bring(self, finished: JobFinished, folder: str) -> JobFinished:
        """Upload what the pipeline declared as artifacts, before the result; one that is refused fails the job."""
        for wanted in self.claim.spec.collect if folder else ():
            path = Path(folder, f"{wanted.name}.tar")
            if self.lease.ended.is_set() or not await asyncio.to_thread(path.is_file):
                continue
            send = functools.partial(self.shop.client.artifact, self.fence, wanted.name, str(path))
            try:
                await self.lease.insist(send, away=self.shop.away)
            except RefusedError as error:
                reason = f"artifact {wanted.name} was refused: {error.message}"
                self.shop.say(f"job {self.name}: {reason}")
                finished = msgspec.structs.replace(
                    finished, conclusion="failure", reason=finished.reason or reason, reason_code="refused"
                )
        if folder:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        return finished

    async def _tell_ended(self, conclusion: Conclusion, reason: str, code: str) -> None:
        """A job of which nothing ran here, as events."""
        assert self._delivery is not None
        now, name = time.time_ns(), "Set up job"
        for event in (
            JobStarted(now),
            Begun(0, name, now),
            Log(0, 0, now, "runner", f"##[error]{reason}\n".encode("utf-8", "replace")),
            StepFinished(0, name, conclusion, conclusion, now, reason=reason, reason_code=code),
            JobFinished(conclusion, now, reason=reason, reason_code=code),
        ):
            await self._delivery.take(event)

    # The lease --------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            began = self.lease.clock()
            answer = await self._beat_once(self._heartbeat_s)
            if not answer.orders and self.lease.clock() - began < min(_QUICK_S, self._heartbeat_s / 2):
                # It answers at once, without the wait that it was asked for: don't ask in circles.
                await asyncio.sleep(min(1.0, self._heartbeat_s / 2))

    async def _beat_once(self, wait_s: float) -> HeartbeatAnswer:
        async def call() -> HeartbeatAnswer:
            sent = self.lease.clock()
            beat = Heartbeat(seen=self._seen, phase=self._phase, disk_free_mb=self.shop.disk_free_mb())
            given = await self.shop.client.heartbeat(self.fence, beat, wait_s=wait_s)
            self.lease.extend(sent, given.expires_in_s)
            return given

        backoff = Backoff(most_s=min(5.0, max(self._heartbeat_s / 2, 0.2)))
        answer = await self.lease.insist(call, backoff=backoff, away=self.shop.away)
        self.shop.back()
        if self._handle is not None:
            await self._handle.send(Extend(self.lease.until_s))
        for each in sorted(answer.orders, key=lambda numbered: numbered.number):
            if each.number > self._seen:
                self._seen = each.number
                self._obey(each.order)
        return answer

    # The end ----------------------------------------------------------------------------------------------------

    async def _end_process(self) -> None:
        """The sandbox is gone when this returns. Safe to repeat."""
        handle, self._handle = self._handle, None
        if handle is None or handle.ended.is_set():
            return
        draining = asyncio.create_task(_drain(handle))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await handle.order(LeaseLost(self.lease.reason))
                await handle.ended.wait()
        if not handle.ended.is_set():
            handle.kill()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await handle.ended.wait()
        draining.cancel()

    async def _hand_back(self, reason: str) -> None:
        """End the sandbox, tell what there is to tell, give the job back. A server that is away hears it later."""
        await self._end_process()
        try:
            async with asyncio.timeout(HAND_BACK_S):
                if self._delivery is not None:
                    await self._delivery.flush()
                back = HandBack(reason, counted=self._has_run)
                await self.lease.insist(lambda: self.shop.client.hand_back(self.fence, back), away=self.shop.away)
        except (TimeoutError, RefusedError):
            self.shop.say(f"job {self.name}: the server does not take it back now; the next start tells it")
        except LeaseOverError:
            self._drop_spool()
        else:
            self._drop_spool()

    def _drop_spool(self) -> None:
        if self._spool is not None:
            self._spool.remove()


def _why(event: JobFinished) -> str:
    return f" ({event.reason})" if event.reason else ""


async def _drain(handle: JobHandle) -> None:
    """Somebody has to read a job's events; nobody wants these."""
    async for _ in handle.events():
        pass
