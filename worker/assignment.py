"""Assignments: one learner, or one range of examples, from its fetch to its commit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter, sleep
from typing import TypeVar

import torch
from torch import nn

from lipt.common.backoff import RetryPolicy, retry
from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.blobs.transfer import Transfers
from lipt.common.config.tasks import LearnerTask, ScoringTask
from lipt.common.data import (
    Bearable,
    Dataset,
    open_dataset,
    open_shard,
    without_quarantined,
)
from lipt.common.errors import (
    ConfigError,
    ForeignBlobError,
    LearnerStoppedError,
    OtherDataError,
    OverLimitError,
    StaleLeaseError,
    StateError,
    TooManyCallsError,
    UnavailableError,
    UnknownBlobError,
    UnreachableError,
)
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.specs import spec_of
from lipt.common.models import build_model
from lipt.common.models.registry import load_model
from lipt.common.observability.logs import EventKind, Events
from lipt.common.observability.tracing import span
from lipt.common.signals.passes import encode_range, score_range
from lipt.common.weights.encodings import encode_weights
from lipt.common.weights.files import read_weights
from lipt.common.weights.specs import Weights, specs_of
from lipt.core.learner.learner import train_learner
from lipt.v1 import worker_pb2
from lipt.worker.client import Assignment, CoordinatorClient, LeaseKeeper, ScoringAssignment
from lipt.worker.instruments import (
    BLOB_BYTES,
    EXAMPLES,
    LEARNER,
    RESULT_BYTES,
    SCORED,
    STEPS,
    WAITED,
    Metering,
    Phase,
)
from lipt.worker.limits import WorkerLimits
from lipt.worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

_RETRY_SECONDS = 1.0
_AWAY = (UnreachableError, TooManyCallsError)


@dataclass(frozen=True)
class Worker:
    """What a worker has for all of its assignments.

    cache: initial weights, for the next assignments.
    pause: waits so many seconds before something is tried again.
    """

    settings: WorkerSettings
    client: CoordinatorClient
    device: torch.device
    limits: WorkerLimits
    cache: BlobStore
    events: Events
    metering: Metering = field(default_factory=Metering)
    pause: Callable[[float], object] = sleep


class Exchange:
    """The blobs of one assignment, there and back; `bytes_received` is without cached ones."""

    def __init__(self, worker: Worker, should_stop: Callable[[], bool]) -> None:
        self._worker = worker
        self._should_stop = should_stop
        policy = RetryPolicy(
            sleep=worker.pause,
            on_retry=lambda error: self._retried("transfer", f"{error} Going on where it was."),
        )
        self._downloads, self._uploads = (
            Transfers(worker.client.blobs, policy=policy, on_bytes=self._counting(direction))
            for direction in ("received", "sent")
        )
        self._waits = RetryPolicy.every(
            _RETRY_SECONDS,
            sleep=worker.pause,
            on_retry=lambda error: self._retried("handing over", f"{error} Trying again."),
        )
        self.bytes_received = 0

    def weights(self, name: BlobName) -> Path | bytes:
        """A file of weights, from the cache where it is there."""
        cache = self._worker.cache
        try:
            # It may lie there since long ago.
            if not cache.keep_if_whole(name):
                self._insist(lambda: self._downloads.download(name, cache))
                self.bytes_received += name.size_bytes
            cache.trim(self._worker.settings.cache_bytes, keep=name)
            return cache.path(name)
        except StateError as error:
            # A full disk here is no reason to refuse work that has room in memory.
            self._retried("caching", f"{error} Doing without.")
            return self.downloaded(name)

    def downloaded(self, name: BlobName) -> bytes:
        """A blob's content."""
        max_bytes = self._worker.settings.max_blob_bytes
        content = self._insist(lambda: self._downloads.download_bytes(name, max_bytes=max_bytes))
        self.bytes_received += len(content)
        return content

    def upload(self, content: bytes) -> BlobName:
        """Store a content at the coordinator, however long that is in any trouble."""
        with span("upload", bytes=len(content)):
            return self._insist(
                lambda: self._uploads.upload(content), waits_for=(UnavailableError,)
            )

    def hand_in(self, send: Callable[[], Callable[[], None]]) -> None:
        """Upload with `send`, and commit with what it returns.

        Both are done twice where the coordinator's disk has changed what was sent.
        """
        for again in (False, True):
            commit = send()
            try:
                with span("commit"):
                    self._insist(commit, waits_for=(UnavailableError,))
            except UnknownBlobError as error:
                if again:
                    raise
                self._retried("handing over", f"{error} Sending it again.")
            else:
                return

    def _insist(
        self,
        action: Callable[[], ResultT],
        waits_for: tuple[type[UnavailableError], ...] = _AWAY,
    ) -> ResultT:
        # What is computed is worth waiting for a coordinator in any trouble. What is fetched can
        # meet a full disk, too, but that is this worker's own.
        def attempt() -> ResultT:
            if self._should_stop():
                raise LearnerStoppedError("stopped before the assignment was handed in.")
            return action()

        return retry(attempt, on=waits_for, policy=self._waits)

    def _counting(self, direction: str) -> Callable[[int], None]:
        meters = self._worker.metering.meters
        return lambda num_bytes: meters.add(BLOB_BYTES, direction, by=num_bytes)

    def _retried(self, what: str, reason: str) -> None:
        self._worker.events.record(
            EventKind.RETRIED, detail=what, level=logging.WARNING, reason=reason
        )


def run_learner(
    worker: Worker,
    worker_id: str,
    assignment: Assignment,
    lease: LeaseKeeper,
    should_stop: Callable[[], bool],
) -> None:
    """Fetch, train, prune, encode and commit one learner; raises why it is not in."""
    task, started = assignment.task, perf_counter()
    meters, phases = worker.metering.meters, worker.metering.phases
    exchange = Exchange(worker, should_stop)

    def after_step(step: int, loss: float) -> None:
        meters.add(STEPS)
        meters.add(EXAMPLES, by=task.learners.num_minibatches * task.learners.batch_size)
        lease.report(worker_pb2.LEARNER_PHASE_TRAINING, step, loss)

    with span(
        "learner",
        run_id=assignment.run_id,
        worker_id=worker_id,
        assignment_id=assignment.assignment_id,
        learner=assignment.learner_index,
        epoch=assignment.epoch,
        density=task.density,
    ):
        phases.enter(Phase.FETCHING)
        worker.limits.require(task)
        with span("fetch weights") as fetching:
            initial = _initial_weights(worker, exchange, assignment)
            fetching.note(bytes=exchange.bytes_received)
        with span("fetch shard", bytes=assignment.shard.size_bytes):
            shard = open_shard(
                exchange.downloaded(assignment.shard),
                task.inputs,
                num_examples=task.learners.num_minibatches * task.learners.batch_size,
                target=task.target,
            )
        lease.report(worker_pb2.LEARNER_PHASE_TRAINING)
        phases.enter(Phase.TRAINING)
        learner = train_learner(
            task,
            initial,
            shard,
            device=worker.device,
            allowed_modules=worker.settings.allow_modules,
            on_step=after_step,
            should_stop=should_stop,
        )
        meters.add(WAITED, by=learner.waited_seconds)
        phases.enter(Phase.SUBMITTING)
        lease.report(worker_pb2.LEARNER_PHASE_SUBMITTING, task.learners.num_steps, learner.loss)

        def send() -> Callable[[], None]:
            # The snapshots before the result, so that a learner that is in has all of them.
            *snapshots, result = [
                _upload(worker, exchange, weights, task)
                for weights in (*learner.snapshots, learner.weights)
            ]
            report = worker_pb2.LearnerReport(
                loss=learner.loss,
                train_seconds=learner.train_seconds,
                total_seconds=perf_counter() - started,
                bytes_received=exchange.bytes_received,
            )
            commit = worker.client.commit
            return partial(commit, worker_id, assignment, result, report, snapshots)

        exchange.hand_in(send)
    seconds = perf_counter() - started
    logger.info(
        "%s is in: loss %.3f, %.1f s; of %.1f s of training it waited %.1f s for data",
        assignment,
        learner.loss,
        seconds,
        learner.train_seconds,
        learner.waited_seconds,
    )
    meters.observe(LEARNER, seconds)


def _initial_weights(worker: Worker, exchange: Exchange, assignment: Assignment) -> Weights:
    task = assignment.task
    source = exchange.weights(assignment.initial_weights)
    model = build_model(
        task.model,
        num_classes=task.num_classes,
        inputs=spec_of(task.inputs),
        seed=task.seed,
        allowed_modules=worker.settings.allow_modules,
    )
    like, max_bytes = specs_of(model.state_dict()), worker.settings.max_blob_bytes
    return read_weights(source, like=like, max_bytes=max_bytes)


def _upload(worker: Worker, exchange: Exchange, weights: Weights, task: LearnerTask) -> BlobName:
    encoding = task.learners.encoding
    with span("encode", encoding=encoding.value):
        content = encode_weights(weights, encoding)
    worker.metering.meters.add(RESULT_BYTES, encoding.value, by=len(content))
    return exchange.upload(content)


class Scorer:
    """Scores ranges of the data before this worker with the coordinator's model.

    The data counts only where it is the coordinator's: its fingerprint is compared for every range,
    and its files are looked at afterwards. Data and model are kept for the next range.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._dataset: Dataset | None = None
        self._image_size: int | None = None
        self._model: tuple[object, nn.Module] | None = None

    def run(
        self, worker_id: str, assignment: ScoringAssignment, should_stop: Callable[[], bool]
    ) -> None:
        """Fetch the weights, score one range, and hand it in; raises why it is not in."""
        worker, task, started = self._worker, assignment.task, perf_counter()
        phases, exchange = worker.metering.phases, Exchange(worker, should_stop)

        def require_needed(_num_done: int) -> None:
            if should_stop():
                raise LearnerStoppedError("stopped before the range was scored.")

        with span("range", assignment_id=assignment.assignment_id, worker_id=worker_id):
            phases.enter(Phase.FETCHING)
            worker.limits.require_threads(task)
            dataset = self.dataset(task)
            model = self._loaded(task, assignment.initial_weights, exchange)
            phases.enter(Phase.SCORING)
            scored = score_range(model, dataset, task, device=worker.device, on_done=require_needed)
            seconds = perf_counter() - started
            if dataset.has_changed():
                self._dataset = None
                raise OtherDataError(
                    f"files of {dataset.source} have changed while they were scored. They are "
                    "opened again for the next range."
                )
            phases.enter(Phase.SUBMITTING)
            content = encode_range(scored)
            report = worker_pb2.LearnerReport(
                train_seconds=seconds,
                total_seconds=seconds,
                bytes_received=exchange.bytes_received,
            )

            def send() -> Callable[[], None]:
                name = exchange.upload(content)
                return partial(worker.client.commit, worker_id, assignment, name, report)

            try:
                exchange.hand_in(send)
            except ForeignBlobError as error:
                raise StaleLeaseError(f"{assignment}: somebody was quicker. {error}") from error
            worker.metering.meters.add(SCORED, by=len(task))
            logger.info("%s is in: %d examples, %.1f s", assignment, len(task), seconds)

    def dataset(self, task: ScoringTask) -> Dataset:
        """The data that the task is of, without what it leaves out, at the size of its images.

        Other data is an `OverLimitError`: the range is not for this worker.
        """
        if self._dataset is None or self._dataset.quarantined != task.quarantined:
            self._dataset = self._opened(task)
        wanted = task.inputs
        if isinstance(wanted, ImageFormat) and self._dataset.inputs != spec_of(wanted):
            self._image_size = wanted.height
            self._dataset = self._opened(task)
        dataset = self._dataset
        found = dataset.fingerprint_like(task.fingerprint)
        if found != task.fingerprint or dataset.inputs != spec_of(task.inputs):
            raise OverLimitError(
                f"{dataset.source} has the fingerprint {found} and examples of {dataset.inputs}; "
                f"the coordinator's data has {task.fingerprint} and {spec_of(task.inputs)}. Give "
                "this worker the same data (--worker-data)."
            )
        return dataset

    def _opened(self, task: ScoringTask) -> Dataset:
        settings = self._worker.settings
        if settings.worker_data is None:
            raise ConfigError("this worker has no data before it. Give it some (--worker-data).")
        dataset = open_dataset(
            settings.worker_data,
            image_size=self._image_size,
            allowed_modules=settings.allow_modules,
            bearable=Bearable(known=task.quarantined),
        )
        return without_quarantined(dataset)

    def _loaded(self, task: ScoringTask, weights: BlobName, exchange: Exchange) -> nn.Module:
        key = (task.model, task.num_classes, task.inputs, task.seed, weights)
        if self._model is None or self._model[0] != key:
            self._model = None
            model = load_model(
                task.model,
                exchange.weights(weights),
                num_classes=task.num_classes,
                inputs=spec_of(task.inputs),
                seed=task.seed,
                device=self._worker.device,
                allowed_modules=self._worker.settings.allow_modules,
                max_bytes=self._worker.settings.max_blob_bytes,
            )
            self._model = key, model
        return self._model[1]
