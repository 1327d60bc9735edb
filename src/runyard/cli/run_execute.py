"""Executes prepared runs: carries out what the run graph decides, one job process per claim, and shows what they tell.

`advance` decides, `Launcher` executes, a report displays; this module only connects them, and turns interrupts into
orders. The exit code is made here and nowhere else.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Final

from runyard.engine.launch import Launcher
from runyard.job import MachineError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from runyard.cli.run_jobs import Runs
    from runyard.cli.run_prepare import Options, Prepared
    from runyard.report.run_report import RunReport

FORCE_WAIT_S: Final = 8.0
"""How long jobs have to end after they were ended by force, before their processes are killed."""

_TICK_S: Final = 0.1
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def execute(prepared: Prepared, options: Options) -> int:
    """Run everything; the exit code is 0, 1, 3 or 130. InputError and MachineError come before anything ran."""
    gc.freeze()
    gc.enable()
    launcher = Launcher()
    launcher.start_early()
    return asyncio.run(_execute(prepared, options, launcher))


async def _execute(prepared: Prepared, options: Options, launcher: Launcher) -> int:
    from runyard.cli.run_jobs import Runs
    from runyard.report.open import open_sink

    _refuse_what_cannot_be(prepared, options)
    report = open_sink(
        options.format,  # type: ignore[arg-type]  # click checked the choice
        sys.stdout.buffer,
        strict=options.strict_github,
    )
    runs = Runs(prepared, options, launcher, report)
    watch = _Interrupts(runs)
    watch.install()
    ticking = asyncio.create_task(_tick(report)) if report.live else None
    reaping = asyncio.create_task(_reap(runs.busy))
    try:
        await runs.run()
        await reaping
        interrupted = watch.count > 0
        if options.keep:
            await runs.wait_for_kept(watch.interrupted)
    finally:
        watch.remove()
        reaping.cancel()
        if ticking is not None:
            ticking.cancel()
        report.close()
        await runs.close()
        await launcher.close()
        if launcher.lost_any:
            from runyard.sandbox import reap

            await asyncio.to_thread(reap)
    if report.problem is not None and not interrupted and runs.exit_code == 0:
        raise MachineError(f"standard output can't be written: {report.problem}", code="run.output")
    return 130 if interrupted else runs.exit_code


def _refuse_what_cannot_be(prepared: Prepared, options: Options) -> None:
    if options.pause_on_failure and not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        raise MachineError(
            "--pause-on failure needs a terminal", code="run.no_terminal", remedy="Run it without, or with --keep."
        )
    if options.keep and not (sys.stdin is not None and sys.stdin.isatty()):
        raise MachineError("--keep holds a sandbox until you press Ctrl+C: it needs a terminal", code="run.no_terminal")
    if options.offline:
        from runyard.cli.run_actions import check_offline, of_command

        actions = of_command(prepared, options)
        check_offline(actions, prepared.steps(), prepared.pins, tools=options.tools, platform=options.platform)


async def _reap(busy: asyncio.Event) -> None:
    """Remove what a killed run left, while jobs are at work; what can't be removed now is left to the next one."""
    await busy.wait()
    from runyard.sandbox import reap

    left = (await asyncio.to_thread(reap, all_engines=False)).left
    if left:
        say(f"left behind by a run that was killed, and not removed: {', '.join(left)}")


async def _tick(report: RunReport) -> None:
    while True:
        report.tick(time.time_ns())
        await asyncio.sleep(_TICK_S)


class _Interrupts:
    """The first signal cancels, the second ends at once; SIGTERM and SIGHUP count as Ctrl+C does."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self.count = 0
        self.interrupted = asyncio.Event()

    def install(self) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._take)

    def remove(self) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            # What comes now must not cut the clean-up short: it is bounded, and nearly done.
            signal.signal(number, signal.SIG_IGN)

    def _take(self) -> None:
        self.count += 1
        self.interrupted.set()
        self._runs.cancel(force=self.count > 1)
        if self.count == 1 and not self._runs.over:
            say("interrupted: jobs are asked to stop; once more ends them at once")


def say(text: str) -> None:
    """A line of ours on standard error; quiet when nobody reads it."""
    try:
        print(f"runyard: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return


def spawn(work: Coroutine[object, object, None], tasks: set[asyncio.Task[None]], name: str) -> None:
    """Start a task that is kept until it ends."""
    task = asyncio.create_task(work, name=name)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
