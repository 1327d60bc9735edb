"""The client, the lease and the delivery against a scripted server: every fault of the way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from engine.scripted import claim
from report.spooled import owner
from runyard.job import InputError, JobEvent, JobFinished, JobStarted, Log, StepFinished, StepStarted
from runyard.job.dialout import ClaimRequest, Heartbeat
from runyard.report.spool import Entry, Spool
from runyard.source.dialout import AwayError, DialOut, Fence, GapError, LeaseOverError, RefusedError, check_url
from runyard.source.dialout_delivery import FLUSH_BYTES, Delivery, LogPart, Pace, next_part
from runyard.source.dialout_lease import Backoff, Lease
from source.dialout_double import TOKEN, Double, Kept, problem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

ASK = ClaimRequest(claim_id="c1", name="w", platform="linux/amd64", version="0", wait_s=0.0)
FENCE = Fence("j1", 1, "l1")
DEADLINE_S = 15


def with_double(test: Callable[[Double, DialOut], Awaitable[None]], token: str = TOKEN) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S), Double().started() as server, DialOut(server.url, token) as client:
            await test(server, client)

    asyncio.run(main())


def answering(made: Callable[[], web.Response], calls: str = "", times: int = 1) -> Any:
    left = times

    async def fault(name: str, _: web.Request) -> web.Response | None:
        nonlocal left
        if left and name.startswith(calls):
            left -= 1
            return made()
        return None

    return fault


def cutting(calls: str, times: int = 1, *, after: Callable[[web.Request], Awaitable[object]] | None = None) -> Any:
    """Drops the connection without an answer, before or after the server did what was asked."""
    left = times

    async def fault(name: str, request: web.Request) -> web.Response | None:
        nonlocal left
        if left and name.startswith(calls):
            left -= 1
            if after is not None:
                await after(request)
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return None

    return fault


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (401, "token.unknown", RefusedError),
        (403, "token.scope", RefusedError),
        (503, "worker.no_tokens", AwayError),
        (500, "", AwayError),
        (429, "busy", AwayError),
        (409, "claim.over", LeaseOverError),
        (400, "request.protocol", RefusedError),
        (404, "", RefusedError),
        (301, "", RefusedError),
    ],
)
def test_an_answer_to_a_claim_says_what_may_follow(status: int, code: str, error: type[Exception]) -> None:
    async def test(server: Double, client: DialOut) -> None:
        server.faults.append(answering(lambda: problem(status, code, "said so", remedy="do this")))
        with pytest.raises(error) as caught:
            await client.claim(ASK)
        if status not in (301, 404) and code:
            assert "said so" in str(caught.value)
            assert "do this" in str(caught.value)
        assert TOKEN not in str(caught.value)

    with_double(test)


@pytest.mark.parametrize("status", [401, 403, 404, 409, 410])
def test_a_call_about_a_job_that_is_refused_ends_its_lease(status: int) -> None:
    async def test(server: Double, client: DialOut) -> None:
        server.offer(claim({"run": "x"}))
        server.faults.append(answering(lambda: problem(status, "lease.over", "gone")))
        lease = Lease(100.0, clock=lambda: 0.0)
        with pytest.raises(LeaseOverError, match="gone"):
            await lease.insist(lambda: client.heartbeat(FENCE, Heartbeat(), wait_s=0))
        assert lease.ended.is_set()
        assert lease.reason == "gone"

    with_double(test)


def test_a_claim_whose_answer_was_lost_is_given_again() -> None:
    async def test(server: Double, client: DialOut) -> None:
        given = claim({"run": "x"}, secrets={"S": "v"})
        server.offer(given)

        async def handed(request: web.Request) -> None:
            server.given["c1"] = server.waiting.pop()

        server.faults.append(cutting("claim", after=handed))
        with pytest.raises(AwayError):
            await client.claim(ASK)
        again = await client.claim(ASK)
        assert again is not None
        assert again.claim.spec.id == given.spec.id
        assert again.claim.secrets == {"S": "v"}
        assert await client.claim(ClaimRequest(claim_id="c2", name="w", platform="p", version="0", wait_s=0.0)) is None

    with_double(test)


def test_an_answer_that_is_none_is_no_good_answer() -> None:
    async def test(server: Double, client: DialOut) -> None:
        server.faults.append(answering(lambda: web.Response(text="<html>")))
        with pytest.raises(AwayError, match="no ClaimAnswer"):
            await client.claim(ASK)

    with_double(test)


@pytest.mark.parametrize(
    "url", ["", "ci.example.org", "ftp://x", "http://", "http://u:p@x", "http://x:port", "http://x?a=b"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InputError):
        check_url(url)


def test_an_address_loses_its_last_slash() -> None:
    assert check_url("https://ci.example.org/runyard/") == "https://ci.example.org/runyard"


# The lease ----------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_lease_is_over_when_its_own_clock_says_so() -> None:
    async def main() -> None:
        clock = Clock()
        lease = Lease(clock.now + 120, clock=clock)
        lease.check()
        clock.now += 60
        lease.extend(sent_s=clock.now - 5, good_for_s=120)
        assert lease.left_s == 115
        lease.extend(sent_s=clock.now - 50, good_for_s=60)
        assert lease.left_s == 115, "an older answer shortens nothing"
        clock.now += 200  # the machine slept
        calls = 0

        async def call() -> None:
            nonlocal calls
            calls += 1

        with pytest.raises(LeaseOverError, match="longer than the lease"):
            await lease.insist(call)
        assert calls == 0, "nothing goes out before the clock was looked at"
        lease.extend(sent_s=clock.now, good_for_s=120)
        with pytest.raises(LeaseOverError):
            lease.check()

    asyncio.run(main())


def test_a_lease_is_watched_through_failing_calls() -> None:
    async def main() -> None:
        clock = Clock()
        lease = Lease(clock.now + 10, clock=clock)
        tries = 0

        async def call() -> None:
            nonlocal tries
            tries += 1
            clock.now += 3
            raise AwayError("away")

        with pytest.raises(LeaseOverError):
            await lease.insist(call, backoff=Backoff(first_s=0.001, most_s=0.001))
        assert tries == 4

    asyncio.run(main())


def test_waits_double_up_to_their_bound_with_full_jitter() -> None:
    longest = Backoff(first_s=0.2, most_s=10, draw=lambda: 1.0)
    assert [longest.next_s() for _ in range(8)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10]
    assert longest.next_s(at_least_s=30) == 30
    longest.reset()
    assert longest.next_s() == 0.2
    shortest = Backoff(first_s=0.2, most_s=10, draw=lambda: 0.0)
    assert {shortest.next_s() for _ in range(5)} == {0.02}, "never in a circle without a wait"


# Delivery -----------------------------------------------------------------------------------------------------------


def log(step: int, offset: int, data: bytes, kind: Any = "output") -> Log:
    return Log(step, offset, 1, kind, data)


EVENTS: list[JobEvent] = [
    JobStarted(1),
    StepStarted(0, "Set up job", 1),
    log(0, 0, b"ready\n", "runner"),
    StepFinished(0, "Set up job", "success", "success", 2),
    StepStarted(1, "Run", 3),
    log(1, 0, b"echo\n", "command"),
    log(1, 5, b"one\n"),
    log(1, 9, b"two\xff\x00\n"),
    StepFinished(1, "Run", "success", "success", 4),
    JobFinished("success", 5, outputs={"a": "b"}),
]


def delivered(tmp_path: Path, *faults: Any, events: list[JobEvent] | None = None, segment: int = 8 << 20) -> Kept:
    """The events through a spool and a server with these faults."""
    kept_: list[Kept] = []

    async def test(server: Double, client: DialOut) -> None:
        kept = server.offer(claim({"run": "x"}))
        kept_.append(kept)
        server.faults += faults
        spool = Spool.create(tmp_path, owner(server.url), segment=segment)
        lease = Lease(60.0, clock=lambda: 0.0)
        delivery = Delivery(client, FENCE, lease, spool, backoff=Backoff(first_s=0.001, most_s=0.01))
        running = asyncio.create_task(delivery.run())
        for event in events or EVENTS:
            await delivery.take(event)
        taken = await running
        assert taken.accepted
        spool.remove()
        assert not list(tmp_path.iterdir())

    with_double(test)
    return kept_[0]


def check_whole(kept: Kept) -> None:
    assert bytes(kept.logs[0]) == b"ready\n"
    assert bytes(kept.logs[1]) == b"echo\none\ntwo\xff\x00\n"
    assert kept.events == [each for each in EVENTS if not isinstance(each, Log | JobFinished)]
    assert kept.result == EVENTS[-1]


@pytest.mark.parametrize(
    "faults",
    [
        (),
        (answering(lambda: problem(500, "boom"), times=5),),
        (answering(lambda: problem(503, "starting"), "log", times=3),),
        (cutting("steps", 2), cutting("log", 2), cutting("result", 2)),
        (answering(lambda: web.Response(text="?"), "result", times=2),),
        (answering(lambda: web.Response(text="not json"), "log", times=2),),
    ],
    ids=["plain", "errors", "away for logs", "cut", "an answer that is none", "a log answer that is none"],
)
def test_everything_arrives_once_and_in_order(tmp_path: Path, faults: tuple[Any, ...]) -> None:
    check_whole(delivered(tmp_path, *faults))


def test_F50_what_arrived_and_was_not_answered_is_sent_again_and_not_doubled(tmp_path: Path) -> None:
    async def fault(name: str, request: web.Request) -> web.Response | None:
        if name not in lost and name in ("log", "steps", "result"):
            lost.add(name)
            kept = request["double"].kept["j1"]
            await getattr(request["double"], f"_{name}")(kept, request)
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return None

    lost: set[str] = set()
    check_whole(delivered(tmp_path, fault))
    assert lost == {"log", "steps", "result"}


def test_F50_a_server_that_lost_its_end_gets_it_again(tmp_path: Path) -> None:
    """416 with an earlier offset: the spool still has those bytes."""
    cut: list[bool] = []

    async def fault(name: str, request: web.Request) -> web.Response | None:
        if name == "log" and int(request.query["offset"]) == 5 and not cut:
            cut.append(True)
            kept = request["double"].kept["j1"]
            del kept.logs[1][2:]
            return problem(416, "gap", expected=2)
        return None

    check_whole(delivered(tmp_path, fault))
    assert cut


def test_bytes_that_are_gone_on_both_sides_are_named_in_their_place(tmp_path: Path) -> None:
    """Small segments: what was acknowledged is gone here when the server asks for it again."""
    lines = [log(1 + number, 0, b"%0299d\n" % number) for number in range(6)]
    started = [StepStarted(1 + number, "Run", 1) for number in range(6)]
    told: list[JobEvent] = [each for pair in zip(started, lines, strict=True) for each in pair]
    more = log(1, 300, b"%099d\n" % 77)
    cut: list[int] = []

    async def fault(name: str, request: web.Request) -> web.Response | None:
        if name == "log" and request.query["offset"] == "300" and not cut:
            cut.append(300)
            del request["double"].kept["j1"].logs[1][100:]
            return problem(416, "gap", expected=100)
        return None

    kept = delivered(tmp_path, fault, events=[*told, more, JobFinished("success", 2)], segment=256)
    text = bytes(kept.logs[1])
    assert cut
    assert len(text) == 400
    assert text[:100] == lines[0].data[:100]
    assert text[100:300].strip() == b"[runyard: the server lost this part of the log]"
    assert text[300:] == more.data


def test_a_lease_that_is_over_ends_the_delivery(tmp_path: Path) -> None:
    with pytest.raises(LeaseOverError, match="lease is over"):
        delivered(tmp_path, answering(lambda: problem(409, "lease.over", "lease is over"), "steps"))


def test_bytes_that_the_server_does_not_want_do_not_end_the_job(tmp_path: Path) -> None:
    kept = delivered(tmp_path, answering(lambda: problem(404, "step.unknown"), "log"))
    assert kept.result is not None
    assert kept.logs[0] == b""
    assert bytes(kept.logs[1]) == b"echo\none\ntwo\xff\x00\n"


def test_masks_go_before_the_bytes_that_follow(tmp_path: Path) -> None:
    async def test(server: Double, client: DialOut) -> None:
        kept = server.offer(claim({"run": "x"}))
        server.faults.append(cutting("masks", 2))
        spool = Spool.create(tmp_path, owner(server.url))
        delivery = Delivery(client, FENCE, Lease(60.0, clock=lambda: 0.0), spool, backoff=Backoff(first_s=0.001))
        await delivery.take(StepStarted(1, "s", 1))
        delivery.hide(("secret",))
        await delivery.take(log(1, 0, b"***\n"))
        await delivery.take(JobFinished("success", 1))
        await delivery.run()
        assert kept.masks == ["secret"]
        assert kept.history.index("masks") < kept.history.index("log")
        written = b"".join(each.read_bytes() for each in spool.folder.iterdir())
        assert b"secret" not in written, "values to hide are never on disk"
        spool.remove()

    with_double(test)


def test_what_comes_together_goes_together() -> None:
    spool_like = [(-1, log(1, 0, b"a")), (-1, log(1, 1, b"b")), (-1, log(1, 2, b"c", "runner")), (-1, log(2, 0, b"d"))]
    entries = [Entry(number, event, 1) for number, event in spool_like]
    part, count = next_part(entries)
    assert part == LogPart(1, 0, "output", 1, b"ab")
    assert count == 2
    big = [Entry(-1, log(1, at * FLUSH_BYTES, b"x" * FLUSH_BYTES), FLUSH_BYTES) for at in range(3)]
    assert next_part(big)[1] == 1


def test_a_first_call_waits_for_nothing_and_later_ones_up_to_a_tenth_of_a_second() -> None:
    pace, now, waits = Pace(), 100.0, []
    for _ in range(12):
        waits.append(pace.wait_s(now))
        now += waits[-1]
        pace.sent(now)
    assert waits[0] == 0
    assert waits[1] < 0.01
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(0.1)
    assert pace.wait_s(now + 1) == 0


def test_a_gap_error_says_where_to_go_on() -> None:
    async def test(server: Double, client: DialOut) -> None:
        server.offer(claim({"run": "x"}))
        with pytest.raises(GapError) as caught:
            await client.log(FENCE, step=1, offset=99, kind="output", time_ns=1, data=b"q")
        assert caught.value.expected == 0

    with_double(test)
