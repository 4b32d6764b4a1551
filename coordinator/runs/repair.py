"""Repair: recomputes damaged theta*, shards and theta_p, identical to the byte."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.errors import CorruptBlobError
from lipt.coordinator.compute.jobs.pretraining import (
    CutShards,
    InitializeWeights,
    MakeSoup,
    SoupResult,
)
from lipt.coordinator.compute.messages import Asked, OnData, OnProgress
from lipt.coordinator.compute.queue import ComputeQueue
from lipt.coordinator.state.records import RunRecord

Restore = Callable[
    [RunRecord, BlobStore, ComputeQueue, OnProgress, Asked], Coroutine[Any, Any, None]
]

logger = logging.getLogger(__name__)


async def restore_inputs(
    run: RunRecord, blobs: BlobStore, compute: ComputeQueue, report: OnProgress
) -> None:
    """Recompute damaged theta* and shards; a CorruptBlobError if the bytes differ."""
    if run.initial_weights is None:
        return
    shards = {learner.shard for learner in run.learners if learner.state.open}
    await _restore(run, {run.initial_weights, *shards}, blobs, compute, report, Asked(run.run_id))


async def restore_initial_weights(
    run: RunRecord, blobs: BlobStore, compute: ComputeQueue, report: OnProgress, asked: Asked
) -> None:
    """Recompute a run's theta* if it is damaged; raises like `restore_inputs`."""
    if run.initial_weights is None:
        raise ValueError(f"run {run.run_id} has no theta* yet")
    await _restore(run, {run.initial_weights}, blobs, compute, report, asked)


async def restore_pretrained_weights(
    run: RunRecord, blobs: BlobStore, compute: ComputeQueue, report: OnProgress, asked: Asked
) -> None:
    """Recompute a finished run's theta_p if damaged; raises like `restore_inputs`."""
    name = run.pretrained_weights
    if name is None or run.initial_weights is None or run.inputs is None:
        raise ValueError(f"run {run.run_id} has no theta_p yet")
    if not await _damaged(blobs, {name}):
        return
    logger.warning("theta_p of run %s, %s, is not whole: it is made again", run.name, name)
    await restore_initial_weights(run, blobs, compute, report, asked)
    job = MakeSoup(run.config, run.inputs, run.initial_weights, run.results)
    made = await compute.run(OnData(run.fingerprint, job), report, asked)
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


async def _restore(
    run: RunRecord,
    inputs: set[BlobName],
    blobs: BlobStore,
    compute: ComputeQueue,
    report: OnProgress,
    asked: Asked,
) -> None:
    damaged = await _damaged(blobs, inputs)
    if not damaged:
        return
    logger.warning("%d inputs of run %s are not whole: they are made again", len(damaged), run.name)
    if run.initial_weights in damaged:
        await compute.run(OnData(run.fingerprint, InitializeWeights(run.config)), report, asked)
    if damaged - {run.initial_weights}:
        await compute.run(OnData(run.fingerprint, CutShards(run.config)), report, asked)
    lost = await _damaged(blobs, damaged)
    if lost:
        raise CorruptBlobError(
            f"{len(lost)} inputs of run {run.name} were changed or lost by the coordinator's disk, "
            f"and came out otherwise when they were made again: {', '.join(map(str, lost))}. "
            "Start the run again."
        )


async def _damaged(blobs: BlobStore, names: set[BlobName]) -> set[BlobName]:
    def damaged() -> set[BlobName]:
        return {name for name in names if not blobs.is_whole(name)}

    return await asyncio.to_thread(damaged)
