"""Intake: checks results before they count; a failed check is a failed attempt of the worker."""

from __future__ import annotations

import asyncio
import hmac
import math
import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.config.run_config import PruningMethod
from lipt.common.errors import BlobTooLargeError, LearnerRejectedError, SignalsError, WeightsError
from lipt.common.observability.metrics import Meters
from lipt.common.observability.tracing import span
from lipt.common.tensor_files import TensorSpec, Weights, quoted, read_container, unusable
from lipt.coordinator.compute.scan import RangeFolder
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.dispatch.leases import LearnerLease, RangeGrant, RangeLease
from lipt.coordinator.instruments import LEARNER_BYTES, LEARNER_TRAIN
from lipt.coordinator.state.records import FailureReason, LearnerFailure, LearnerResult, RunRecord
from lipt.core.passes import read_range
from lipt.core.pretraining.pruning import is_pruned_from
from lipt.core.pretraining.results import frozen_names_of
from lipt.models.encodings import open_weights

# A few steps of training barely change the norm of the weights.
MAX_GROWTH = 100.0
# Weights that are zero without pruning, and buffers that look like weights, shift the density.
MAX_DENSITY_ERROR = 0.05
_MOST_REFERENCES = 16
_REMEDY = (
    "Install the coordinator's lipt on its worker, or start a run with learners.num_snapshots=0."
)
_DIGEST = re.compile("[0-9a-f]{64}")
# Of a source that a worker holds.
_MOST_EXAMPLES = 2**40
_STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True)
class Reference:
    """Specs of theta*'s trained tensors, their norm, and the number of frozen tensors.

    counts: its tensors of whole numbers. num_seen: examples that a learner trains on, with
    repetitions; no count grows by more.
    """

    specs: Mapping[str, TensorSpec]
    norm: float = 0.0
    num_frozen: int = 0
    counts: Mapping[str, Tensor] = field(default_factory=dict)
    num_seen: int = 0

    @classmethod
    def read(cls, blobs: BlobStore, name: BlobName, num_seen: int) -> Self:
        # The coordinator's own file: only its size is limited.
        most = blobs.max_blob_bytes
        container = read_container(blobs.path(name), max_bytes=most, max_tensors=most)
        frozen = frozen_names_of(container.metadata)
        trained = {name: spec for name, spec in container.specs.items() if name not in frozen}
        norm = trained_norm({name: container.tensor(name) for name in trained})
        if not norm:
            # Adapters start at zero, so what they are added to is the measure.
            norm = trained_norm({name: container.tensor(name) for name in frozen})
        counts = {
            name: container.tensor(name)
            for name, spec in trained.items()
            if not spec.dtype.is_floating_point
        }
        return cls(trained, norm, len(frozen), counts, num_seen)


@dataclass(eq=False)
class Intake:
    """Checks one learner and one range at a time, since a check takes two dense models' memory."""

    dispatcher: Dispatcher
    blobs: BlobStore
    scans_dir: Path
    meters: Meters = field(default_factory=Meters)

    def __post_init__(self) -> None:
        self._reference = lru_cache(_MOST_REFERENCES)(partial(Reference.read, self.blobs))
        self._learner_thread = ThreadPoolExecutor(1, thread_name_prefix="learner-check")
        self._range_thread = ThreadPoolExecutor(1, thread_name_prefix="range-check")
        self._range_lock = asyncio.Lock()

    def stop(self) -> None:
        self._learner_thread.shutdown()
        self._range_thread.shutdown()

    async def take_learner(self, lease: LearnerLease, result: LearnerResult) -> None:
        """Check and commit a result; a LearnerRejectedError counts as a failed attempt."""
        key = lease.key
        run, already = self.dispatcher.check_commit(lease, result.blob)
        if already:
            return
        check = partial(self._check_learner, run, key.learner, result)
        loop = asyncio.get_running_loop()
        # Until the record names them, they are uploads that may expire.
        sent = {*result.snapshots, result.blob}
        with self.blobs.expiry.holding(*(blob.sha256 for blob in sent)):
            try:
                with span("check learner", run_id=key.run_id, assignment_id=str(key)):
                    await loop.run_in_executor(self._learner_thread, check)
            except LearnerRejectedError as error:
                rejected = LearnerFailure(reason=FailureReason.REJECTED, detail=str(error))
                await self.dispatcher.fail(lease, rejected)
                raise
            await self.dispatcher.commit(lease, result)
        encoding = run.config.learners.encoding.value
        self.meters.observe(LEARNER_TRAIN, result.train_seconds)
        self.meters.add(LEARNER_BYTES, "to_workers", encoding, by=result.bytes_received)
        # Without pruning, the result is its last snapshot, which is sent once.
        num_sent = sum(blob.size_bytes for blob in sent)
        self.meters.add(LEARNER_BYTES, "from_workers", encoding, by=num_sent)

    async def take_range(self, lease: RangeLease, result: BlobName, proof: str) -> None:
        scans = self.dispatcher.scans
        in_thread = partial(asyncio.get_running_loop().run_in_executor, self._range_thread)
        # One at a time: of two commits of a range, the second finds it done.
        async with self._range_lock:
            if scans.is_done(lease.key):
                return
            grant = scans.require(lease)
            credential = self.dispatcher.workers.scorer(lease.worker_id)
            with self.blobs.expiry.holding(result.sha256):
                try:
                    self._require_proof(grant, credential, proof)
                    await in_thread(self._keep_range, grant, credential, result)
                except LearnerRejectedError:
                    scans.give_back(lease, failed=True)
                    raise
            scans.finish(grant)
        # The scan's folder has its own copy now.
        await in_thread(partial(self.blobs.expiry.remove_blob, result.sha256, before=time.time()))

    def _require_proof(self, grant: RangeGrant, credential: str, proof: str) -> None:
        if hmac.compare_digest(proof.encode(), grant.challenge.proof.encode()):
            return
        self.dispatcher.scans.distrust(credential)
        raise LearnerRejectedError(
            f"the proof that the worker has the data is wrong, and {credential} gets no "
            "more ranges. Give its workers the coordinator's data (--worker-data), or none."
        )

    def _check_learner(self, run: RunRecord, index: int, result: LearnerResult) -> None:
        require_report(result, run.config.learners.num_snapshots)
        require_same_source(result, run, index)
        learners, (_, initial) = run.config.learners, run.theta
        # SNIP reads one more minibatch.
        num_batches = learners.num_steps * learners.num_minibatches + 1
        theta = self._reference(initial, num_batches * learners.batch_size)
        pruned = run.config.pruning.method is not PruningMethod.NONE
        density = run.learners[index].density if pruned else None
        # Snapshots are not pruned.
        for name, kept in (*((name, None) for name in result.snapshots), (result.blob, density)):
            # A damaged blob is removed, and can be uploaded again.
            self.blobs.is_whole(name, remove_damaged=True)
            check_learner(self.blobs.path(name), theta, density=kept)
        if result.snapshots:
            ends = map(self.blobs.path, (result.blob, result.snapshots[-1]))
            pruned_end, end = (dict(open_weights(path, like=theta.specs)) for path in ends)
            if not is_pruned_from(pruned_end, end):
                raise LearnerRejectedError(
                    f"the learner's last snapshot is not its result before pruning. {_REMEDY}"
                )

    def _keep_range(self, grant: RangeGrant, credential: str, name: BlobName) -> None:
        self.blobs.is_whole(name, remove_damaged=True)
        content = self.blobs.read_bytes(name)
        try:
            read_range(content, grant.task, grant.scan.num_features)
        except (WeightsError, BlobTooLargeError, SignalsError) as error:
            raise LearnerRejectedError(str(error)) from None
        folder = RangeFolder(self.scans_dir, grant.scan.scan_id)
        folder.keep(grant.lease.key.number, credential, content)


def require_report(result: LearnerResult, num_snapshots: int) -> None:
    if len(result.snapshots) != num_snapshots:
        raise LearnerRejectedError(
            f"the learner came with {len(result.snapshots)} snapshots, but learners.num_snapshots "
            f"is {num_snapshots}. {_REMEDY}"
        )
    loss, seconds, received = result.loss, result.train_seconds, result.bytes_received
    if not (math.isfinite(loss) and 0.0 <= seconds < math.inf and received >= 0):
        raise LearnerRejectedError(
            f"the learner was reported with loss {loss}, {seconds} s of training and {received} "
            "bytes received. Report a finite loss, and no negative figures."
        )


def require_same_source(result: LearnerResult, run: RunRecord, index: int) -> None:
    """Refuse a learner of data that a worker holds, unless all of that source are of the same."""
    source = run.learners[index].own_source
    if not source:
        return
    if not _DIGEST.fullmatch(result.fingerprint) or not 1 <= result.num_examples <= _MOST_EXAMPLES:
        raise LearnerRejectedError(
            f"the learner of the source {source} came with {result.num_examples} examples and the "
            f"fingerprint {result.fingerprint!r:.80}. Report those of the worker's data."
        )
    for learner in run.learners:
        earlier = learner.result
        if earlier is None or learner.own_source != source or learner.index == index:
            continue
        if (earlier.fingerprint, earlier.num_examples) != (result.fingerprint, result.num_examples):
            raise LearnerRejectedError(
                f"the source {source} had {earlier.num_examples} examples with the fingerprint "
                f"{earlier.fingerprint} for learner {learner.index}, and has "
                f"{result.num_examples} with {result.fingerprint} now. Give its workers the same "
                "data."
            )


def check_learner(path: Path, theta: Reference, *, density: float | None = None) -> None:
    """Refuse a file that does not match its task; norm 0 and density None are not compared."""
    try:
        weights = dict(open_weights(path, like=theta.specs))
    except (WeightsError, BlobTooLargeError) as error:
        frozen = (
            f" The run's learners.frozen leaves {theta.num_frozen} of theta*'s tensors as they "
            f"are: a learner is the other {len(theta.specs)} alone."
        )
        raise LearnerRejectedError(f"{error}{frozen if theta.num_frozen else ''}") from None
    if bad := unusable(weights):
        raise LearnerRejectedError(
            f"{bad}: the learner diverged, or is no learner of this run. Lower "
            "learners.learning_rate, use precision float32, or look at the worker."
        )
    _require_counts(weights, theta)
    norm = trained_norm(weights)
    # A theta* of zeros has no norm to compare with.
    if theta.norm > 0.0 and norm > MAX_GROWTH * theta.norm:
        raise LearnerRejectedError(
            f"the learner's weights have a norm of {norm:.4g}, {norm / theta.norm:.0f} times "
            f"theta*'s {theta.norm:.4g}; at most {MAX_GROWTH:g} times is taken. It diverged, or "
            "is no learner of this run: lower learners.learning_rate, or look at the worker."
        )
    if density is not None:
        _require_density(weights, density)


def _require_counts(weights: Weights, theta: Reference) -> None:
    for name, before in theta.counts.items():
        # In float64 no difference overflows.
        grown = (weights[name].double() - before.double()).abs()
        if grown.numel() and float(grown.max()) > theta.num_seen:
            raise LearnerRejectedError(
                f"{quoted(name)} differs from theta*'s by {float(grown.max()):.4g}, and a learner "
                f"sees {theta.num_seen} examples: it is no learner of this run. Look at the worker."
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


def _require_density(weights: Mapping[str, Tensor], density: float) -> None:
    # Tensors that pruning may change: see lipt.core.pretraining.pruning.
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
