"""Next work: a worker's next range or learner, whichever is there first; ranges before learners.

Somebody waits for a range's selection, and a range is short.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic

from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.dispatch.scans import RangeGrant
from lipt.coordinator.state.records import LearnerRecord, RunRecord

Work = tuple[RunRecord, LearnerRecord] | RangeGrant


async def next_work(dispatcher: Dispatcher, worker_id: str, *, wait_seconds: float) -> Work | None:
    """What a worker is to do next, under a lease; None where there was nothing in time.

    Nor is there anything where this worker is yet to be told what keeps it from learners.

    Raises:
        UnknownWorkerError: it has not registered with this process.
    """
    worker = dispatcher.workers.heard(worker_id)
    if not worker.has_data or dispatcher.held_by(worker_id) is not None:
        return await dispatcher.acquire(worker_id, wait_seconds=wait_seconds)
    ends_at = monotonic() + wait_seconds
    while True:
        grant = dispatcher.scans.take(worker)
        if grant is not None:
            return grant
        rest_seconds = max(0.0, ends_at - monotonic())
        learner = asyncio.create_task(dispatcher.acquire(worker_id, wait_seconds=rest_seconds))
        scans = asyncio.create_task(dispatcher.scans.wait())
        try:
            await asyncio.wait({learner, scans}, return_when=asyncio.FIRST_COMPLETED)
            if learner.done():
                return learner.result()
        finally:
            scans.cancel()
            learner.cancel()
            with suppress(asyncio.CancelledError):
                await learner
        if not learner.cancelled():  # it came at the last moment
            return learner.result()
