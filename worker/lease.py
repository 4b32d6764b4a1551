"""Lease keeper: sends the heartbeats of a learner that another thread trains.

Training never waits for the network, and a lease that is lost ends the training.
"""

from __future__ import annotations

import logging
import threading
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Self

from lipt.common.errors import LiptError, StaleLeaseError, UnknownRunError
from lipt.common.observability.logs import EventKind, Events
from lipt.v1 import worker_pb2
from lipt.worker.client import CoordinatorClient, Leased

logger = logging.getLogger(__name__)


class LeaseKeeper:
    """Sends heartbeats until it is left; `lost` says that the learner is worth nothing now."""

    def __init__(
        self, client: CoordinatorClient, worker_id: str, assignment: Leased, events: Events
    ) -> None:
        self.lost = threading.Event()
        self._client = client
        self._worker_id = worker_id
        self._assignment = assignment
        self._events = events
        self._progress = worker_pb2.LearnerProgress(
            phase=worker_pb2.LEARNER_PHASE_FETCHING, num_steps=assignment.num_steps
        )
        self._left = threading.Event()
        self._news = threading.Event()
        # What it logs belongs to the same run as what its maker does.
        keep = partial(copy_context().run, self._keep)
        self._thread = threading.Thread(target=keep, name="lease", daemon=True)

    def report(self, phase: worker_pb2.LearnerPhase, step: int = 0, loss: float = 0.0) -> None:
        """Say how far the learner is; it goes out with the next heartbeat, which is now."""
        self._progress = worker_pb2.LearnerProgress(
            phase=phase, step=step, num_steps=self._progress.num_steps, loss=loss
        )
        self._news.set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._left.set()
        self._news.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._left.is_set() and not self.lost.is_set():
            self._news.clear()
            try:
                if self._client.heartbeat(self._worker_id, self._assignment, self._progress):
                    logger.info("%s is no longer needed", self._assignment.assignment_id)
                    self.lost.set()
            except (StaleLeaseError, UnknownRunError) as error:
                logger.warning("%s", error)
                self.lost.set()
            except LiptError as error:
                # The coordinator may be restarting: the lease may well outlive that.
                self._events.record(
                    EventKind.RETRIED,
                    detail="heartbeat",
                    level=logging.WARNING,
                    assignment=self._assignment.assignment_id,
                    reason=str(error),
                )
                pause = min(1.0, self._assignment.heartbeat_seconds)
                self._left.wait(max(pause, error.retry_after_seconds or 0.0))
            self._news.wait(self._assignment.heartbeat_seconds)
