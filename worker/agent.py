"""A worker's life: join, take a learner, train it, hand it in, take the next.

It outlives its coordinator: whatever that is doing, a worker that was started
once joins within seconds of its coming up.
"""

from __future__ import annotations

import logging
import threading
import uuid

import torch

from lipt.common.blobs.store import BlobStore
from lipt.common.errors import (
    IncompatibleProtocolError,
    LearnerStoppedError,
    LiptError,
    StaleLeaseError,
    UnknownRunError,
    UnknownWorkerError,
    UnreachableError,
)
from lipt.common.observability.events import EventKind, Events
from lipt.common.process.devices import device_name, versions
from lipt.worker.assignment import AssignmentRunner
from lipt.worker.coordinator import Assignment, Coordinator
from lipt.worker.lease import LeaseKeeper
from lipt.worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
# How long a stopped learner's thread may take to leave its present minibatch.
_LEAVE_SECONDS = 2.0


class Agent:
    """One worker process."""

    def __init__(
        self,
        settings: WorkerSettings,
        coordinator: Coordinator,
        cache: BlobStore,
        device: torch.device,
        events: Events,
    ) -> None:
        self._settings = settings
        self._events = events
        self._coordinator = coordinator
        self._cache = cache
        self._device = device
        self._instance_id = uuid.uuid4().hex
        self._stopping = threading.Event()
        self._learners_left = settings.max_learners

    def stop(self) -> None:
        """Give back what is in hand and return from `run`; made for signal handlers."""
        self._stopping.set()
        self._coordinator.interrupt()

    def run(self) -> None:
        """Work until `stop`, or until `max_learners` are done.

        Raises:
            IncompatibleProtocolError: the coordinator is of another major version.
        """
        complained = False
        while not self._finished():
            try:
                worker_id = self._register()
                complained = False
                self._work(worker_id)
            except UnknownWorkerError:
                logger.info("the coordinator was restarted; joining again")
            except IncompatibleProtocolError:
                raise
            except LiptError as error:
                # Counted every time, and said once: it may be away for hours.
                self._events.record(
                    EventKind.RETRIED,
                    detail="joining",
                    level=logging.DEBUG if complained else logging.WARNING,
                    reason=f"{error} Trying again until {self._settings.coordinator} answers.",
                )
                complained = isinstance(error, UnreachableError)
                self._stopping.wait(_RETRY_SECONDS)

    def _finished(self) -> bool:
        return self._stopping.is_set() or self._learners_left == 0

    def _register(self) -> str:
        worker_id = self._coordinator.register(
            self._instance_id,
            name=self._settings.name,
            device=device_name(self._device),
            versions=versions(),
            allowed_modules=self._settings.allow_modules,
        )
        logger.info(
            "joined %s as %s (%s) on %s",
            self._settings.coordinator,
            self._settings.name,
            worker_id,
            device_name(self._device),
        )
        return worker_id

    def _work(self, worker_id: str) -> None:
        while not self._finished():
            assignment = self._coordinator.acquire(worker_id)
            if assignment is not None:
                self._train(worker_id, assignment)

    def _train(self, worker_id: str, assignment: Assignment) -> None:
        """Train one learner on a thread of its own, so that a signal is answered at once."""
        logger.info(
            "learner %s: %s, density %.3f",
            assignment.assignment_id,
            assignment.task.model,
            assignment.task.density,
        )
        ended = threading.Event()
        failure: list[Exception] = []
        with LeaseKeeper(self._coordinator, worker_id, assignment, self._events) as lease:
            runner = AssignmentRunner(
                self._coordinator,
                self._cache,
                lease,
                cache_bytes=self._settings.cache_bytes,
                device=self._device,
                events=self._events,
                allowed_modules=self._settings.allow_modules,
                should_stop=lambda: self._stopping.is_set() or lease.lost.is_set(),
            )

            def work() -> None:
                try:
                    runner.run(worker_id, assignment)
                except Exception as error:  # noqa: BLE001 - reported below, in the main thread
                    failure.append(error)
                finally:
                    ended.set()

            thread = threading.Thread(target=work, name=assignment.assignment_id, daemon=True)
            thread.start()
            self._wait(ended)
            if not ended.is_set():
                self._give_back(worker_id, assignment)
                thread.join(_LEAVE_SECONDS)
                return
        if failure:
            self._explain(worker_id, assignment, failure[0])
        elif self._learners_left is not None:
            self._learners_left -= 1

    def _wait(self, ended: threading.Event) -> None:
        # In slices: a signal handler runs between them.
        while not ended.wait(0.1) and not self._stopping.is_set():
            pass

    def _give_back(self, worker_id: str, assignment: Assignment, error: str = "") -> None:
        try:
            self._coordinator.release(worker_id, assignment, error)
            logger.info("gave %s back", assignment.assignment_id)
        except LiptError as refusal:
            logger.warning("giving %s back: %s", assignment.assignment_id, refusal)

    def _explain(self, worker_id: str, assignment: Assignment, error: Exception) -> None:
        name = assignment.assignment_id
        if isinstance(error, LearnerStoppedError):
            if self._stopping.is_set():
                self._give_back(worker_id, assignment)
        elif isinstance(error, StaleLeaseError | UnknownRunError | UnknownWorkerError):
            logger.warning("%s", error)
        elif isinstance(error, LiptError) and error.reason == "LEARNER_REJECTED":
            # The coordinator counted the attempt when it refused the result.
            logger.error("learner %s was refused: %s", name, error)
        else:
            if not isinstance(error, LiptError):
                logger.error("learner %s failed", name, exc_info=error)
            else:
                logger.error("learner %s failed: %s", name, error)
            self._give_back(worker_id, assignment, f"{type(error).__name__}: {error}")
            self._stopping.wait(_RETRY_SECONDS)
