"""A scripted server of the dial-out protocol: hands out claims, keeps what it is told, and misbehaves on demand.

It holds to the protocol by itself (fences, offsets, numbers, orders repeated until seen), so a worker that passes
against it has spoken correctly. `faults` come first: each is asked for every call and may answer, delay or cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from runyard.job import Claim, JobFinished, Order
from runyard.job.dialout import (
    ATTEMPT_HEADER,
    LEASE_HEADER,
    PREFIX,
    ClaimAnswer,
    ClaimRequest,
    Events,
    EventsAnswer,
    HandBack,
    Heartbeat,
    HeartbeatAnswer,
    LogAnswer,
    MaskValues,
    NumberedOrder,
    Problem,
    ResultAnswer,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Fault = Callable[[str, web.Request], Awaitable[web.StreamResponse | None]]

TOKEN = "token-of-the-worker"


def problem(status: int, code: str, message: str = "no", **keys: Any) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(Problem(code, message, **keys)))


def answer(value: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")


class Kept:
    """What one attempt told."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.logs: dict[int, bytearray] = defaultdict(bytearray)
        self.kinds: dict[int, list[str]] = defaultdict(list)
        self.events: list[Any] = []
        self.masks: list[str] = []
        self.beats: list[Heartbeat] = []
        self.orders: list[NumberedOrder] = []
        self.result: JobFinished | None = None
        self.result_body = b""
        self.results = 0
        self.hand_back: HandBack | None = None
        self.order_came = asyncio.Event()
        self.changed = asyncio.Event()
        self.over = False
        self.history: list[str] = []

    def text(self) -> str:
        """All that steps printed and the runner said, in the order of steps."""
        return b"".join(bytes(self.logs[step]) for step in sorted(self.logs)).decode("utf-8", "replace")


class Double:
    """Use `started()` as a context; `url` is its address then."""

    def __init__(self, *, lease_s: float = 30.0, heartbeat_s: float = 10.0) -> None:
        self.lease_s, self.heartbeat_s = lease_s, heartbeat_s
        self.waiting: list[Claim] = []
        self.given: dict[str, Claim] = {}
        self.kept: dict[str, Kept] = {}
        self.claims: list[ClaimRequest] = []
        self.checkouts: list[dict[str, str]] = []
        self.tar = b""
        self.tar_headers: dict[str, str] = {}
        self.faults: list[Fault] = []
        self.calls: list[tuple[float, str]] = []
        self.came = asyncio.Event()
        self.url = ""
        self._runner: web.AppRunner | None = None
        self._port = 0

    # Life

    @contextlib.asynccontextmanager
    async def started(self) -> AsyncIterator[Double]:
        await self.up()
        try:
            yield self
        finally:
            await self.down()

    async def up(self) -> None:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def down(self) -> None:
        """Away: connections are refused. What it keeps it has when it is up again."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def offer(self, claim: Claim) -> Kept:
        self.waiting.append(claim)
        kept = self.kept[claim.spec.id] = Kept(claim)
        self.came.set()
        return kept

    def order(self, kept: Kept, order: Order) -> None:
        kept.orders.append(NumberedOrder(len(kept.orders) + 1, order))
        kept.order_came.set()

    async def until(self, true: Callable[[], bool], seconds: float = 20.0) -> None:
        """Wait for what calls bring about."""
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, f"not within {seconds} s; calls: {[name for _, name in self.calls[-20:]]}"
            await asyncio.sleep(0.01)

    # Calls

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        path = request.path.removeprefix(PREFIX + "/")
        name = path if path == "claim" else path.split("/", 2)[2]
        self.calls.append((time.monotonic(), name))
        request["double"] = self  # faults reach it here
        for fault in list(self.faults):
            if (faulty := await fault(name, request)) is not None:
                return faulty
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return problem(401, "token.unknown", "no such token")
        if name == "claim":
            return await self._claim(msgspec.json.decode(await request.read(), type=ClaimRequest))
        kept = self.kept.get(path.split("/")[1])
        if kept is None:
            return problem(404, "job.unknown")
        fence = (request.headers.get(LEASE_HEADER), request.headers.get(ATTEMPT_HEADER))
        if kept.over or fence != (kept.claim.lease_id, str(kept.claim.attempt)):
            return problem(409, "lease.over", "this lease is over")
        kept.history.append(name)
        answered = await getattr(self, f"_{name.split('/')[0]}")(kept, request)
        kept.changed.set()
        assert isinstance(answered, web.StreamResponse)
        return answered

    async def _claim(self, asked: ClaimRequest) -> web.Response:
        self.claims.append(asked)
        given = self.given.get(asked.claim_id)
        if given is None and asked.free:
            end = time.monotonic() + asked.wait_s
            while not self.waiting:
                self.came.clear()
                try:
                    await asyncio.wait_for(self.came.wait(), end - time.monotonic())
                except TimeoutError:
                    break
            if self.waiting:
                given = self.given[asked.claim_id] = self.waiting.pop(0)
        if given is None:
            return web.Response(status=204)
        return answer(ClaimAnswer(claim=given, heartbeat_s=self.heartbeat_s))

    async def _heartbeat(self, kept: Kept, request: web.Request) -> web.Response:
        beat = msgspec.json.decode(await request.read(), type=Heartbeat)
        kept.beats.append(beat)
        end = time.monotonic() + float(request.query["wait"])
        while not (left := [order for order in kept.orders if order.number > beat.seen]):
            kept.order_came.clear()
            try:
                await asyncio.wait_for(kept.order_came.wait(), end - time.monotonic())
            except TimeoutError:
                break
        return answer(HeartbeatAnswer(expires_in_s=self.lease_s, orders=tuple(left)))

    async def _masks(self, kept: Kept, request: web.Request) -> web.Response:
        kept.masks += msgspec.json.decode(await request.read(), type=MaskValues).values
        return web.Response(status=204)

    async def _log(self, kept: Kept, request: web.Request) -> web.Response:
        step, offset = int(request.query["step"]), int(request.query["offset"])
        data = await request.read()
        log = kept.logs[step]
        if offset > len(log):
            return problem(416, "gap", expected=len(log))
        if log[offset : offset + len(data)] != data[: len(log) - offset]:
            return problem(409, "log.conflict")
        log += data[len(log) - offset :]
        kept.kinds[step].append(request.query["kind"])
        return answer(LogAnswer(len(log)))

    async def _steps(self, kept: Kept, request: web.Request) -> web.Response:
        told = msgspec.json.decode(await request.read(), type=Events)
        if told.first > len(kept.events):
            return problem(416, "gap", expected=len(kept.events))
        kept.events += told.events[len(kept.events) - told.first :]
        return answer(EventsAnswer(len(kept.events)))

    async def _result(self, kept: Kept, request: web.Request) -> web.Response:
        body = await request.read()
        kept.results += 1
        if kept.result is not None:
            return answer(ResultAnswer(repeated=True)) if body == kept.result_body else problem(409, "result.other")
        kept.result, kept.result_body = msgspec.json.decode(body, type=JobFinished), body
        return answer(ResultAnswer())

    async def _handback(self, kept: Kept, request: web.Request) -> web.Response:
        kept.hand_back = msgspec.json.decode(await request.read(), type=HandBack)
        kept.over = True
        return web.Response(status=204)

    async def _checkout(self, kept: Kept, request: web.Request) -> web.StreamResponse:
        self.checkouts.append({**request.query, **request.headers})
        if not self.tar:
            return problem(404, "checkout.none", "this job has no repository")
        begin = 0
        headers = {"ETag": '"one"', **self.tar_headers}
        if (span := request.headers.get("Range")) and request.headers.get("If-Range") == headers["ETag"]:
            begin = int(span.removeprefix("bytes=").rstrip("-"))
            headers["Content-Range"] = f"bytes {begin}-{len(self.tar) - 1}/{len(self.tar)}"
        return web.Response(status=206 if begin else 200, body=self.tar[begin:], headers=headers)
