"""One lease's events on their way to the server: in order, coalesced, repeated until they were acknowledged.

What the job tells goes into the spool first and is sent from there, so a server that is away delays the telling and
nothing else. A replay is harmless by offset and number; a 416 says where to go on. What comes together goes together:
the first bytes at once, then at most about ten calls a second, or as soon as 256 KiB are there.
"""

from __future__ import annotations

import asyncio
import functools
import time
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from runyard.job import JobFinished, JobStarted, Log, LogKind, StepFinished, StepStarted
from runyard.job.dialout import Events, MaskValues
from runyard.source.dialout import GapError, RefusedError
from runyard.source.dialout_lease import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from runyard.job import JobEvent
    from runyard.job.dialout import LifeEvent, ResultAnswer
    from runyard.report.spool import Entry, Spool
    from runyard.source.dialout import AwayError, DialOut, Fence
    from runyard.source.dialout_lease import Lease

FLUSH_BYTES: Final = 256 << 10
SLOWEST_S: Final = 0.1
_QUICKEST_S: Final = 0.004
_QUIET_S: Final = 0.5
_MOST_EVENTS: Final = 256
_MOST_REWINDS: Final = 100
_MOST_FILLER: Final = 1 << 20
_URGENT: Final = (JobStarted, StepStarted, StepFinished, JobFinished)
"""What somebody may be waiting for: sent without waiting for more."""

T = TypeVar("T")

_LOST: Final = b"\n[runyard: the server lost this part of the log]\n"


class LogPart(NamedTuple):
    """Bytes of one step and kind, in one call."""

    step: int
    offset: int
    kind: LogKind
    time_ns: int
    data: bytes


class Result(NamedTuple):
    """The job's end, as the bytes that are sent each time."""

    body: bytes


Part: TypeAlias = LogPart | Events | Result


def next_part(entries: Sequence[Entry]) -> tuple[Part, int]:
    """What goes into the next call, and how many entries it takes; `entries` is not empty."""
    first = entries[0]
    if isinstance(first.event, JobFinished):
        return Result(msgspec.json.encode(first.event)), 1
    if isinstance(first.event, Log):
        log = first.event
        chunks = [log.data]
        size = len(log.data)
        for entry in entries[1:]:
            event = entry.event
            follows = isinstance(event, Log) and (event.step, event.kind, event.offset) == (
                log.step,
                log.kind,
                log.offset + size,
            )
            if not follows or size >= FLUSH_BYTES:
                break
            assert isinstance(event, Log)
            chunks.append(event.data)
            size += len(event.data)
        return LogPart(log.step, log.offset, log.kind, log.time_ns, b"".join(chunks)), len(chunks)
    events: list[LifeEvent] = []
    for entry in entries[:_MOST_EVENTS]:
        if isinstance(entry.event, Log | JobFinished) or entry.number != first.number + len(events):
            break
        events.append(entry.event)
    return Events(first.number, tuple(events)), len(events)


class Pace:
    """How long to wait before the next call: nothing after a pause, then longer up to SLOWEST_S while bytes flow."""

    def __init__(self) -> None:
        self._gap = 0.0
        self._last = float("-inf")

    def wait_s(self, now: float) -> float:
        """Seconds from now."""
        if now - self._last > _QUIET_S:
            self._gap = 0.0
        return max(self._last + self._gap - now, 0.0)

    def sent(self, now: float) -> None:
        """A call went out."""
        self._gap = min(max(self._gap * 2, _QUICKEST_S), SLOWEST_S)
        self._last = now


class Delivery:
    """Takes a job's events (`take`, `hide`) and carries them up (`run`, a task of its own)."""

    def __init__(
        self,
        client: DialOut,
        fence: Fence,
        lease: Lease,
        spool: Spool,
        *,
        backoff: Backoff | None = None,
        away: Callable[[AwayError], None] | None = None,
        back: Callable[[], None] | None = None,
    ) -> None:
        self._client, self._fence, self._lease, self._spool = client, fence, lease, spool
        self._backoff = backoff or Backoff(most_s=5.0)
        self._away, self._back = away, back
        self._masks: list[str] = []
        self._more = asyncio.Event()
        self._room = asyncio.Event()
        self._pace = Pace()
        self._has: dict[int, int] = {}
        self._next_event = 0
        self._rewinds = 0
        self.result: ResultAnswer | None = None

    # In -------------------------------------------------------------------------------------------------------------

    async def take(self, event: JobEvent) -> None:
        """One event, in order. Waits while the spool is full: the job's output waits with it."""
        while self._spool.is_full and not self._lease.ended.is_set():
            self._room.clear()
            waits = {asyncio.ensure_future(self._room.wait()), asyncio.ensure_future(self._lease.ended.wait())}
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in waits:
                    each.cancel()
        self._spool.append(event)
        if isinstance(event, JobFinished):
            # It must not be lost once it is known: another attempt would do the work again.
            await asyncio.to_thread(self._spool.sync)
        self._more.set()

    def hide(self, values: Sequence[str]) -> None:
        """Values that the server must know before it gets the bytes that follow."""
        self._masks += values
        self._more.set()

    # Out ------------------------------------------------------------------------------------------------------------

    async def run(self) -> ResultAnswer:
        """Until the result was accepted. Raises LeaseOverError."""
        while True:
            while not (entries := self._spool.read(FLUSH_BYTES)):
                self._more.clear()
                if not self._spool.read(1):
                    await self._more.wait()
            await self._gather(entries)
            await self._send_masks()
            part, count = next_part(self._spool.read(FLUSH_BYTES))
            if not await self._send(part):
                self._spool.rewind()
                continue
            self._pace.sent(time.monotonic())
            self._spool.done(count)
            self._room.set()
            if isinstance(part, Result):
                assert self.result is not None
                return self.result

    async def flush(self) -> None:
        """Deliver what is in the spool and has no result, then return: before a job is handed back."""
        while entries := self._spool.read(FLUSH_BYTES):
            part, count = next_part(entries)
            if isinstance(part, Result):
                return
            if await self._send(part):
                self._spool.done(count)
            else:
                self._spool.rewind()

    async def _gather(self, entries: Sequence[Entry]) -> None:
        """Let more come together, for a little while."""
        while True:
            if sum(entry.size for entry in entries) >= FLUSH_BYTES or any(
                isinstance(entry.event, _URGENT) for entry in entries
            ):
                return
            left = self._pace.wait_s(time.monotonic())
            if left <= 0:
                return
            self._more.clear()
            try:
                async with asyncio.timeout(left):
                    await self._more.wait()
            except TimeoutError:
                return
            entries = self._spool.read(FLUSH_BYTES)

    async def _send_masks(self) -> None:
        while self._masks:
            values = MaskValues(tuple(self._masks))
            await self._insist(functools.partial(self._client.masks, self._fence, values))
            del self._masks[: len(values.values)]

    async def _send(self, part: Part) -> bool:
        """False: not all of it is there; `_has` and `_next_event` say what the server wants."""
        match part:
            case Result(body):
                self.result = await self._insist(lambda: self._client.result(self._fence, body))
                return True
            case LogPart():
                return await self._send_log(part)
            case _:
                return await self._send_events(part)

    async def _send_log(self, part: LogPart) -> bool:
        known = self._has.get(part.step, 0)
        end = part.offset + len(part.data)
        if end <= known:
            return True
        step, offset, kind, time_ns, data = part
        if offset > known and self._rewinds and step in self._has:
            # The server wants bytes that are gone here: it acknowledged them once. Say so in their place.
            offset, data = known, _filler(min(offset - known, _MOST_FILLER))
        elif offset < known:
            offset, data = known, data[known - offset :]

        async def send() -> int:
            return await self._client.log(self._fence, step=step, offset=offset, kind=kind, time_ns=time_ns, data=data)

        try:
            self._has[step] = await self._insist(send)
        except GapError as gap:
            self._has[step] = gap.expected
            return self._again()
        except RefusedError:
            # These bytes are not wanted (a step the server doesn't know, say): that must not end the job.
            self._has[step] = end
            return True
        if self._has[step] < offset + len(data):
            return self._again()
        return self._has[step] >= end

    async def _send_events(self, part: Events) -> bool:
        end = part.first + len(part.events)
        if end <= self._next_event:
            return True
        if part.first > self._next_event and self._rewinds:
            self._lease.end(f"the server lost events of this job: it wants number {self._next_event}")
            self._lease.check()
        try:
            self._next_event = await self._insist(lambda: self._client.events(self._fence, part))
        except GapError as gap:
            self._next_event = gap.expected
            return self._again()
        return self._next_event >= end or self._again()

    def _again(self) -> bool:
        self._rewinds += 1
        if self._rewinds > _MOST_REWINDS:
            self._lease.end("the server asks again and again for what it was sent")
            self._lease.check()
        return False

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T:
        answer = await self._lease.insist(call, backoff=self._backoff, away=self._away)
        if self._back is not None:
            self._back()
        return answer


def _filler(size: int) -> bytes:
    """So many bytes that say why they are there."""
    return (_LOST * (size // len(_LOST) + 1))[:size] if size < len(_LOST) else _LOST.rjust(size, b" ")
