"""Scoring: examples of the data before this worker, passed through the coordinator's model.

The data is this worker's own to open, and counts only where it is the coordinator's: its
fingerprint is compared for every range, and a glance afterwards says whether its files are still
the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from time import perf_counter

import torch
from torch import nn

from lipt.common.blobs.blob import BlobName
from lipt.common.config.tasks import ScoringTask
from lipt.common.data import Dataset
from lipt.common.errors import (
    ConfigError,
    ForeignBlobError,
    LearnerStoppedError,
    OtherDataError,
    OverLimitError,
    StaleLeaseError,
)
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.specs import spec_of
from lipt.common.observability.tracing import span
from lipt.common.signals.passes import (
    encode_range,
    is_data_of,
    load_task_model,
    open_task_data,
    score_range,
)
from lipt.worker.client import CoordinatorClient, Report, ScoringAssignment
from lipt.worker.exchange import Exchange
from lipt.worker.instruments import SCORED, Metering, Phase
from lipt.worker.settings import WorkerSettings

logger = logging.getLogger(__name__)


class Scorer:
    """The data and the model of the last range, which are the next one's as a rule."""

    def __init__(self, settings: WorkerSettings, device: torch.device) -> None:
        """Begin with neither.

        Args:
            settings: the worker's.
            device: where models are.
        """
        self._settings = settings
        self.device = device
        self._dataset: Dataset | None = None
        self._image_size: int | None = None
        self._model: tuple[object, nn.Module] | None = None

    def dataset(self, task: ScoringTask) -> Dataset:
        """The data that the task is of.

        Raises:
            OverLimitError: what this worker has before it is other data.
            LiptError: it cannot be opened.
        """
        dataset = self._opened(task)
        found = dataset.fingerprint_like(task.fingerprint)
        if not is_data_of(task, dataset, found):
            raise OverLimitError(
                f"{dataset.source} has the fingerprint {found} and examples of {dataset.inputs}; "
                f"the coordinator's data has {task.fingerprint} and {spec_of(task.inputs)}. Give "
                "this worker the same data (--worker-data)."
            )
        return dataset

    def model(self, task: ScoringTask, weights: BlobName, exchange: Exchange) -> nn.Module:
        """The model with the weights that are looked through, on the device."""
        key = (task.model, task.num_classes, task.inputs, task.seed, weights)
        if self._model is None or self._model[0] != key:
            self._model = None
            model = load_task_model(
                task,
                exchange.weights(weights),
                device=self.device,
                allowed_modules=self._settings.allow_modules,
                max_bytes=exchange.max_blob_bytes,
            )
            self._model = key, model
        return self._model[1]

    def require_unchanged(self, dataset: Dataset) -> None:
        """See that what was scored was the data that was compared; else it is opened again.

        Raises:
            OtherDataError: its files have changed since.
        """
        if dataset.has_changed():
            self._dataset = None
            raise OtherDataError(
                f"files of {dataset.source} have changed while they were scored. They are opened "
                "again for the next range."
            )

    def _opened(self, task: ScoringTask) -> Dataset:
        """The data as it is now, without what the task leaves out, at the size of its images."""
        source = self._settings.worker_data
        if source is None:
            raise ConfigError("this worker has no data before it. Give it some (--worker-data).")

        def opened() -> Dataset:
            return open_task_data(
                task,
                source,
                image_size=self._image_size,
                allowed_modules=self._settings.allow_modules,
            )

        if self._dataset is None or self._dataset.quarantined != task.quarantined:
            self._dataset = opened()
        wanted = task.inputs
        if isinstance(wanted, ImageFormat) and self._dataset.inputs != spec_of(wanted):
            self._image_size = wanted.height
            self._dataset = opened()
        return self._dataset


class ScoringRunner:
    """Fetches the weights, scores one range, and hands it in."""

    def __init__(
        self,
        client: CoordinatorClient,
        exchange: Exchange,
        scorer: Scorer,
        should_stop: Callable[[], bool],
        metering: Metering,
        require_fitting: Callable[[ScoringTask], object] = lambda _: None,
    ) -> None:
        """Carry one range out.

        Args:
            client: the coordinator's calls.
            exchange: what is fetched and sent.
            scorer: has the data, and the last model.
            should_stop: says that the range is worth nothing any more.
            metering: where phases and examples are noted.
            require_fitting: refuses a range that is too much for this worker.
        """
        self._client = client
        self._exchange = exchange
        self._scorer = scorer
        self._should_stop = should_stop
        self._meters, self._phases = metering.meters, metering.phases
        self._require_fitting = require_fitting

    def run(self, worker_id: str, assignment: ScoringAssignment) -> None:
        """Carry the range out.

        Raises:
            LearnerStoppedError: the worker stops, or lost the lease.
            OverLimitError: it is not for this worker: too many threads, or other data.
            LiptError: it cannot be carried out here, or its result was refused.
        """
        task, started = assignment.task, perf_counter()
        with span("range", assignment_id=assignment.assignment_id, worker_id=worker_id):
            self._phases.enter(Phase.FETCHING)
            self._require_fitting(task)
            dataset = self._scorer.dataset(task)
            model = self._scorer.model(task, assignment.initial_weights, self._exchange)
            self._phases.enter(Phase.SCORING)
            scored = score_range(
                model, dataset, task, device=self._scorer.device, on_done=self._require_needed
            )
            seconds = perf_counter() - started
            self._scorer.require_unchanged(dataset)
            self._phases.enter(Phase.SUBMITTING)
            content = encode_range(scored)
            report = Report(0.0, seconds, seconds, self._exchange.bytes_received)

            def send() -> Callable[[], None]:
                name = self._exchange.upload(content)
                return partial(self._client.commit, worker_id, assignment, name, report)

            try:
                self._exchange.hand_in(send)
            except ForeignBlobError as error:
                raise StaleLeaseError(f"{assignment}: somebody was quicker. {error}") from error
            self._meters.add(SCORED, by=len(task))
            logger.info("%s is in: %d examples, %.1f s", assignment, len(task), seconds)

    def _require_needed(self, _num_done: int) -> None:
        if self._should_stop():
            raise LearnerStoppedError("stopped before the range was scored.")
