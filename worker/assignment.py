"""Assignment runner: one learner, from the fetch of theta* to the commit of its result."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from time import perf_counter

import torch

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import WeightEncoding
from lipt.common.config.tasks import LearnerTask
from lipt.common.data.shard import EncodedShard, Shard, open_shard
from lipt.common.inputs.specs import spec_of
from lipt.common.models import build_model
from lipt.common.observability.tracing import span
from lipt.common.weights.encodings import encode_weights
from lipt.common.weights.files import read_weights
from lipt.common.weights.specs import Weights, specs_of
from lipt.core.learner.learner import LearnerResult, train_learner
from lipt.v1 import worker_pb2
from lipt.worker.client import Assignment, CoordinatorClient, Report
from lipt.worker.exchange import Exchange, LeaseKeeper
from lipt.worker.instruments import EXAMPLES, LEARNER, RESULT_BYTES, STEPS, WAITED, Metering, Phase

logger = logging.getLogger(__name__)


class AssignmentRunner:
    """Fetches, trains, prunes, encodes and commits."""

    def __init__(
        self,
        client: CoordinatorClient,
        exchange: Exchange,
        lease: LeaseKeeper,
        should_stop: Callable[[], bool],
        *,
        device: torch.device,
        allowed_modules: Collection[str],
        metering: Metering | None = None,
        require_fitting: Callable[[LearnerTask], object] = lambda _: None,
        train: Callable[..., LearnerResult] = train_learner,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """Carry one assignment out.

        Args:
            client: the coordinator's calls.
            exchange: what is fetched and sent.
            lease: told how far the learner is.
            should_stop: says that the learner is worth nothing any more.
            device: what to train on.
            allowed_modules: modules that model factories may be imported from.
            metering: where phases and steps are noted.
            require_fitting: refuses a learner that is too much for this worker.
            train: `train_learner`, or what a test has in its place.
            clock: seconds, for how long everything took.
        """
        metering = metering or Metering()
        self._client = client
        self._exchange = exchange
        self._lease = lease
        self._device = device
        self._meters, self._phases = metering.meters, metering.phases
        self._allowed_modules = allowed_modules
        self._require_fitting = require_fitting
        self._should_stop = should_stop
        self._train = train
        self._clock = clock

    def run(self, worker_id: str, assignment: Assignment) -> None:
        """Carry the assignment out.

        Raises:
            LearnerStoppedError: the worker stops, or lost the lease.
            OverLimitError: it is too much for this worker; nothing was fetched.
            LiptError: it cannot be carried out here, or its result was refused.
        """
        with span("learner", run_id=assignment.run_id, worker_id=worker_id) as learner:
            learner.note(
                assignment_id=assignment.assignment_id,
                learner=assignment.learner_index,
                epoch=assignment.epoch,
                density=assignment.task.density,
            )
            self._carry_out(worker_id, assignment)

    def _carry_out(self, worker_id: str, assignment: Assignment) -> None:
        started = self._clock()
        self._phases.enter(Phase.FETCHING)
        task = assignment.task
        self._require_fitting(task)
        with span("fetch weights") as fetching:
            initial = self._initial_weights(assignment)
            fetching.note(bytes=self._exchange.bytes_received)
        with span("fetch shard", bytes=assignment.shard.size_bytes):
            shard = self._shard(assignment)
        self._lease.report(worker_pb2.LEARNER_PHASE_TRAINING)
        self._phases.enter(Phase.TRAINING)
        learner = self._train(
            task,
            initial,
            shard,
            device=self._device,
            allowed_modules=self._allowed_modules,
            on_step=lambda step, loss: self._after_step(task, step, loss),
            should_stop=self._should_stop,
        )
        self._meters.add(WAITED, by=learner.waited_seconds)
        self._phases.enter(Phase.SUBMITTING)
        self._lease.report(
            worker_pb2.LEARNER_PHASE_SUBMITTING, task.learners.num_steps, learner.loss
        )
        self._exchange.hand_in(lambda: self._sent(worker_id, assignment, learner, started))
        logger.info(
            "learner %s is in: loss %.3f, %.1f s; of %.1f s of training it waited %.1f s for data",
            assignment.assignment_id,
            learner.loss,
            self._clock() - started,
            learner.train_seconds,
            learner.waited_seconds,
        )
        self._meters.observe(LEARNER, self._clock() - started)

    def _after_step(self, task: LearnerTask, step: int, loss: float) -> None:
        self._meters.add(STEPS)
        learners = task.learners
        self._meters.add(EXAMPLES, by=learners.num_minibatches * learners.batch_size)
        self._lease.report(worker_pb2.LEARNER_PHASE_TRAINING, step, loss)

    def _sent(
        self, worker_id: str, assignment: Assignment, learner: LearnerResult, started: float
    ) -> Callable[[], None]:
        # The snapshots before the result, so that a learner that is in has all of them.
        *snapshots, result = [
            self._upload(weights, assignment.task.learners.encoding)
            for weights in (*learner.snapshots, learner.weights)
        ]
        seconds, received = self._clock() - started, self._exchange.bytes_received
        report = Report(learner.loss, learner.train_seconds, seconds, received)
        return lambda: self._client.commit(worker_id, assignment, result, report, snapshots)

    def _upload(self, weights: Weights, encoding: WeightEncoding) -> BlobName:
        with span("encode", encoding=encoding.value):
            content = encode_weights(weights, encoding)
        self._meters.add(RESULT_BYTES, encoding.value, by=len(content))
        return self._exchange.upload(content)

    def _initial_weights(self, assignment: Assignment) -> Weights:
        task = assignment.task
        source = self._exchange.weights(assignment.initial_weights)
        model = build_model(
            task.model,
            num_classes=task.num_classes,
            inputs=spec_of(task.inputs),
            seed=task.seed,
            allowed_modules=self._allowed_modules,
        )
        return read_weights(
            source,
            like=specs_of(model.state_dict()),
            max_bytes=self._exchange.max_blob_bytes,
        )

    def _shard(self, assignment: Assignment) -> Shard | EncodedShard:
        task = assignment.task
        content = self._exchange.downloaded(assignment.shard)
        num_examples = task.learners.num_minibatches * task.learners.batch_size
        return open_shard(content, task.inputs, num_examples=num_examples, target=task.target)
