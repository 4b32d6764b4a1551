"""The coordinator's parts: created from the settings, and stopped in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from time import monotonic, time
from typing import Any

from lipt.common.blobs.store import BlobStore
from lipt.common.errors import StateError
from lipt.common.observability.logs import Events
from lipt.common.observability.metrics import Meters
from lipt.common.process import talking
from lipt.common.process.devices import resolve_device
from lipt.common.process.machine import this_machine
from lipt.common.states import RunState
from lipt.coordinator.access.tokens import Tokens, keep_own_token
from lipt.coordinator.compute.jobs.pretraining import DataDescription, DescribeData
from lipt.coordinator.compute.messages import OnProgress, Progressed
from lipt.coordinator.compute.queue import ComputeQueue
from lipt.coordinator.compute.scan import scans_dir
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.dispatch.intake import LearnerIntake, RangeIntake
from lipt.coordinator.dispatch.leases import steady_clock
from lipt.coordinator.planning.admission import Admission
from lipt.coordinator.planning.plan import DataFigures
from lipt.coordinator.runs.driver import RunDriver
from lipt.coordinator.runs.holding import hold_runs_of_other_data
from lipt.coordinator.runs.repair import restore_inputs
from lipt.coordinator.runs.requests import RunRequests
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.settings import CoordinatorSettings
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.files import StateLock
from lipt.coordinator.state.records import DataRecord, RunRecord, RunSummary
from lipt.coordinator.storage.storage import Retention, Storage, open_storage
from lipt.coordinator.subsets.answers import Answers
from lipt.core.evaluation import batch_size_for
from lipt.core.proxies.features import backbone_identity

logger = logging.getLogger(__name__)

# Interval of progress messages while the data is opened.
_REPORT_EVERY_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class App:
    """The parts that the servicers call."""

    settings: CoordinatorSettings
    events: Events
    meters: Meters
    data: DataDescription
    lock: StateLock
    blobs: BlobStore
    store: RunStore
    compute: ComputeQueue
    dispatcher: Dispatcher
    intake: LearnerIntake
    ranges: RangeIntake
    requests: RunRequests
    answers: Answers
    tokens: Tokens
    storage: Storage


@asynccontextmanager
async def open_app(
    settings: CoordinatorSettings,
    *,
    make_compute: Callable[[CoordinatorSettings, Events, Meters], ComputeQueue] = ComputeQueue,
) -> AsyncIterator[App]:
    """Open the state and the data, and resume unfinished work."""
    events, meters = Events(), Meters()
    async with AsyncExitStack() as stack:
        lock = StateLock(settings.state_dir)
        stack.callback(lock.release)
        database = Database.open(settings.state_dir / "lipt.db")
        stack.push_async_callback(database.close)
        tokens = Tokens(database, keep_own_token(settings.state_dir), wall_clock=time)
        await tokens.load()
        blobs = BlobStore(settings.state_dir, max_blob_bytes=settings.limits.max_blob_bytes)
        compute = make_compute(settings, events, meters)
        stack.push_async_callback(compute.stop)
        with talking(f"reading the backbone {settings.backbone}", logger.info):
            backbone = settings.backbone and await asyncio.to_thread(
                backbone_identity, settings.backbone
            )
        with talking(f"opening {settings.dataset.source}", logger.info):
            data = await compute.run(DescribeData(), logging_progress(clock=monotonic))
        compute.open_light(data)
        store = RunStore(database)
        await store.load()
        await hold_runs_of_other_data(store, data, database, events)
        await _note_served(data, database)
        _warm_for_subsets(store, compute)
        dispatcher, driver = _make_runs_go(settings, store, blobs, compute, events, meters)
        stack.push_async_callback(driver.stop)
        admission = await _open_admission(stack, settings, blobs, data)
        storage = await _keep_storage(stack, settings, blobs, store, dispatcher, compute, events)
        dispatcher.restore()
        driver.resume_all()
        _begin(stack, dispatcher.expire_leases(), "lease expiry")
        app = App(
            settings=settings,
            events=events,
            meters=meters,
            data=data,
            lock=lock,
            blobs=blobs,
            store=store,
            compute=compute,
            dispatcher=dispatcher,
            intake=LearnerIntake(dispatcher, blobs, meters),
            ranges=RangeIntake(dispatcher.scans, blobs, scans_dir(settings.state_dir)),
            requests=RunRequests(
                store, driver, admission, blobs, data, defaults=settings.run, wall_clock=time
            ),
            answers=Answers(
                store,
                database,
                blobs,
                compute,
                data,
                defaults=settings.run,
                wall_clock=time,
                linger_seconds=settings.compute.linger_seconds,
                backbone=backbone,
                max_warm_up_epochs=settings.limits.warm_up_epochs,
                meters=meters,
            ),
            tokens=tokens,
            storage=storage,
        )
        stack.push_async_callback(app.answers.stop)
        stack.callback(app.intake.stop)
        stack.callback(app.ranges.stop)
        yield app


def _make_runs_go(
    settings: CoordinatorSettings,
    store: RunStore,
    blobs: BlobStore,
    compute: ComputeQueue,
    events: Events,
    meters: Meters,
) -> tuple[Dispatcher, RunDriver]:
    # Both count the same deadline.
    deadline_clock = steady_clock(time, monotonic)
    dispatcher = Dispatcher(
        store,
        lease_seconds=settings.lease.duration_seconds,
        clock=monotonic,
        wall_clock=deadline_clock,
        events=events,
        meters=meters,
    )
    compute.share_scans(dispatcher.scans.note)
    driver = RunDriver(
        store,
        compute,
        restore=lambda run, report: restore_inputs(run, blobs, compute, report),
        wall_clock=time,
        deadline_clock=deadline_clock,
        events=events,
    )
    return dispatcher, driver


async def _open_admission(
    stack: AsyncExitStack, settings: CoordinatorSettings, blobs: BlobStore, data: DataDescription
) -> Admission:
    admission = Admission(
        blobs,
        DataFigures(data.class_counts, data.inputs, data.other_target),
        limits=settings.limits,
        machine=this_machine(),
        allowed_modules=settings.allow_modules,
        evaluation_batch_size=batch_size_for(data.inputs, resolve_device(settings.device)),
    )
    stack.callback(admission.stop)
    await admission.look_at(settings.run)
    return admission


async def _keep_storage(
    stack: AsyncExitStack,
    settings: CoordinatorSettings,
    blobs: BlobStore,
    store: RunStore,
    dispatcher: Dispatcher,
    compute: ComputeQueue,
    events: Events,
) -> Storage:
    """Open the storage, and remove unused blobs and old runs from now on."""
    storage = await open_storage(
        settings.state_dir,
        blobs,
        settings.storage,
        events,
        is_live=lambda lease: dispatcher.leases.has(*lease),
        wall_clock=time,
        clock=monotonic,
    )
    store.listen_to_learners(storage.forget_named)
    _begin(stack, storage.run(), "collection")
    retention = Retention(store, compute, settings.storage, events, time)
    _begin(stack, retention.run(), "retention")
    return storage


def _begin(stack: AsyncExitStack, work: Coroutine[Any, Any, None], name: str) -> None:
    """Run a background task until the stack is closed."""
    task = asyncio.create_task(work, name=name)

    async def end() -> None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    stack.push_async_callback(end)


def logging_progress(*, clock: Callable[[], float]) -> OnProgress:
    """Log a job's progress every few seconds; `clock` is in seconds."""
    said = clock()

    def log(now: Progressed) -> None:
        nonlocal said
        if now.total and clock() - said >= _REPORT_EVERY_SECONDS:
            said = clock()
            logger.info("%s: %d of %d", now.activity, now.done, now.total)

    return log


async def _note_served(data: DataDescription, database: Database) -> None:
    served_at = time()
    records = [
        DataRecord(
            fingerprint=fingerprint,
            source=data.source,
            num_examples=data.num_examples,
            served_at=served_at,
        )
        for fingerprint in data.fingerprints
    ]
    try:
        await database.save(*records)
    except StateError as error:
        # A full disk does not prevent serving.
        logger.warning("which data is served now is not noted: %s", error)


def _warm_for_subsets(store: RunStore, compute: ComputeQueue) -> None:
    """Start the light process before the first ready run."""

    def warm(run: RunRecord | RunSummary) -> None:
        if run.state in {RunState.TRAINING, RunState.MERGING, RunState.READY}:
            compute.warm()

    store.listen(warm)
    for run in store.runs():
        warm(run)
