"""Availability of runs: lookup by name, held runs, and the repair of damaged files.

A run is held while other data than its own is served: nothing is computed for it. Damaged theta*,
shards and theta_p are recomputed, identical to the byte.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.errors import CorruptBlobError, LiptError, OtherDataError, RunNotReadyError
from lipt.common.observability.logs import EventKind, Events, logging_about
from lipt.common.states import LearnerState, RunState
from lipt.coordinator.compute.context import DataDescription
from lipt.coordinator.compute.jobs.pretraining import (
    CutShards,
    DamagedLearners,
    InitializeWeights,
    MakeSoup,
)
from lipt.coordinator.compute.messages import Job, JobOptions, OnProgress
from lipt.coordinator.compute.queue import ComputeQueue
from lipt.coordinator.runs.store import LATEST, RunStore
from lipt.coordinator.state.records import RunRecord, RunSummary
from lipt.data.inputs.specs import ImageFormat, spec_of

logger = logging.getLogger(__name__)


def record_held(run: RunRecord | RunSummary, reason: str, events: Events) -> None:
    with logging_about(run=run.run_id):
        events.record(EventKind.RUN_HELD, level=logging.ERROR, run=run.name, reason=reason)


def find_named(store: RunStore, name: str) -> RunRecord:
    """A run by id or name; "latest" is the newest ready one, preferably of the served data."""
    newest_first = store.runs()[::-1]
    ready = [run for run in newest_first if name == LATEST and run.state is RunState.READY]
    served = [run for run in ready if not store.held(run.run_id)]
    newest = next(iter(served or ready), None)
    return store.find(name) if newest is None else store.record(newest.run_id)


def find_ready(store: RunStore, name: str, data: DataDescription | None = None) -> RunRecord:
    """The named run with theta_p, of this data if given."""
    run = find_named(store, name)
    if run.state is not RunState.READY:
        raise not_ready(store, run)
    if data is not None and (reason := hold_reason(run, data)):
        raise OtherDataError(reason)
    return run


def not_ready(store: RunStore, run: RunRecord) -> LiptError:
    if store.shown_state(run) is RunState.HELD:
        return OtherDataError(store.held(run.run_id))
    return RunNotReadyError(how_far(run, store.activity(run.run_id).activity))


def how_far(run: RunRecord, activity: str) -> str:
    if run.state.ended and run.state is not RunState.READY:
        verb = "was" if run.state is RunState.CANCELLED else "has"
        why = f": {run.message.removesuffix('.')}" if run.message else ""
        return f"run {run.name} {verb} {run.state}{why}. Start another: lipt run start"
    if run.state is RunState.TRAINING:
        activity = f"{run.count()[LearnerState.DONE]} of {len(run.learners)} learners are in"
    where = f" ({activity})" if activity else ""
    return f"run {run.name} is {run.state}{where}. Follow it with: lipt run watch {run.name}"


def hold_reason(run: RunRecord | RunSummary, data: DataDescription) -> str:
    """Why a run is held, and the remedy; empty if its data is served."""
    served = data.fingerprint
    if served != run.fingerprint:
        own = f"{run.fingerprint} ({run.source})" if run.source else run.fingerprint
        return (
            f"run {run.name} was made on data with fingerprint {own}, this coordinator now serves "
            f"{data.source} with {served}. Start the coordinator with the run's own data."
        )
    if run.inputs is None or spec_of(run.inputs) == data.inputs:
        return ""
    images = isinstance(run.inputs, ImageFormat)
    remedy = "with the --image-size that the run began with" if images else "as the run began"
    return (
        f"run {run.name} looks at {spec_of(run.inputs)}, and this coordinator has {data.source} as "
        f"{data.inputs}. Start the coordinator {remedy}."
    )


def hold_runs_of_other_data(store: RunStore, data: DataDescription, events: Events) -> None:
    for run in store.runs():
        if not run.problem and (reason := hold_reason(run, data)):
            store.hold(run.run_id, reason)
            if not run.state.ended:
                record_held(run, reason, events)


async def restore_inputs(
    run: RunRecord, blobs: BlobStore, compute: ComputeQueue, report: OnProgress
) -> None:
    if run.initial_weights is not None:
        open_learners = [learner for learner in run.learners if learner.state.open]
        shards = {learner.shard for learner in open_learners if learner.shard is not None}
        names = {run.initial_weights, *shards}
        await restore(
            run, names, blobs, compute, report, JobOptions(run.run_id, fingerprint=run.fingerprint)
        )


async def require_results(run: RunRecord, blobs: BlobStore) -> None:
    """CorruptBlobError if results of a run's learners are lost; no job makes them again."""
    if lost := await _damaged(blobs, [blob for _, blob in run.results]):
        raise CorruptBlobError(
            f"{len(lost)} of the {len(run.results)} results of run {run.name}'s learners are lost. "
            "Put the blobs of a backup back into the state directory, or start the run again."
        )


async def restore(
    run: RunRecord,
    names: Iterable[BlobName],
    blobs: BlobStore,
    compute: ComputeQueue,
    report: OnProgress,
    options: JobOptions,
) -> None:
    """Recompute the damaged files among `names`; a CorruptBlobError if the bytes differ."""
    damaged = await _damaged(blobs, names)
    if not damaged:
        return
    logger.warning("%d files of run %s are damaged and recomputed", len(damaged), run.name)
    initial, jobs = run.initial_weights, list[Job[object]]()
    if initial in damaged:
        jobs.append(InitializeWeights(run.config))
    if damaged - {initial, run.pretrained_weights}:
        jobs.append(CutShards(run.config))
    if run.pretrained_weights in damaged:
        inputs, initial = run.theta
        await restore(run, [initial], blobs, compute, report, options)
        jobs.append(MakeSoup(run.config, inputs, initial, run.results))
    for job in jobs:
        if isinstance(await compute.run(job, report, options), DamagedLearners):
            raise CorruptBlobError(
                f"theta_p of run {run.name} is lost, and so are results of its learners. Put the "
                "blobs of a backup back into the state directory, or start the run again."
            )
    if lost := await _damaged(blobs, damaged):
        raise CorruptBlobError(
            f"{len(lost)} files of run {run.name} are damaged, and recomputing them gave "
            f"other bytes: {', '.join(map(str, lost))}. "
            "Start the run again."
        )


async def _damaged(blobs: BlobStore, names: Iterable[BlobName]) -> set[BlobName]:
    return await asyncio.to_thread(lambda: {name for name in names if not blobs.is_whole(name)})
