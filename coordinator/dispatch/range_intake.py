"""Range intake: a range is read and checked, and lies in its scan's folder before it counts."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.errors import (
    BlobTooLargeError,
    LearnerRejectedError,
    SignalsError,
    WeightsError,
)
from lipt.common.signals.passes import read_range
from lipt.coordinator.compute.scan import RangeFolder
from lipt.coordinator.dispatch.assignment import AssignmentKey
from lipt.coordinator.dispatch.scans import RangeGrant, Scans


class RangeIntake(AbstractContextManager["RangeIntake"]):
    """Checks results one after another, and keeps what passes where the job finds it."""

    def __init__(self, scans: Scans, blobs: BlobStore, scans_dir: Path) -> None:
        """Take the ranges of `scans`.

        Args:
            scans: those that are open.
            blobs: where results arrive.
            scans_dir: where they are kept.
        """
        self._scans = scans
        self._blobs = blobs
        self._scans_dir = scans_dir
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="range-check")

    def __exit__(self, *error: object) -> None:
        """End the thread that checks results."""
        self._threads.shutdown()

    async def take(self, worker_id: str, key: AssignmentKey, epoch: int, result: BlobName) -> None:
        """Take a range's file; one that is done already is not done again.

        Raises:
            StaleLeaseError: the lease is over, or what it was for has ended.
            UnknownBlobError: the file is not stored, or the disk has changed it since.
            LearnerRejectedError: it is not what the task asked for.
        """
        if self._scans.is_done(key):
            return
        grant = self._scans.require(worker_id, key, epoch)
        in_thread = partial(asyncio.get_running_loop().run_in_executor, self._threads)
        with self._blobs.expiry.holding(result.sha256):
            try:
                await in_thread(self._keep, grant, result)
            except LearnerRejectedError:
                self._scans.give_back(grant, failed=True)
                raise
        self._scans.finish(grant)
        # It lies in the scan's folder now.
        await in_thread(partial(self._blobs.expiry.remove_blob, result.sha256, before=time.time()))

    def _keep(self, grant: RangeGrant, name: BlobName) -> None:
        if not self._blobs.take_arrival(name):
            self._blobs.keep_if_whole(name)
        content = self._blobs.read_bytes(name)
        try:
            read_range(content, grant.task, grant.scan.num_features)
        except (WeightsError, BlobTooLargeError, SignalsError) as error:
            raise LearnerRejectedError(str(error)) from None
        folder = RangeFolder(self._scans_dir, grant.scan.scan_id)
        folder.keep(grant.lease.index, grant.lease.worker_id, content)
