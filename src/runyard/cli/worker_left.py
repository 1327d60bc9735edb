"""What a worker that died left in its spools: delivered where the lease is still its own, else dropped.

A job with its end in the spool is told to the end; one without is handed back, so that the server needn't wait for the
lease to run out. The sandbox of either is gone: it ended with its worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from typing import TYPE_CHECKING, Final

from runyard.job import RunyardError
from runyard.job.dialout import HandBack, Heartbeat
from runyard.report.spool import Spool, SpoolTakenError, left_behind
from runyard.source.dialout import Fence, LeaseOverError
from runyard.source.dialout_delivery import Delivery
from runyard.source.dialout_lease import Lease, boot_s

if TYPE_CHECKING:
    from pathlib import Path

    from runyard.cli.worker_job import Shop
    from runyard.job.dialout import HeartbeatAnswer

TRIES_S: Final = 600.0
"""How long a server that is away is asked for; then the next start asks."""

OLD_S: Final = 7 * 24 * 3600.0
"""Spools for other servers, or that can't be read, go when they are older."""

_BEAT_S: Final = 10.0


async def deliver_left(shop: Shop) -> None:
    """All of them, one after the other. Raises nothing."""
    for folder in await asyncio.to_thread(left_behind, shop.spools):
        try:
            spool = await asyncio.to_thread(Spool.recover, folder)
        except SpoolTakenError:
            continue
        except (ValueError, OSError) as error:
            shop.say(f"a spool can't be read and is left alone: {error}")
            await asyncio.to_thread(_drop_old, folder)
            continue
        try:
            if spool.owner.url != shop.client.url:
                await asyncio.to_thread(_drop_old, folder)
                continue
            await _deliver(shop, spool)
        except LeaseOverError as error:
            shop.say(f"job {spool.owner.job}: what the worker left is dropped ({error.message})")
            spool.remove()
        except (RunyardError, OSError) as error:
            shop.say(f"job {spool.owner.job}: what the worker left stays for the next start ({error})")
        finally:
            spool.close()


async def _deliver(shop: Shop, spool: Spool) -> None:
    owner = spool.owner
    fence = Fence(owner.job, owner.attempt, owner.lease)
    lease = Lease(boot_s() + TRIES_S)

    async def beat() -> HeartbeatAnswer:
        sent = lease.clock()
        given = await shop.client.heartbeat(fence, Heartbeat(phase="telling"), wait_s=0.0)
        lease.until_s = sent + given.expires_in_s
        return given

    await lease.insist(beat, away=shop.away)
    shop.back()
    beating = asyncio.create_task(_beat(lease, beat, shop), name=f"heartbeat of {owner.job}")
    try:
        delivery = Delivery(shop.client, fence, lease, spool, away=shop.away, back=shop.back)
        if await asyncio.to_thread(lambda: spool.is_finished):
            await delivery.run()
            shop.say(f"job {owner.job}: the result that the worker left is delivered")
        else:
            await delivery.flush()
            back = HandBack("its worker died", counted=spool.next_number > 0)
            await lease.insist(lambda: shop.client.hand_back(fence, back), away=shop.away)
            shop.say(f"job {owner.job} was cut off by the end of its worker, and is handed back")
        spool.remove()
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


async def _beat(lease: Lease, beat: object, shop: Shop) -> None:
    while True:
        await asyncio.sleep(min(_BEAT_S, max(lease.left_s / 4, 0.05)))
        with contextlib.suppress(LeaseOverError):
            await lease.insist(beat, away=shop.away)  # type: ignore[arg-type]  # the function above


def _drop_old(folder: Path) -> None:
    with contextlib.suppress(OSError):
        if time.time() - folder.stat().st_mtime > OLD_S:
            shutil.rmtree(folder, ignore_errors=True)
