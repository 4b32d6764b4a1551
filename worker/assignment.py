"""Assignments of learners and ranges of examples, from fetch to commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, TypeVar

import torch
from torch import nn

from lipt.common.backoff import RetryLevels, RetryPolicy
from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.blobs.transfer import Transfers
from lipt.common.config.run_config import RunConfig
from lipt.common.errors import (
    ConfigError,
    ForeignBlobError,
    LearnerStoppedError,
    LiptError,
    OtherDataError,
    OverLimitError,
    StaleLeaseError,
    StateError,
    TooManyCallsError,
    UnavailableError,
    UnknownBlobError,
    UnreachableError,
)
from lipt.common.observability.logs import Events
from lipt.common.observability.metrics import Meters, Phases
from lipt.common.observability.tracing import span
from lipt.common.process import Machine
from lipt.common.tensor_files import Weights, read_weights, specs_of
from lipt.core.passes import data_proof, encode_range, score_range
from lipt.core.planning import Limit, Part, PlannedCost, excesses, plan_learner
from lipt.core.pretraining.learner import train_learner
from lipt.core.pretraining.sharding import draw_half
from lipt.core.tasks import LearnerTask, ScoringTask
from lipt.data.dataset import Dataset, without_quarantined
from lipt.data.held_out import DataForm
from lipt.data.inputs.specs import ImageFormat, spec_of
from lipt.data.loading import open_dataset
from lipt.data.shard import open_shard, pack_shard
from lipt.models.encodings import encode_weights
from lipt.models.footprint import ModelFigures, measure_model
from lipt.models.registry import build_model, build_without_values, load_model
from lipt.v1 import worker_pb2
from lipt.worker.client import Assignment, CoordinatorClient, LeaseKeeper, OwnShard
from lipt.worker.instruments import BLOB_BYTES, EXAMPLES, STEPS, WAITED, Phase
from lipt.worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

_RETRY_SECONDS = 1.0
_AWAY = (UnreachableError, TooManyCallsError)
# Of a model on a worker without a limit on memory.
_UNMEASURED = ModelFigures(0, 0, 0)


@dataclass
class Worker:
    """Trains learners, and scores examples where it has the data."""

    settings: WorkerSettings
    client: CoordinatorClient
    device: torch.device
    limits: WorkerLimits
    cache: BlobStore
    events: Events = field(default_factory=Events)
    levels: RetryLevels = field(default_factory=RetryLevels)
    meters: Meters = field(default_factory=Meters)
    phases: Phases = field(default_factory=lambda: Phases(*Phase))
    pause: Callable[[float], object] = sleep

    # Reused for the next range.
    _dataset: Dataset | None = field(default=None, init=False)
    _image_size: int | None = field(default=None, init=False)
    _scorer: tuple[object, nn.Module] | None = field(default=None, init=False)

    def carry_out(
        self, assignment: Assignment, lease: LeaseKeeper, should_stop: Callable[[], bool]
    ) -> None:
        """Fetch, compute and commit one assignment; raises if it cannot be committed."""
        exchange, task = Exchange(self, assignment, should_stop), assignment.task
        worker_id, assignment_id = self.client.worker_id, assignment.assignment_id
        if isinstance(task, ScoringTask):
            with span("range", worker_id=worker_id, assignment_id=assignment_id):
                self._score(assignment, task, exchange)
            return
        with span(
            "learner",
            run_id=assignment.run_id,
            worker_id=worker_id,
            assignment_id=assignment_id,
            learner=assignment.learner_index,
            epoch=assignment.epoch,
            density=task.density,
        ):
            self._train(assignment, task, exchange, lease)

    def _train(
        self, assignment: Assignment, task: LearnerTask, exchange: Exchange, lease: LeaseKeeper
    ) -> None:
        started, meters, phases = perf_counter(), self.meters, self.phases
        num_examples = task.learners.num_minibatches * task.learners.batch_size

        def after_step(step: int, loss: float) -> None:
            meters.add(STEPS)
            meters.add(EXAMPLES, by=num_examples)
            lease.report(worker_pb2.LEARNER_PHASE_TRAINING, step, loss)

        phases.enter(Phase.FETCHING)
        self.limits.require(task)
        with span("fetch weights") as fetching:
            initial = self._initial_weights(task, exchange.weights(assignment.initial_weights))
            fetching.note(bytes=exchange.bytes_received)
        own: Dataset | None = None
        with span("fetch shard") as fetching:
            if isinstance(assignment.shard, OwnShard):
                own, content = self._own_shard(assignment.shard, task, num_examples)
            else:
                assert assignment.shard is not None  # noqa: S101 - a learner has one
                content = exchange.downloaded(assignment.shard)
            fetching.note(bytes=len(content))
            shard = open_shard(content, task.inputs, num_examples=num_examples, target=task.target)
        lease.report(worker_pb2.LEARNER_PHASE_TRAINING)
        phases.enter(Phase.TRAINING)
        learner = train_learner(
            task,
            initial,
            shard,
            device=self.device,
            allowed_modules=self.settings.allow_modules,
            on_step=after_step,
            should_stop=exchange.should_stop,
        )
        meters.add(WAITED, by=learner.waited_seconds)
        phases.enter(Phase.SUBMITTING)
        lease.report(worker_pb2.LEARNER_PHASE_SUBMITTING, task.learners.num_steps, learner.loss)

        def encoded() -> Iterator[bytes]:
            # Snapshots first: a stored learner then has all of them.
            for weights in (*learner.snapshots, learner.weights):
                with span("encode", encoding=task.learners.encoding.value):
                    content = encode_weights(weights, task.learners.encoding)
                yield content

        report: dict[str, Any] = {"loss": learner.loss, "train_seconds": learner.train_seconds}
        if own is not None:
            report |= {"num_examples": len(own), "fingerprint": own.fingerprint}
        exchange.submit(encoded, **report)
        seconds = perf_counter() - started
        logger.info(
            "%s is in: loss %.3f, %.1f s; of %.1f s of training it waited %.1f s for data",
            assignment,
            learner.loss,
            seconds,
            learner.train_seconds,
            learner.waited_seconds,
        )

    def _own_shard(
        self, shard: OwnShard, task: LearnerTask, num_examples: int
    ) -> tuple[Dataset, bytes]:
        """This worker's data in the form of the run's, and the shard's file."""
        source, data = self.settings.source, self.settings.worker_data
        if source != shard.source or data is None:
            raise ConfigError(
                f"this worker holds the source {source}, and not {shard.source}. Use the "
                "coordinator's lipt."
            )
        form = DataForm(
            spec_of(task.inputs),
            task.target.kind,
            shard.names,
            shard.flagged,
            shard.number_columns,
            shard.category_columns,
        )
        opened = form.open("its data", data, allow_modules=self.settings.allow_modules)
        own = form.match(opened, f"the source {source}")
        ids = draw_half(torch.arange(len(own)), num_examples, shard.half, seed=shard.seed)
        return own, pack_shard(own, ids)

    def _initial_weights(self, task: LearnerTask, source: Path | bytes) -> Weights:
        model = build_model(
            task.model,
            num_classes=task.num_classes,
            inputs=spec_of(task.inputs),
            seed=task.seed,
            allowed_modules=self.settings.allow_modules,
            adapters=task.adapters,
        )
        like, max_bytes = specs_of(model.state_dict()), self.settings.max_blob_bytes
        return read_weights(source, like=like, max_bytes=max_bytes)

    def _score(self, assignment: Assignment, task: ScoringTask, exchange: Exchange) -> None:
        started, phases = perf_counter(), self.phases

        def require_needed(_num_done: int) -> None:
            if exchange.should_stop():
                raise LearnerStoppedError("stopped before the range was scored.")

        phases.enter(Phase.FETCHING)
        self.limits.require(task)
        dataset = self.dataset(task)
        model = self._model(task, assignment.initial_weights, exchange)
        phases.enter(Phase.SCORING)
        scored = score_range(model, dataset, task, device=self.device, on_done=require_needed)
        seconds = perf_counter() - started
        if dataset.has_changed():
            self._dataset = None
            raise OtherDataError(
                f"files of {dataset.source} have changed while they were scored. They are "
                "opened again for the next range."
            )
        phases.enter(Phase.SUBMITTING)
        content, proof = encode_range(scored), data_proof(dataset, task.nonce, task.proof_ids)
        try:
            exchange.submit(lambda: [content], data_proof=proof, train_seconds=seconds)
        except ForeignBlobError as error:
            raise StaleLeaseError(f"{assignment}: another worker was quicker. {error}") from error
        logger.info("%s is in: %d examples, %.1f s", assignment, len(task), seconds)

    def dataset(self, task: ScoringTask) -> Dataset:
        """The task's data without excluded examples; `OverLimitError` if it differs."""
        dataset, expected = self._dataset, task.inputs
        if dataset is None or dataset.quarantined != task.quarantined:
            dataset = self._opened(task)
        if isinstance(expected, ImageFormat) and dataset.inputs != spec_of(expected):
            self._image_size = expected.height
            dataset = self._opened(task)
        own = dataset.fingerprint
        if own != task.fingerprint or dataset.inputs != spec_of(expected):
            raise OverLimitError(
                f"{dataset.source} has the fingerprint {own} and examples of {dataset.inputs}; "
                f"the coordinator's data has {task.fingerprint} and {spec_of(expected)}. Give "
                "this worker the same data (--worker-data)."
            )
        return dataset

    def _opened(self, task: ScoringTask) -> Dataset:
        if self.settings.worker_data is None:
            raise ConfigError("this worker has no data. Give it some (--worker-data).")
        dataset = open_dataset(
            self.settings.worker_data,
            image_size=self._image_size,
            allowed_modules=self.settings.allow_modules,
            quarantined=task.quarantined,
        )
        self._dataset = without_quarantined(dataset)
        return self._dataset

    def _model(self, task: ScoringTask, weights: BlobName, exchange: Exchange) -> nn.Module:
        key = (task.model, task.num_classes, task.inputs, task.seed, task.adapters, weights)
        if self._scorer is None or self._scorer[0] != key:
            self._scorer = None
            model = load_model(
                task.model,
                exchange.weights(weights),
                num_classes=task.num_classes,
                inputs=spec_of(task.inputs),
                seed=task.seed,
                device=self.device,
                allowed_modules=self.settings.allow_modules,
                adapters=task.adapters,
                max_bytes=self.settings.max_blob_bytes,
            )
            self._scorer = key, model
        return self._scorer[1]


class Exchange:
    """Transfers the blobs of one assignment; `bytes_received` does not count cached ones."""

    def __init__(
        self, worker: Worker, assignment: Assignment, should_stop: Callable[[], bool]
    ) -> None:
        self._worker, self._assignment = worker, assignment
        self._retried = worker.events.retried
        self.should_stop = should_stop
        policy = RetryPolicy(
            sleep=worker.pause,
            on_retry=lambda error: self._note_retry("transfer", error, "Going on where it was."),
        )
        blobs, add = worker.client.blobs, worker.meters.add
        self._downloads = Transfers(blobs, lambda n: add(BLOB_BYTES, "received", by=n), policy)
        self._uploads = Transfers(blobs, lambda n: add(BLOB_BYTES, "sent", by=n), policy)
        self.bytes_received = 0
        self._began = perf_counter()

    def weights(self, name: BlobName) -> Path | bytes:
        """A weights file, from the cache if present."""
        cache = self._worker.cache
        try:
            # Cached files may be old, so verify them.
            if not cache.is_whole(name, remove_damaged=True):
                self._retry_until_done(lambda: self._downloads.download(name, cache), _AWAY)
                self.bytes_received += name.size_bytes
            cache.trim(self._worker.settings.cache_bytes, keep=name)
            return cache.path(name)
        except StateError as error:
            # Fall back to memory when the disk is full.
            self._retried("caching", f"{error} Doing without.")
            return self.downloaded(name)

    def downloaded(self, name: BlobName) -> bytes:
        max_bytes = self._worker.settings.max_blob_bytes
        content = self._retry_until_done(
            lambda: self._downloads.download_bytes(name, max_bytes=max_bytes), _AWAY
        )
        self.bytes_received += len(content)
        return content

    def submit(
        self, encoded: Callable[[], Iterable[bytes]], *, data_proof: str = "", **report: Any
    ) -> None:
        """Upload and commit; repeats both if the coordinator's copy is damaged."""

        def send() -> None:
            # Waits for the coordinator without limit: a result is expensive.
            names = []
            for content in encoded():
                upload = partial(self._uploads.upload, content)
                with span("upload", bytes=len(content)):
                    names.append(self._retry_until_done(upload, (UnavailableError,)))
            reported = worker_pb2.LearnerReport(
                total_seconds=perf_counter() - self._began,
                bytes_received=self.bytes_received,
                **report,
            )
            committing = (self._assignment, names, reported, data_proof)
            commit = partial(self._worker.client.commit, *committing)
            with span("commit"):
                self._retry_until_done(commit, (UnavailableError,))

        try:
            send()
        except UnknownBlobError as error:
            self._retried("handing over", f"{error} Sending it again.")
            send()

    def _retry_until_done(
        self, action: Callable[[], ResultT], waits_for: tuple[type[UnavailableError], ...]
    ) -> ResultT:
        while True:
            if self.should_stop():
                raise LearnerStoppedError("stopped before the assignment was submitted.")
            try:
                result = action()
            except waits_for as error:
                self._note_retry("handing over", error, "Trying again.")
                self._worker.pause(max(_RETRY_SECONDS, error.retry_after_seconds or 0.0))
            else:
                if self._worker.levels.recover():
                    logger.info("the coordinator answers again")
                return result

    def _note_retry(self, what: str, error: LiptError, action: str) -> None:
        self._retried(what, f"{error} {action}", level=self._worker.levels.level(error))


class WorkerLimits:
    """Limits on a learner's threads and memory; none on memory on CUDA without a setting."""

    def __init__(self, settings: WorkerSettings, machine: Machine, device: torch.device) -> None:
        threads = settings.max_threads or machine.max_threads
        on_cpu = machine.max_memory_bytes if device.type == "cpu" else None
        memory = on_cpu if settings.max_memory is None else int(settings.max_memory)
        self.at_most = {"worker_threads": Limit("this worker's --max-threads", threads)}
        if memory is not None:
            self.at_most["worker_memory"] = Limit("this worker's --max-memory", memory)
        self._allowed_modules = settings.allow_modules
        # Measuring a model takes seconds.
        self._figures: dict[tuple[object, ...], ModelFigures] = {}

    def require(self, task: LearnerTask | ScoringTask) -> None:
        if isinstance(task, ScoringTask):
            part = Part("scoring", task.threads)
            costs = [PlannedCost("worker_threads", "threads", "scoring of a range", [part])]
        else:
            limited, size = "worker_memory" in self.at_most, spec_of(task.inputs).num_bytes
            figures = self._figures_of(task) if limited else _UNMEASURED
            config = RunConfig(model=task.model, learners=task.learners)
            costs = [*plan_learner(config, figures, example_bytes=size).costs]
        if sentences := excesses(costs, self.at_most):
            raise OverLimitError(" ".join(sentences))

    def _figures_of(self, task: LearnerTask) -> ModelFigures:
        inputs, number, frozen = spec_of(task.inputs), task.num_classes, task.learners.frozen
        key = (task.model, number, inputs, frozen, task.adapters)
        if key not in self._figures:
            model = build_without_values(
                task.model,
                num_classes=number,
                inputs=inputs,
                allowed_modules=self._allowed_modules,
                adapters=task.adapters,
            )
            self._figures[key] = measure_model(model, task.model, inputs=inputs, frozen=frozen)
        return self._figures[key]
