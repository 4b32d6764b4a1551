"""Makes theta_p again that the disk has changed or lost, of the learners that it came from."""

from __future__ import annotations

import asyncio
import logging

from lipt.common.blobs.store import BlobStore
from lipt.common.errors import CorruptBlobError
from lipt.coordinator.compute.jobs import MakeSoup, SoupResult
from lipt.coordinator.compute.process import ComputeProcess, OnProgress
from lipt.coordinator.records import RunRecord

logger = logging.getLogger(__name__)


async def restore_pretrained_weights(
    run: RunRecord, blobs: BlobStore, compute: ComputeProcess, report: OnProgress
) -> None:
    """See to it that a finished run's theta_p is whole; the same learners give the same bytes.

    Raises:
        CorruptBlobError: it is not, and cannot be made again.
    """
    name = run.pretrained_weights
    if name is None or run.initial_weights is None or run.image is None:
        raise ValueError(f"run {run.run_id} has no theta_p yet")
    if await asyncio.to_thread(blobs.is_whole, name):
        return
    logger.warning("theta_p of run %s, %s, is not whole: it is made again", run.name, name)
    made = await compute.run(
        MakeSoup(run.config, run.image, run.initial_weights, run.results), report
    )
    if not isinstance(made, SoupResult):
        why = f"so were the learners {', '.join(map(str, made.indices))}"
    elif made.weights != name:
        why = f"what was made of its learners now is {made.weights}"
    else:
        return
    raise CorruptBlobError(
        f"theta_p of run {run.name}, {name}, was changed or lost by the coordinator's disk, and "
        f"{why}. Start the run again."
    )
