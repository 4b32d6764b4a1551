"""Repair: recomputes damaged theta*, shards and theta_p, identical to the byte."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.errors import CorruptBlobError
from lipt.coordinator.compute.jobs.pretraining import CutShards, InitializeWeights, MakeSoup
from lipt.coordinator.compute.messages import Asked, Job, OnProgress
from lipt.coordinator.compute.queue import ComputeQueue
from lipt.coordinator.state.records import RunRecord

logger = logging.getLogger(__name__)


async def restore_inputs(
    run: RunRecord, blobs: BlobStore, compute: ComputeQueue, report: OnProgress
) -> None:
    if run.initial_weights is not None:
        shards = {learner.shard for learner in run.learners if learner.state.open}
        wanted = {run.initial_weights, *shards}
        await restore(
            run, wanted, blobs, compute, report, Asked(run.run_id, fingerprint=run.fingerprint)
        )


async def restore(
    run: RunRecord,
    wanted: Iterable[BlobName],
    blobs: BlobStore,
    compute: ComputeQueue,
    report: OnProgress,
    asked: Asked,
) -> None:
    """Recompute the damaged files among `wanted`; a CorruptBlobError if the bytes differ."""
    damaged = await _damaged(blobs, wanted)
    if not damaged:
        return
    logger.warning("%d files of run %s are not whole: they are made again", len(damaged), run.name)
    initial, jobs = run.initial_weights, list[Job[object]]()
    if initial in damaged:
        jobs.append(InitializeWeights(run.config))
    if damaged - {initial, run.pretrained_weights}:
        jobs.append(CutShards(run.config))
    if run.pretrained_weights in damaged:
        if run.inputs is None or initial is None:
            raise ValueError(f"run {run.run_id} has no theta_p yet")
        await restore(run, [initial], blobs, compute, report, asked)
        jobs.append(MakeSoup(run.config, run.inputs, initial, run.results))
    for job in jobs:
        await compute.run(job, report, asked)
    if lost := await _damaged(blobs, damaged):
        raise CorruptBlobError(
            f"{len(lost)} files of run {run.name} were changed or lost by the coordinator's disk, "
            f"and came out otherwise when they were made again: {', '.join(map(str, lost))}. "
            "Start the run again."
        )


async def _damaged(blobs: BlobStore, names: Iterable[BlobName]) -> set[BlobName]:
    def damaged() -> set[BlobName]:
        return {name for name in names if not blobs.is_whole(name)}

    return await asyncio.to_thread(damaged)
