"""Agent: the loop of a worker process."""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable
from contextvars import copy_context
from functools import partial

from lipt.common.access.tls import TlsFiles
from lipt.common.errors import (
    DivergedError,
    IncompatibleProtocolError,
    LearnerRejectedError,
    LearnerStoppedError,
    LiptError,
    OverLimitError,
    StaleLeaseError,
    UnknownRunError,
    UnknownWorkerError,
)
from lipt.common.observability.logs import logging_about
from lipt.common.observability.tracing import attached
from lipt.common.process.devices import device_name
from lipt.common.states import Divergence
from lipt.core.tasks import ScoringTask
from lipt.worker.assignment import Worker
from lipt.worker.client import POLL_SECONDS, Assignment, LeaseKeeper
from lipt.worker.instruments import LEARNERS, RANGES, LearnerOutcome, Phase

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
# Time for a stopped learner's thread to leave its minibatch.
_LEAVE_SECONDS = 2.0


class Agent:
    """One worker process: registers, then carries out assignments; survives its coordinator."""

    def __init__(
        self,
        worker: Worker,
        *,
        pause: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker = worker
        self._settings, self._client = worker.settings, worker.client
        self._instance_id = uuid.uuid4().hex
        self._stopping = threading.Event()
        self._pause = pause or self._stopping.wait
        self._learners_left = self._settings.max_learners
        self._clock = clock
        self._idle_since = clock()
        self._idle_reason = ""

    def stop(self) -> None:
        """Release the assignment and return from `run`; for signal handlers."""
        self._stopping.set()
        self._client.polls.interrupt()

    @property
    def stopped_early(self) -> bool:
        """Whether it stopped before `max_learners` were done."""
        return self._stopping.is_set() and self._learners_left != 0

    def run(self) -> None:
        while not self._finished():
            try:
                self._worker.phases.enter(Phase.JOINING)
                settings, device = self._settings, self._worker.device
                self._client.register(self._instance_id, settings, device)
                named = f"{settings.name} ({self._client.worker_id})"
                where = device_name(device)
                logger.info("joined %s as %s on %s", settings.coordinator, named, where)
                self._worker.levels.recover()
                with logging_about(worker=self._client.worker_id):
                    while not self._finished():
                        self._take_assignment()
            except UnknownWorkerError:
                logger.info("the coordinator was restarted; joining again")
            except IncompatibleProtocolError:
                raise
            except LiptError as error:
                self._log_retry(error)
                self._pause(max(_RETRY_SECONDS, error.retry_after_seconds or 0.0))
        if self._patience_seconds() <= 0.0:
            logger.info("stopping after %g s without a learner", self._settings.max_idle_seconds)

    def _log_retry(self, error: LiptError) -> None:
        settings = self._settings
        files = TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_ca)
        why = files.closing_hint(str(error)) if settings.tls_ca else ""
        reason = (
            f"{error} {why}{' ' if why else ''}Trying again until {settings.coordinator} answers."
        )
        self._worker.events.retried("joining", reason, level=self._worker.levels.level(error))

    def _finished(self) -> bool:
        done = self._learners_left == 0 or self._patience_seconds() <= 0.0
        return done or self._stopping.is_set()

    def _patience_seconds(self) -> float:
        if self._settings.max_idle_seconds is None:
            return math.inf
        return self._idle_since + self._settings.max_idle_seconds - self._clock()

    def _take_assignment(self) -> None:
        self._worker.phases.enter(Phase.WAITING)
        wait_seconds = max(0.0, min(POLL_SECONDS, self._patience_seconds()))
        assignment = self._client.acquire(wait_seconds=wait_seconds)
        reason = self._client.idle_reason
        # Every poll repeats the reason.
        if reason and reason != self._idle_reason:
            logger.warning("no learner for this worker: it %s.", reason)
        self._idle_reason = reason
        if assignment is None:
            return
        about: dict[str, object] = {"assignment": assignment.assignment_id}
        if assignment.is_learner:
            about |= {"run": assignment.run_id, "learner": assignment.learner_index}
        with logging_about(**about), attached(assignment.traceparent):
            self._carry_out(assignment)
        self._idle_since = self._clock()

    def _carry_out(self, assignment: Assignment) -> None:
        # Train on another thread, so that signals are handled at once.
        task = assignment.task
        what = (
            f"examples {task.start} to {task.stop - 1}"
            if isinstance(task, ScoringTask)
            else f"density {task.density:.3f}"
        )
        logger.info("%s: %s, %s", assignment, task.model, what)
        failure: list[BaseException] = []
        worker = self._worker
        with LeaseKeeper(self._client, assignment, worker.events, worker.levels) as lease:

            def should_stop() -> bool:
                return self._stopping.is_set() or lease.lost.is_set()

            def work() -> None:
                try:
                    self._worker.carry_out(assignment, lease, should_stop)
                # A user's model may call sys.exit().
                except BaseException as error:  # noqa: BLE001 - reported in the main thread
                    failure.append(error)

            within = partial(copy_context().run, work)
            thread = threading.Thread(target=within, name=assignment.assignment_id, daemon=True)
            thread.start()
            # Signal handlers run between two waits.
            while thread.is_alive() and not self._stopping.is_set():
                thread.join(0.1)
            if thread.is_alive():
                self._count(assignment, LearnerOutcome.STOPPED)
                self._release(assignment)
                thread.join(_LEAVE_SECONDS)
                return
        if failure:
            self._report_failure(assignment, failure[0])
            return
        self._count(assignment, LearnerOutcome.IN)
        if self._learners_left is not None and assignment.is_learner:
            self._learners_left -= 1

    def _count(self, assignment: Assignment, outcome: LearnerOutcome) -> None:
        counter = LEARNERS if assignment.is_learner else RANGES
        self._worker.meters.add(counter, outcome.value)

    def _release(
        self,
        assignment: Assignment,
        error: str = "",
        *,
        divergence: Divergence | None = None,
        over_limits: bool = False,
    ) -> None:
        name, epoch = assignment.assignment_id, assignment.epoch
        try:
            self._client.release(name, epoch, error, divergence=divergence, over_limits=over_limits)
            logger.info("released %s", assignment)
        except LiptError as refusal:
            logger.warning("%s could not be released: %s", assignment, refusal)

    def _report_failure(self, assignment: Assignment, error: BaseException) -> None:
        match error:
            case LearnerStoppedError():
                self._count(assignment, LearnerOutcome.STOPPED)
                if self._stopping.is_set():
                    self._release(assignment)
            case StaleLeaseError() | UnknownRunError() | UnknownWorkerError():
                self._count(assignment, LearnerOutcome.STOPPED)
                logger.warning("%s", error)
            case OverLimitError():
                self._count(assignment, LearnerOutcome.DECLINED)
                logger.warning("%s is over this worker's limits: %s", assignment, error)
                self._release(assignment, str(error), over_limits=True)
                self._pause(_RETRY_SECONDS)
            case LearnerRejectedError():
                self._count(assignment, LearnerOutcome.REFUSED)
                # The coordinator already counted the attempt.
                logger.error("%s was refused: %s", assignment, error)
            case _:
                self._count(assignment, LearnerOutcome.FAILED)
                traceback = None if isinstance(error, LiptError) else error
                logger.error("%s failed: %s", assignment, error, exc_info=traceback)
                divergence = error.divergence if isinstance(error, DivergedError) else None
                named = f"{type(error).__name__}: {error}"
                self._release(assignment, named, divergence=divergence)
                self._pause(_RETRY_SECONDS)
