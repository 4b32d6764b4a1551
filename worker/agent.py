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
from typing import TypeAlias

from lipt.common.backoff import RetryPolicy, retry
from lipt.common.config.tasks import ScoringTask
from lipt.common.errors import (
    IncompatibleProtocolError,
    LearnerRejectedError,
    LearnerStoppedError,
    LiptError,
    OverLimitError,
    PermissionDeniedError,
    StaleLeaseError,
    UnauthenticatedError,
    UnknownRunError,
    UnknownWorkerError,
    UnreachableError,
)
from lipt.common.network.tls import TlsFiles
from lipt.common.observability.logs import EventKind, logging_about
from lipt.common.observability.tracing import attached
from lipt.common.process.devices import device_name, versions_on
from lipt.worker.assignment import Scorer, Worker, run_learner
from lipt.worker.client import POLL_SECONDS, Assignment, Leased, LeaseKeeper, ScoringAssignment
from lipt.worker.instruments import LEARNERS, RANGES, Outcome, Phase

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
# How long a stopped learner's thread may take to leave its present minibatch.
_LEAVE_SECONDS = 2.0


Run: TypeAlias = Callable[
    [str, Assignment | ScoringAssignment, LeaseKeeper, Callable[[], bool]], None
]


class Agent:
    """One worker process: it joins, takes a learner or a range, and takes the next.

    It outlives its coordinator: whatever that is doing, a worker that was started once joins within
    seconds of its coming up.

    Args:
        worker: what it works with.
        run: carries an assignment out, given the worker's id, the lease that hears of its progress
            and what says that it is worth nothing any more. Default: trains and scores.
        pause: waits so many seconds before something is tried again. Default: until `stop`.
        clock: monotonic seconds, for how long it had nothing to do.
    """

    def __init__(
        self,
        worker: Worker,
        run: Run | None = None,
        *,
        pause: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker = worker
        self._settings, self._client = worker.settings, worker.client
        self._run = run or trains_and_scores(worker)
        self._instance_id = uuid.uuid4().hex
        self._stopping = threading.Event()
        self._pause = pause or self._stopping.wait
        self._learners_left = self._settings.max_learners
        self._clock = clock
        self._idle_since = clock()
        self._complained_of: type[LiptError] | None = None
        self._idle_reason = ""

    def stop(self) -> None:
        """Give back what is in hand and return from `run`; made for signal handlers."""
        self._stopping.set()
        self._client.interrupt()

    @property
    def cut_short(self) -> bool:
        """Whether it was told to stop before all that it was to do was done."""
        return self._stopping.is_set() and self._learners_left != 0

    def run(self) -> None:
        """Work until `stop`, until `max_learners` are done, or no more come for too long."""
        retry(
            self._join_and_work,
            on=(LiptError,),
            unless=(IncompatibleProtocolError,),
            policy=RetryPolicy.every(_RETRY_SECONDS, sleep=self._pause, on_retry=self._complain),
        )
        if self._patience_seconds() <= 0.0:
            logger.info("no learner came for %g s", self._settings.max_idle_seconds)

    def _join_and_work(self) -> None:
        while not self._finished():
            try:
                worker_id = self._register()
                self._complained_of = None
                with logging_about(worker=worker_id):
                    self._work(worker_id)
            except UnknownWorkerError:
                logger.info("the coordinator was restarted; joining again")

    def _complain(self, error: LiptError) -> None:
        # Counted every time, and said once: it may be away for hours, or not let this worker in.
        said = self._complained_of is type(error)
        self._worker.events.record(
            EventKind.RETRIED,
            detail="joining",
            level=logging.DEBUG if said else logging.WARNING,
            reason=f"{error} {self._why_closed(error)}Trying again until "
            f"{self._settings.coordinator} answers.",
        )
        lasting = isinstance(error, UnreachableError | UnauthenticatedError | PermissionDeniedError)
        self._complained_of = type(error) if lasting else None

    def _why_closed(self, error: LiptError) -> str:
        settings = self._settings
        if settings.tls_ca is None:
            return ""
        files = TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_ca)
        why = files.why_closed(str(error))
        return why and f"{why} "

    def _finished(self) -> bool:
        done = self._learners_left == 0 or self._patience_seconds() <= 0.0
        return done or self._stopping.is_set()

    def _patience_seconds(self) -> float:
        if self._settings.max_idle_seconds is None:
            return math.inf
        return self._idle_since + self._settings.max_idle_seconds - self._clock()

    def _register(self) -> str:
        self._worker.metering.phases.enter(Phase.JOINING)
        worker_id = self._client.register(
            self._instance_id,
            name=self._settings.name,
            device=device_name(self._worker.device),
            versions=versions_on(self._worker.device),
            allowed_modules=self._settings.allow_modules,
            has_data=self._settings.worker_data is not None,
        )
        logger.info(
            "joined %s as %s (%s) on %s",
            self._settings.coordinator,
            self._settings.name,
            worker_id,
            device_name(self._worker.device),
        )
        return worker_id

    def _work(self, worker_id: str) -> None:
        while not self._finished():
            self._worker.metering.phases.enter(Phase.WAITING)
            wait_seconds = max(0.0, min(POLL_SECONDS, self._patience_seconds()))
            assignment = self._client.acquire(worker_id, wait_seconds=wait_seconds)
            reason, told = self._client.idle_reason, self._idle_reason
            # At every poll it is the same; what was mended is seen by the learner that comes.
            if reason and reason != told:
                logger.warning("no learner for this worker: it %s.", reason)
            self._idle_reason = reason
            if assignment is not None:
                about: dict[str, object] = {"assignment": assignment.assignment_id}
                if isinstance(assignment, Assignment):
                    about |= {"run": assignment.run_id, "learner": assignment.learner_index}
                with logging_about(**about), attached(assignment.traceparent):
                    self._carry_out(worker_id, assignment)
                self._idle_since = self._clock()

    def _carry_out(self, worker_id: str, assignment: Assignment | ScoringAssignment) -> None:
        # On a thread of its own, so that a signal is answered at once.
        task = assignment.task
        what = (
            f"examples {task.start} to {task.stop - 1}"
            if isinstance(task, ScoringTask)
            else f"density {task.density:.3f}"
        )
        logger.info("%s: %s, %s", assignment, task.model, what)
        ended = threading.Event()
        failure: list[BaseException] = []
        with LeaseKeeper(self._client, worker_id, assignment, self._worker.events) as lease:

            def work() -> None:
                try:
                    self._run(
                        worker_id,
                        assignment,
                        lease,
                        lambda: self._stopping.is_set() or lease.lost.is_set(),
                    )
                # A user's model may call sys.exit(): that is no learner either.
                except BaseException as error:  # noqa: BLE001 - reported below, in the main thread
                    failure.append(error)
                finally:
                    ended.set()

            within = partial(copy_context().run, work)
            thread = threading.Thread(target=within, name=assignment.assignment_id, daemon=True)
            thread.start()
            # In slices: a signal handler runs between them.
            while not ended.wait(0.1) and not self._stopping.is_set():
                pass
            if not ended.is_set():
                self._count(assignment, Outcome.STOPPED)
                self._give_back(worker_id, assignment)
                thread.join(_LEAVE_SECONDS)
                return
        if failure:
            self._explain(worker_id, assignment, failure[0])
            return
        self._count(assignment, Outcome.IN)
        if self._learners_left is not None and isinstance(assignment, Assignment):
            self._learners_left -= 1

    def _count(self, assignment: Leased, outcome: Outcome) -> None:
        counter = LEARNERS if isinstance(assignment, Assignment) else RANGES
        self._worker.metering.meters.add(counter, outcome.value)

    def _give_back(
        self,
        worker_id: str,
        assignment: Leased,
        error: str = "",
        *,
        over_limits: bool = False,
    ) -> None:
        try:
            self._client.release(
                worker_id,
                assignment.assignment_id,
                assignment.epoch,
                error,
                over_limits=over_limits,
            )
            logger.info("gave %s back", assignment)
        except LiptError as refusal:
            logger.warning("giving %s back: %s", assignment, refusal)

    def _explain(self, worker_id: str, assignment: Leased, error: BaseException) -> None:
        match error:
            case LearnerStoppedError():
                self._count(assignment, Outcome.STOPPED)
                if self._stopping.is_set():
                    self._give_back(worker_id, assignment)
            case StaleLeaseError() | UnknownRunError() | UnknownWorkerError():
                self._count(assignment, Outcome.STOPPED)
                logger.warning("%s", error)
            case OverLimitError():
                self._count(assignment, Outcome.DECLINED)
                logger.warning("%s is not for this worker: %s", assignment, error)
                self._give_back(worker_id, assignment, str(error), over_limits=True)
                self._pause(_RETRY_SECONDS)
            case LearnerRejectedError():
                self._count(assignment, Outcome.REFUSED)
                # The coordinator counted the attempt when it refused the result.
                logger.error("%s was refused: %s", assignment, error)
            case _:
                self._count(assignment, Outcome.FAILED)
                if isinstance(error, LiptError):
                    logger.error("%s failed: %s", assignment, error)
                else:
                    logger.error("%s failed", assignment, exc_info=error)
                self._give_back(worker_id, assignment, f"{type(error).__name__}: {error}")
                self._pause(_RETRY_SECONDS)


def trains_and_scores(worker: Worker) -> Run:
    """What carries out the assignments of a worker."""
    scorer = Scorer(worker)

    def run(
        worker_id: str,
        assignment: Assignment | ScoringAssignment,
        lease: LeaseKeeper,
        should_stop: Callable[[], bool],
    ) -> None:
        if isinstance(assignment, ScoringAssignment):
            scorer.run(worker_id, assignment, should_stop)
        else:
            run_learner(worker, worker_id, assignment, lease, should_stop)

    return run
