"""The worker command against a scripted server, with real job processes in real sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e.worker_process import WorkerProcess, job, with_worker
from runyard.job import Cancel, StepFinished
from source.dialout_double import problem

if TYPE_CHECKING:
    from aiohttp import web

    from source.dialout_double import Double

pytestmark = pytest.mark.timeout(100)


def test_a_job_is_claimed_executed_and_told(tmp_path: Path) -> None:
    async def test(server: Double, worker: WorkerProcess) -> None:
        kept = server.offer(
            job(
                "one",
                {
                    "run": "echo hello; echo '::add-mask::hide-me-now'; echo 'it is hide-me-now'\n"
                    "echo o=v >> $GITHUB_OUTPUT",
                    "id": "s",
                },
                outputs={"o": "${{ steps.s.outputs.o }}"},
            )
        )
        await server.until(lambda: kept.result is not None)
        assert kept.result is not None
        assert kept.result.conclusion == "success", kept.text()
        assert kept.result.outputs == {"o": "v"}
        assert "hello\n" in kept.text()
        assert "it is ***\n" in kept.text()
        assert "hide-me-now" in kept.masks
        assert kept.history.index("masks") < max(at for at, call in enumerate(kept.history) if call == "log")
        assert {each.step for each in kept.events if isinstance(each, StepFinished)} >= {0, 1}
        assert "Platform: linux/amd64 (native)" in kept.text()
        assert "Image: host" in kept.text()
        assert worker.lines[0].startswith("runyard worker w1 (linux/amd64) → http://127.0.0.1:")

    with_worker(tmp_path, test)


def processes_with(text: str) -> list[str]:
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with contextlib.suppress(OSError):
                if text.encode() in (each / "cmdline").read_bytes():
                    found.append(each.name)
    return found


def numbers(text: str) -> list[int]:
    return [int(line.split()[1]) for line in text.splitlines() if line.startswith("n ")]


COUNT = {"run": 'for i in $(seq 0 39); do echo "n $i"; sleep 0.1; done'}


def test_F26_a_drain_takes_no_more_and_lets_the_busy_job_end(tmp_path: Path) -> None:
    async def test(server: Double, worker: WorkerProcess) -> None:
        busy = server.offer(job("busy", {"run": 'for i in $(seq 0 14); do echo "n $i"; sleep 0.1; done'}))
        await server.until(lambda: "n 0" in busy.text())
        worker.signal(signal.SIGTERM)
        await server.until(lambda: server.claims[-1].draining)
        later = server.offer(job("later", {"run": "echo no"}))
        assert await worker.ended() == 0
        assert busy.result is not None
        assert busy.result.conclusion == "success"
        assert numbers(busy.text()) == list(range(15))
        assert later.beats == []
        assert later.hand_back is None

    with_worker(tmp_path, test, "--slots", "2")


def test_a_job_that_was_given_to_the_poll_that_the_drain_cut_goes_back(tmp_path: Path) -> None:
    async def test(server: Double, worker: WorkerProcess) -> None:
        await server.until(lambda: len(server.claims) == 1)
        given = job("late", {"run": "echo no"})
        kept = server.offer(given)
        server.waiting.clear()
        server.given[server.claims[0].claim_id] = given  # handed out, and the answer never arrives
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
        assert kept.hand_back is not None
        assert not kept.hand_back.counted
        assert kept.events == []

    with_worker(tmp_path, test)


def test_a_second_signal_ends_at_once_and_hands_back(tmp_path: Path) -> None:
    async def test(server: Double, worker: WorkerProcess) -> None:
        kept = server.offer(job("long", {"run": "echo here; exec sleep 98.7601"}))
        await server.until(lambda: "here" in kept.text())
        worker.signal(signal.SIGTERM)
        await server.until(lambda: any("draining" in line for line in worker.lines))
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
        assert kept.hand_back is not None
        assert kept.hand_back.counted, "a step had begun"
        assert kept.result is None
        assert not processes_with("98.7601")

    with_worker(tmp_path, test)


def test_a_drain_that_takes_too_long_cancels(tmp_path: Path) -> None:
    async def test(server: Double, worker: WorkerProcess) -> None:
        kept = server.offer(
            job("long", {"run": "echo here; exec sleep 98.7602"}, {"run": "echo bye", "if": "always()"})
        )
        await server.until(lambda: "here" in kept.text())
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
        assert kept.result is not None
        assert kept.result.reason_code == "runner_shutdown"

    with_worker(tmp_path, test, "--drain-timeout", "500ms")


def test_before_its_deadline_a_worker_hands_back_and_ends(tmp_path: Path) -> None:
    async def test(server: Double, worker: WorkerProcess) -> None:
        kept = server.offer(job("long", {"run": "echo here; exec sleep 98.7603"}))
        assert await worker.ended() == 0
        assert kept.hand_back is not None
        assert kept.result is None

    with_worker(tmp_path, test, "--deadline", "6s")


def test_a_cancellation_reaches_a_silent_step(tmp_path: Path) -> None:
    async def test(server: Double, worker: WorkerProcess) -> None:
        kept = server.offer(job("silent", {"run": "echo here; exec sleep 98.7604"}))
        await server.until(lambda: "here" in kept.text())
        server.order(kept, Cancel(reason="by somebody"))
        began = time.monotonic()
        await server.until(lambda: not processes_with("98.7604"), seconds=15)
        took = time.monotonic() - began
        await server.until(lambda: kept.result is not None)
        assert kept.result is not None
        assert (kept.result.conclusion, kept.result.reason) == ("cancelled", "by somebody")
        assert kept.beats[-1].seen == 1
        assert took < 12, "GitHub's own ladder takes 7.5 s for a process that ignores signals; this one doesn't"

    with_worker(tmp_path, test)


def test_F08_a_job_that_was_cancelled_before_it_started_never_starts(tmp_path: Path) -> None:
    async def test(server: Double, worker: WorkerProcess) -> None:
        kept = server.offer(job("early", {"run": "echo here"}))
        server.order(kept, Cancel())
        await server.until(lambda: kept.result is not None)
        assert kept.result is not None
        assert kept.result.conclusion == "cancelled"
        assert "here" not in kept.text()

    with_worker(tmp_path, test)


def test_F02_a_server_that_is_away_for_a_while_misses_nothing(tmp_path: Path) -> None:
    async def test(server: Double, worker: WorkerProcess) -> None:
        kept = server.offer(job("count", COUNT))
        await server.until(lambda: "n 5\n" in kept.text())
        await server.down()
        await asyncio.sleep(1.5)  # real time: the job works on meanwhile
        await server.up()
        await server.until(lambda: kept.result is not None)
        assert kept.result is not None
        assert kept.result.conclusion == "success"
        assert numbers(kept.text()) == list(range(40))
        assert any("trying again" in line for line in worker.lines)
        assert any("connected to" in line for line in worker.lines)

    with_worker(tmp_path, test)


def test_F02_a_server_that_is_away_longer_than_the_lease_ends_the_sandbox(tmp_path: Path) -> None:
    async def test(server: Double, worker: WorkerProcess) -> None:
        kept = server.offer(job("long", {"run": "echo here; exec sleep 98.7605"}, lease_s=3))
        await server.until(lambda: "here" in kept.text())
        await server.down()
        await server.until(lambda: not processes_with("98.7605"))
        before = len(server.calls)
        await server.up()
        again = server.offer(job("next", {"run": "echo next"}, lease_s=3))
        await server.until(lambda: again.result is not None)
        assert {name for _, name in server.calls[before:]} >= {"claim"}
        assert kept.result is None
        assert not list((tmp_path / "state" / "spool").iterdir())

    with_worker(tmp_path, test, lease_s=3, heartbeat_s=0.5)


def test_a_lost_lease_ends_the_sandbox_and_nothing_more_is_told(tmp_path: Path) -> None:
    async def test(server: Double, worker: WorkerProcess) -> None:
        kept = server.offer(job("lost", {"run": "echo here; exec sleep 98.7606"}))
        await server.until(lambda: "here" in kept.text())
        kept.over = True
        server.order(kept, Cancel())  # wakes the parked heartbeat; the next one gets 409
        await server.until(lambda: not processes_with("98.7606"))
        told = len(kept.history)
        again = server.offer(job("next", {"run": "echo next"}))
        await server.until(lambda: again.result is not None)
        assert len(kept.history) == told
        assert kept.result is None

    with_worker(tmp_path, test)


def test_a_worker_that_is_frozen_beyond_its_lease_does_nothing_visible(tmp_path: Path) -> None:
    """The worker stands still; the job ends itself, and after the thaw nothing is sent about it."""

    async def test(server: Double, worker: WorkerProcess) -> None:
        kept = server.offer(job("frozen", {"run": "echo here; sleep 98.7607; echo is vis''ible"}, lease_s=3))
        await server.until(lambda: "here" in kept.text())
        worker.signal(signal.SIGSTOP)
        await server.until(lambda: not processes_with("98.7607"))
        await asyncio.sleep(1)  # real time: the lease has to be over by the worker's clock too
        told = len(kept.history)
        worker.signal(signal.SIGCONT)
        again = server.offer(job("next", {"run": "echo next"}, lease_s=3))
        await server.until(lambda: again.result is not None)
        assert kept.history[told:] == []
        assert "is visible" not in kept.text()
        assert kept.result is None

    with_worker(tmp_path, test, lease_s=3, heartbeat_s=0.5)


def test_what_a_killed_worker_left_is_handed_back_by_the_next(tmp_path: Path) -> None:
    async def test(server: Double, worker: WorkerProcess) -> None:
        kept = server.offer(job("cut", {"run": "echo here; exec sleep 98.7608"}))
        await server.until(lambda: "here" in kept.text())
        worker.signal(signal.SIGKILL)
        await worker.ended()
        await server.until(lambda: not processes_with("98.7608"))
        await worker.start()
        await server.until(lambda: kept.hand_back is not None)
        assert kept.hand_back is not None
        assert kept.hand_back.counted
        await server.until(lambda: not list((tmp_path / "state" / "spool").iterdir()))

    with_worker(tmp_path, test)


def test_a_result_that_a_killed_worker_could_not_tell_is_delivered_by_the_next(tmp_path: Path) -> None:
    async def test(server: Double, worker: WorkerProcess) -> None:
        async def no_result(name: str, _: object) -> web.Response | None:
            return problem(500, "boom") if name == "result" else None

        kept = server.offer(job("done", {"run": "echo here"}))
        server.faults.append(no_result)
        await server.until(lambda: any(name == "result" for _, name in server.calls))
        worker.signal(signal.SIGKILL)
        await worker.ended()
        server.faults.clear()
        await worker.start()
        await server.until(lambda: kept.result is not None)
        assert kept.result is not None
        assert kept.result.conclusion == "success"
        assert kept.hand_back is None

    with_worker(tmp_path, test)


def test_a_token_that_is_refused_ends_the_worker_with_3_and_the_remedy(tmp_path: Path) -> None:
    async def test(server: Double, worker: WorkerProcess) -> None:
        await worker.start(token="another")
        assert await worker.ended() == 3
        assert any("refuses this worker's token" in line for line in worker.lines)
        assert any("runyard token create" in line for line in worker.lines)
        assert not any("another" in line for line in worker.lines)

    with_worker(tmp_path, test, start=False)


def test_a_server_without_worker_tokens_is_asked_again(tmp_path: Path) -> None:
    async def test(server: Double, worker: WorkerProcess) -> None:
        async def none_yet(name: str, _: object) -> web.Response | None:
            left = len([1 for _, call in server.calls if call == "claim"])
            return problem(503, "worker.no_token", "no worker token yet", remedy="make one") if left <= 2 else None

        server.faults.append(none_yet)
        kept = server.offer(job("one", {"run": "echo here"}))
        await worker.start()
        await server.until(lambda: kept.result is not None)
        assert any("no worker token yet; trying again. make one" in line for line in worker.lines)

    with_worker(tmp_path, test, start=False)
