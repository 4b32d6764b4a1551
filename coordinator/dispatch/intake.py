"""Intake: checks results before they count; a failed check is a failed attempt of the worker."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.config.run_config import PruningMethod
from lipt.common.errors import (
    BlobTooLargeError,
    LearnerRejectedError,
    SignalsError,
    WeightsError,
)
from lipt.common.observability.metrics import Meters
from lipt.common.observability.tracing import span
from lipt.common.signals.passes import read_range
from lipt.common.weights.encodings import open_weights
from lipt.common.weights.files import non_finite, read_container
from lipt.common.weights.specs import TensorSpec
from lipt.coordinator.compute.scan import RangeFolder
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.dispatch.leases import AssignmentKey
from lipt.coordinator.dispatch.scans import RangeGrant, Scans
from lipt.coordinator.instruments import LEARNER_BYTES, LEARNER_TRAIN
from lipt.coordinator.runs.transitions import LearnerResult
from lipt.coordinator.state.records import RunRecord
from lipt.core.learner.pruning import is_pruned_from
from lipt.core.results import frozen_in

# A few steps of training barely change the norm of the weights.
MAX_GROWTH = 100.0
# Weights that are zero without pruning, and buffers that look like weights, shift the density.
MAX_DENSITY_ERROR = 0.05
_STATISTICS = ("running_mean", "running_var")
# Each check takes the memory of two dense models.
_CHECKS_AT_ONCE = 1
# Enough to keep the disk busy, and few enough to let heartbeats through.
_TAKEN_AT_ONCE = 64


@dataclass(frozen=True)
class Reference:
    """Specs of theta*'s trained tensors, their norm, and the number of frozen tensors."""

    specs: dict[str, TensorSpec]
    norm: float
    num_frozen: int


class LearnerIntake:
    """Checks learners' results one at a time, and commits those that pass."""

    def __init__(
        self, dispatcher: Dispatcher, blobs: BlobStore, meters: Meters | None = None
    ) -> None:
        self._dispatcher = dispatcher
        self._meters = meters or Meters()
        self._blobs = blobs
        self._references: dict[BlobName, Reference] = {}
        self._reading = asyncio.Lock()
        self._turns = asyncio.Semaphore(_TAKEN_AT_ONCE)
        self._threads = ThreadPoolExecutor(_CHECKS_AT_ONCE, thread_name_prefix="learner-check")

    def stop(self) -> None:
        """Stop the thread that checks results."""
        self._threads.shutdown()

    async def take(
        self, worker_id: str, key: AssignmentKey, epoch: int, result: LearnerResult
    ) -> None:
        """Check and commit a result; a LearnerRejectedError counts as a failed attempt."""
        run, already = self._dispatcher.check_commit(worker_id, key, epoch, result.blob)
        if already:
            return
        # Until the record names them, they are uploads that may expire.
        sent = (blob.sha256 for blob in (result.blob, *result.snapshots))
        with self._blobs.expiry.holding(*sent):
            async with self._turns:
                await self._take(run, worker_id, key, epoch, result)
        self._measure(run, result)

    async def _take(
        self,
        run: RunRecord,
        worker_id: str,
        key: AssignmentKey,
        epoch: int,
        result: LearnerResult,
    ) -> None:
        try:
            with span("check learner", run_id=key.run_id, assignment_id=str(key)):
                await self._check(run, key.learner, worker_id, result)
        except LearnerRejectedError as error:
            await self._dispatcher.fail(worker_id, key, epoch, str(error))
            raise
        await self._dispatcher.commit(worker_id, key, epoch, result)

    async def reference(self, run: RunRecord) -> Reference:
        """Reference values of the run's theta*, read once."""
        name = run.initial_weights
        if name is None:
            raise ValueError(f"run {run.run_id} has no initial weights yet")
        # Serialized: many workers may commit at once, and one read serves all.
        async with self._reading:
            if name not in self._references:
                self._references[name] = await asyncio.to_thread(self._read_reference, name)
        return self._references[name]

    def _measure(self, run: RunRecord, result: LearnerResult) -> None:
        encoding = run.config.learners.encoding.value
        # Without pruning, the result is its last snapshot, which is sent once.
        sent = sum(blob.size_bytes for blob in {*result.snapshots, result.blob})
        self._meters.observe(LEARNER_TRAIN, result.train_seconds)
        self._meters.add(LEARNER_BYTES, "to_workers", encoding, by=result.bytes_received)
        self._meters.add(LEARNER_BYTES, "from_workers", encoding, by=sent)

    async def _check(
        self, run: RunRecord, index: int, worker_id: str, result: LearnerResult
    ) -> None:
        workers = self._dispatcher.workers
        worker, version = workers.name(worker_id), workers.version(worker_id)
        num_wanted = run.config.learners.num_snapshots
        require_snapshots(len(result.snapshots), num_wanted, worker=worker, version=version)
        require_finite_report(result.loss, result.train_seconds, result.bytes_received)
        theta = await self.reference(run)
        pruned = run.config.pruning.method is not PruningMethod.NONE
        density = run.learners[index].density if pruned else None
        # Snapshots are not pruned.
        parts = [*((name, None) for name in result.snapshots), (result.blob, density)]
        in_thread = partial(asyncio.get_running_loop().run_in_executor, self._threads)
        for name, kept in parts:
            await in_thread(self._check_blob, name, theta, kept)
        if result.snapshots:
            ends = (result.snapshots[-1], result.blob)
            await in_thread(self._check_end, ends, theta, worker, version)

    def _check_blob(self, name: BlobName, theta: Reference, density: float | None) -> None:
        # A damaged blob is removed, and can be uploaded again.
        self._blobs.is_whole(name, remove_damaged=True)
        path = self._blobs.path(name)
        with self._blaming_the_disk_first(name):
            check_learner(
                path,
                theta.specs,
                initial_norm=theta.norm,
                density=density,
                num_frozen=theta.num_frozen,
            )

    def _check_end(
        self, ends: tuple[BlobName, BlobName], theta: Reference, worker: str, version: str
    ) -> None:
        snapshot, result = map(self._blobs.path, ends)
        with self._blaming_the_disk_first(*ends):
            require_end(snapshot, result, theta.specs, worker=worker, version=version)

    @contextlib.contextmanager
    def _blaming_the_disk_first(self, *names: BlobName) -> Iterator[None]:
        """Raise UnknownBlobError instead of a rejection if the disk has damaged a blob."""
        try:
            yield
        except LearnerRejectedError:
            for name in names:
                if not self._blobs.is_whole(name, remove_damaged=True):
                    self._blobs.path(name)
            raise

    def _read_reference(self, name: BlobName) -> Reference:
        # The coordinator's own file: only its size is limited.
        most = self._blobs.max_blob_bytes
        container = read_container(self._blobs.path(name), max_bytes=most, max_tensors=most)
        frozen = frozen_in(container.metadata)
        trained = {name: spec for name, spec in container.specs.items() if name not in frozen}
        norm = trained_norm({name: container.tensor(name) for name in trained})
        return Reference(trained, norm, num_frozen=len(frozen))


class RangeIntake:
    """Checks ranges one at a time, and stores those that pass in the scan's folder."""

    def __init__(self, scans: Scans, blobs: BlobStore, scans_dir: Path) -> None:
        self._scans = scans
        self._blobs = blobs
        self._scans_dir = scans_dir
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="range-check")

    def stop(self) -> None:
        """Stop the thread that checks ranges."""
        self._threads.shutdown()

    async def take(self, worker_id: str, key: AssignmentKey, epoch: int, result: BlobName) -> None:
        """Check and store a range's file, unless the range is done."""
        if self._scans.is_done(key):
            return
        grant = self._scans.require(worker_id, key, epoch)
        in_thread = partial(asyncio.get_running_loop().run_in_executor, self._threads)
        with self._blobs.expiry.holding(result.sha256):
            try:
                await in_thread(self._keep, grant, result)
            except LearnerRejectedError:
                self._scans.give_back(key, worker_id, epoch, failed=True)
                raise
        self._scans.finish(grant)
        # The scan's folder has its own copy now.
        await in_thread(partial(self._blobs.expiry.remove_blob, result.sha256, before=time.time()))

    def _keep(self, grant: RangeGrant, name: BlobName) -> None:
        self._blobs.is_whole(name, remove_damaged=True)
        content = self._blobs.read_bytes(name)
        try:
            read_range(content, grant.task, grant.scan.num_features)
        except (WeightsError, BlobTooLargeError, SignalsError) as error:
            raise LearnerRejectedError(str(error)) from None
        folder = RangeFolder(self._scans_dir, grant.scan.scan_id)
        folder.keep(grant.key.learner, grant.worker_id, content)


def require_snapshots(num_sent: int, num_wanted: int, *, worker: str, version: str) -> None:
    """Refuse a learner whose number of snapshots is not `learners.num_snapshots`."""
    if num_sent != num_wanted:
        raise LearnerRejectedError(
            f"the learner came with {num_sent} snapshots, but learners.num_snapshots is "
            f"{num_wanted}. {_other_version(worker, version)}"
        )


def require_end(
    snapshot: Path, result: Path, like: Mapping[str, TensorSpec], *, worker: str, version: str
) -> None:
    """Refuse a learner whose last snapshot is not its result before pruning."""
    pruned, end = (dict(open_weights(path, like=like)) for path in (result, snapshot))
    if not is_pruned_from(pruned, end):
        raise LearnerRejectedError(
            "the learner's last snapshot is not its result before pruning. "
            f"{_other_version(worker, version)}"
        )


def _other_version(worker: str, version: str) -> str:
    return (
        f"Worker {worker} runs lipt {version or 'of an unknown version'}: install the "
        "coordinator's version there, or start a run with learners.num_snapshots=0."
    )


def check_learner(
    path: Path,
    like: Mapping[str, TensorSpec],
    *,
    initial_norm: float = 0.0,
    density: float | None = None,
    num_frozen: int = 0,
) -> None:
    """Refuse a learner's result or snapshot that does not match its task.

    `like` are theta*'s trained tensors. Norm 0 and density None turn their checks off.
    """
    try:
        weights = dict(open_weights(path, like=like))
    except (WeightsError, BlobTooLargeError) as error:
        frozen = (
            f" The run's learners.frozen leaves {num_frozen} of theta*'s tensors as they are: a "
            f"learner is the other {len(like)} alone."
        )
        raise LearnerRejectedError(f"{error}{frozen if num_frozen else ''}") from None
    if bad := non_finite(weights):
        raise LearnerRejectedError(
            f"{bad}: the learner diverged. Lower learners.learning_rate, or use precision float32."
        )
    _require_norm(trained_norm(weights), initial_norm)
    if density is not None:
        _require_density(weights, density)


def require_finite_report(loss: float, train_seconds: float, bytes_received: int) -> None:
    """Refuse a report with negative or non-finite figures."""
    if not (math.isfinite(loss) and 0.0 <= train_seconds < math.inf and bytes_received >= 0):
        raise LearnerRejectedError(
            f"the learner was reported with loss {loss}, {train_seconds} s of training and "
            f"{bytes_received} bytes received. Report a finite loss, and no negative figures."
        )


def trained_norm(weights: Mapping[str, Tensor]) -> float:
    """The Euclidean norm in float64 of all trained values except batch-norm statistics."""
    return math.hypot(
        *(
            float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
            for name, tensor in weights.items()
            if tensor.is_floating_point() and not name.endswith(_STATISTICS)
        )
    )


def _require_norm(norm: float, initial_norm: float) -> None:
    # A theta* of zeros has no norm to compare with.
    if initial_norm > 0.0 and norm > MAX_GROWTH * initial_norm:
        raise LearnerRejectedError(
            f"the learner's weights have a norm of {norm:.4g}, {norm / initial_norm:.0f} times "
            f"theta*'s {initial_norm:.4g}; at most {MAX_GROWTH:g} times is taken. It diverged, or "
            "is no learner of this run: lower learners.learning_rate, or look at the worker."
        )


def _require_density(weights: Mapping[str, Tensor], density: float) -> None:
    # Tensors that pruning may change: see lipt.core.learner.pruning.
    prunable = [item for item in weights.values() if item.is_floating_point() and item.ndim >= 2]
    total = sum(item.numel() for item in prunable)
    kept = sum(int(torch.count_nonzero(item)) for item in prunable)
    # One weight of slack covers rounding in small models.
    if abs(kept - density * total) > MAX_DENSITY_ERROR * total + 1:
        raise LearnerRejectedError(
            f"the learner keeps {kept / total:.4f} of its weights, its task says {density:.4f}; a "
            f"difference of {MAX_DENSITY_ERROR:g} is taken. Prune it to the density of its "
            "assignment, or start a run with pruning.method=none."
        )
