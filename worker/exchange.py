"""Exchange: the files and the heartbeats of one assignment, for as long as its lease may hold.

What is computed is worth waiting for: while the coordinator is away, handing it in is tried
again. Heartbeats go out in a thread of their own: training never waits for the network, and a
lease that is lost ends the training.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from pathlib import Path
from time import sleep
from types import TracebackType
from typing import Self, TypeVar

from lipt.common.backoff import RetryPolicy, retry
from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.blobs.transfer import Transfers
from lipt.common.errors import (
    LearnerStoppedError,
    LiptError,
    StaleLeaseError,
    StateError,
    TooManyCallsError,
    UnavailableError,
    UnknownBlobError,
    UnknownRunError,
    UnreachableError,
)
from lipt.common.observability.logs import EventKind, Events
from lipt.common.observability.tracing import span
from lipt.v1 import worker_pb2
from lipt.worker.client import CoordinatorClient, Leased
from lipt.worker.instruments import BLOB_BYTES, Metering

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

_RETRY_SECONDS = 1.0
_AWAY = (UnreachableError, TooManyCallsError)


class Exchange:
    """The blobs of one assignment, there and back."""

    def __init__(
        self,
        client: CoordinatorClient,
        cache: BlobStore,
        should_stop: Callable[[], bool],
        *,
        cache_bytes: int,
        events: Events,
        metering: Metering,
        pause: Callable[[float], object] = sleep,
    ) -> None:
        """Begin with nothing fetched.

        Args:
            client: the coordinator's calls.
            cache: where weights are kept for the next assignments.
            should_stop: says that the assignment is worth nothing any more.
            cache_bytes: what the cache may hold besides the weights in use.
            events: where retries are counted.
            metering: where bytes are noted.
            pause: waits so many seconds before something is tried again.
        """
        self._cache = cache
        self._cache_bytes = cache_bytes
        self._should_stop = should_stop
        self._events = events
        self._meters = metering.meters
        policy = RetryPolicy(
            sleep=pause,
            on_retry=lambda error: self._retried("transfer", f"{error} Going on where it was."),
        )
        self._downloads, self._uploads = (
            Transfers(client.blobs, policy=policy, on_bytes=self._counting(direction))
            for direction in ("received", "sent")
        )
        self._waits = RetryPolicy.every(
            _RETRY_SECONDS,
            sleep=pause,
            on_retry=lambda error: self._retried("handing over", f"{error} Trying again."),
        )
        # Without what the cache had.
        self.bytes_received = 0

    @property
    def max_blob_bytes(self) -> int:
        """The largest file that is fetched."""
        return self._cache.max_blob_bytes

    def weights(self, name: BlobName) -> Path | bytes:
        """A file of weights, from the cache where it is there."""
        try:
            return self._cached(name)
        except StateError as error:
            # A full disk here is no reason to refuse work that has room in memory.
            self._retried("caching", f"{error} Doing without.")
            return self.downloaded(name)

    def downloaded(self, name: BlobName) -> bytes:
        """A blob's content."""
        content: bytes = self._insist(
            lambda: self._downloads.download_bytes(name, max_bytes=self._cache.max_blob_bytes)
        )
        self.bytes_received += len(content)
        return content

    def upload(self, content: bytes) -> BlobName:
        """Store a content at the coordinator, however long that is in any trouble."""
        with span("upload", bytes=len(content)):
            return self._insist(
                lambda: self._uploads.upload(content), waits_for=(UnavailableError,)
            )

    def hand_in(self, send: Callable[[], Callable[[], None]]) -> None:
        """Upload, and commit what was uploaded; twice where the disk there has changed it.

        Args:
            send: uploads; what it returns commits.
        """
        try:
            self._commit(send())
        except UnknownBlobError as error:
            # It was there already, or so it seemed: the disk had changed it.
            self._retried("handing over", f"{error} Sending it again.")
            self._commit(send())

    def _commit(self, commit: Callable[[], None]) -> None:
        with span("commit"):
            self._insist(commit, waits_for=(UnavailableError,))

    def _cached(self, name: BlobName) -> Path:
        # It may lie here since long ago.
        if not self._cache.keep_if_whole(name):
            self._insist(lambda: self._downloads.download(name, self._cache))
            self.bytes_received += name.size_bytes
        self._cache.trim(self._cache_bytes, keep=name)
        return self._cache.path(name)

    def _insist(
        self,
        action: Callable[[], ResultT],
        waits_for: tuple[type[UnavailableError], ...] = _AWAY,
    ) -> ResultT:
        """Repeat an action while the coordinator is away and the lease may still hold.

        What is computed is worth waiting for a coordinator in any trouble. What is fetched
        can meet a full disk, too, but that is this worker's own.
        """

        def attempt() -> ResultT:
            if self._should_stop():
                raise LearnerStoppedError("stopped before the assignment was handed in.")
            return action()

        return retry(attempt, on=waits_for, policy=self._waits)

    def _counting(self, direction: str) -> Callable[[int], None]:
        return lambda num_bytes: self._meters.add(BLOB_BYTES, direction, by=num_bytes)

    def _retried(self, what: str, reason: str) -> None:
        self._events.record(EventKind.RETRIED, detail=what, level=logging.WARNING, reason=reason)


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
