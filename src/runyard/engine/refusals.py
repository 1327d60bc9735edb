"""Destinations that the job's network refused: a line in the record that runs and an event, once each (D17).

A proxy tells at once; a packet filter only when it is asked, which is done where somebody will look for the reason:
after a step that failed, and at the job's end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runyard.job import MachineError, Refusal

if TYPE_CHECKING:
    from runyard.engine.state import Job


def watch_refusals(job: Job) -> None:
    """From now on each refused destination is told in the record that is then under way."""
    network = job.session.network
    if network is None:
        return

    def tell(destination: str, because: str) -> None:
        log = job.record
        log.say(f"The network level {job.settings.network} refused {destination}: {because}")
        mask = job.masker.mask_text
        log.emit(Refusal(log.step, mask(destination), mask(because), job.now_ns()))

    network.on_refused = tell


def end_network(job: Job) -> None:
    """No process of the job needs its network any more, unless the sandbox may be kept for somebody to look at."""
    if job.session_is_open and job.session.network is not None and not job.settings.keep:
        job.session.network.hang_up()


async def ask_refusals(job: Job) -> None:
    """Have what was refused so far told, where the network can't say it by itself."""
    if job.session_is_open and job.session.network is not None:
        try:
            await job.session.network.refused()
        except MachineError as error:
            job.record.say(f"The refused destinations can't be listed: {error}")
