"""The coordinator's parts: created from the settings, and stopped in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from time import monotonic, time
from typing import Any

from lipt.common.blobs.store import BlobStore
from lipt.common.observability.logs import Events
from lipt.common.observability.metrics import Meters
from lipt.common.process import this_machine
from lipt.common.process.devices import resolve_device
from lipt.coordinator.access.tokens import OwnToken, Tokens
from lipt.coordinator.compute.jobs.pretraining import DescribeData
from lipt.coordinator.compute.messages import OnProgress, Progressed, ScanNews
from lipt.coordinator.compute.queue import ComputeQueue
from lipt.coordinator.compute.scan import CredentialDistrusted, scans_dir
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.dispatch.intake import Intake
from lipt.coordinator.dispatch.leases import forward_clock, steady_clock
from lipt.coordinator.runs.admission import RunAdmission
from lipt.coordinator.runs.availability import hold_runs_of_other_data, restore_inputs
from lipt.coordinator.runs.driver import RunDriver
from lipt.coordinator.runs.requests import RunRequests
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.settings import CoordinatorSettings
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.files import StateLock
from lipt.coordinator.storage import StateStorage
from lipt.coordinator.subsets import Answers
from lipt.coordinator.uploads import open_accounts
from lipt.core.pretraining.evaluation import batch_size_for
from lipt.core.proxies.features import backbone_identity
from lipt.data.inputs.specs import ImageSpec, InputSpec
from lipt.data.targets.kinds import TargetKind
from lipt.models.registry import default_model

logger = logging.getLogger(__name__)
_REPORT_EVERY_SECONDS = 5.0


@asynccontextmanager
async def open_app(
    settings: CoordinatorSettings,
    *,
    make_compute: Callable[[CoordinatorSettings, Events, Meters], ComputeQueue] = ComputeQueue,
) -> AsyncIterator[App]:
    async with AsyncExitStack() as stack:
        app = App(settings, stack)
        app.compute = make_compute(settings, app.events, app.meters)
        stack.push_async_callback(app.compute.stop)
        await app.open_data()
        await app.resume()
        yield app


class App:
    """The parts that the servicers call; the stack closes them."""

    compute: ComputeQueue

    def __init__(self, settings: CoordinatorSettings, stack: AsyncExitStack) -> None:
        self.settings, self._stack = settings, stack
        self.events, self.meters = Events(), Meters()
        self.lock = StateLock(settings.state_dir)
        stack.callback(self.lock.release)
        self.database = Database.open(settings.state_dir / "lipt.db")
        stack.push_async_callback(self.database.close)
        clock = forward_clock(time, monotonic)
        self.tokens = Tokens(self.database, OwnToken(settings.state_dir), wall_clock=clock)
        stack.callback(self.tokens.stop)
        self.blobs = BlobStore(settings.state_dir, max_blob_bytes=settings.limits.max_blob_bytes)
        self.store = RunStore(self.database)

    async def open_data(self) -> None:
        await self.tokens.load()
        source, backbone = self.settings.dataset.source, self.settings.backbone
        logger.info("opening %s%s", source, f" and the backbone {backbone}" if backbone else "")
        self._backbone = backbone and await asyncio.to_thread(backbone_identity, backbone)
        self.data = await self.compute.run(DescribeData(), logging_progress(clock=monotonic))
        self.settings = with_fitting_model(self.settings, self.data.inputs, self.data.target.kind)
        self.compute.open_light(self.data)
        await self.store.load()
        hold_runs_of_other_data(self.store, self.data, self.events)

    async def resume(self) -> None:
        """Open the other parts, and let unfinished runs go on."""
        settings, stack, store, blobs = self.settings, self._stack, self.store, self.blobs
        compute, data = self.compute, self.data
        # Dispatcher and driver count the same deadline.
        deadline_clock = steady_clock(time, monotonic)
        self.dispatcher = Dispatcher(
            store,
            lease_seconds=settings.lease.duration_seconds,
            clock=monotonic,
            wall_clock=deadline_clock,
            events=self.events,
            meters=self.meters,
        )
        compute.on_scan = self._note_scan
        driver = RunDriver(
            store,
            compute,
            restore=lambda run, report: restore_inputs(run, blobs, compute, report),
            wall_clock=time,
            deadline_clock=deadline_clock,
            events=self.events,
            meters=self.meters,
        )
        stack.push_async_callback(driver.stop)
        admission = RunAdmission(
            blobs,
            data,
            limits=settings.limits,
            machine=this_machine(),
            allowed_modules=settings.allow_modules,
            evaluation_batch_size=batch_size_for(data.inputs, resolve_device(settings.device)),
        )
        stack.callback(admission.stop)
        await admission.require(settings.run, is_default=True)
        await self._keep_storage()
        self.dispatcher.restore()
        driver.resume_all()
        _begin(stack, self.dispatcher.expire_leases(), "lease expiry")
        self.intake = Intake(self.dispatcher, blobs, scans_dir(settings.state_dir), self.meters)
        self.requests = RunRequests(
            store, driver, admission, blobs, data, defaults=settings.run, wall_clock=time
        )
        self.answers = Answers(
            store,
            self.database,
            blobs,
            compute,
            data,
            defaults=settings.run,
            wall_clock=time,
            backbone=self._backbone,
            max_warm_up_epochs=settings.limits.warm_up_epochs,
            meters=self.meters,
        )
        stack.push_async_callback(self.answers.stop)
        stack.callback(self.intake.stop)

    def _note_scan(self, news: ScanNews) -> None:
        self.dispatcher.scans.note(news)
        if isinstance(news, CredentialDistrusted):
            _begin(self._stack, self.answers.forget_scores_of(news.credential), "distrust")

    async def _keep_storage(self) -> None:
        settings = self.settings
        accounts = await asyncio.to_thread(
            open_accounts,
            settings.state_dir,
            self.blobs,
            settings.storage,
            is_live=self.dispatcher.leases.has,
            clock=monotonic,
        )
        self.storage = StateStorage(
            settings.state_dir,
            self.blobs,
            accounts,
            settings.storage,
            self.events,
            self.store,
            self.compute,
            wall_clock=time,
            steady_clock=monotonic,
        )
        _begin(self._stack, self.storage.run(), "collection")


def with_fitting_model(
    settings: CoordinatorSettings, inputs: InputSpec, kind: TargetKind = TargetKind.CLASS
) -> CoordinatorSettings:
    """Replace the default model, which takes images, by one for the data, unless it was named."""
    if "model" in settings.run.model_fields_set or isinstance(inputs, ImageSpec):
        return settings
    run = settings.run.model_copy(update={"model": default_model(inputs, kind)})
    return settings.model_copy(update={"run": run})


def _begin(stack: AsyncExitStack, work: Coroutine[Any, Any, None], name: str) -> None:
    task = asyncio.create_task(work, name=name)

    async def end() -> None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    stack.push_async_callback(end)


def logging_progress(*, clock: Callable[[], float]) -> OnProgress:
    """Log a job's progress every few seconds; `clock` is in seconds."""
    logged_at = clock()

    def log(now: Progressed) -> None:
        nonlocal logged_at
        if now.total and clock() - logged_at >= _REPORT_EVERY_SECONDS:
            logged_at = clock()
            logger.info("%s: %d of %d", now.activity, now.done, now.total)

    return log
