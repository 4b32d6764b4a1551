"""Learner check: what a result and its snapshots must be before anything else reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from lipt.common.errors import BlobTooLargeError, LearnerRejectedError, WeightsError
from lipt.common.weights.encodings import open_weights
from lipt.common.weights.files import non_finite
from lipt.common.weights.specs import TensorSpec
from lipt.core.learner.pruning import is_pruned_from

# A few steps of training leave the length of the weights about where it was.
MAX_GROWTH = 100.0
# Weights that are zero without pruning, and buffers that look like weights, move the share.
MAX_DENSITY_ERROR = 0.05
_STATISTICS = ("running_mean", "running_var")


def require_snapshots(num_sent: int, num_wanted: int, *, worker: str, version: str) -> None:
    """Refuse a learner with another number of snapshots than `learners.num_snapshots`."""
    if num_sent != num_wanted:
        raise LearnerRejectedError(
            f"the learner came with {num_sent} snapshots, but learners.num_snapshots is "
            f"{num_wanted}. Worker {worker} runs lipt {version or 'of an unknown version'}: "
            "install the coordinator's version there, or start a run with "
            "learners.num_snapshots=0."
        )


def require_end(
    snapshot: Path, result: Path, like: Mapping[str, TensorSpec], *, worker: str, version: str
) -> None:
    """Refuse a learner whose last snapshot is not its result before pruning.

    Both files have passed `check_learner`; `like` are the trained tensors of theta*.
    """
    pruned, end = (dict(open_weights(path, like=like)) for path in (result, snapshot))
    if not is_pruned_from(pruned, end):
        raise LearnerRejectedError(
            "the learner's last snapshot is not its result before pruning. Worker "
            f"{worker} runs lipt {version or 'of an unknown version'}: install the coordinator's "
            "version there, or start a run with learners.num_snapshots=0."
        )


def check_learner(
    path: Path,
    like: Mapping[str, TensorSpec],
    *,
    initial_norm: float = 0.0,
    density: float | None = None,
    num_frozen: int = 0,
) -> None:
    """Refuse a learner's file, of a result or a snapshot, that cannot be of its task.

    Args:
        path: a sparse safetensors file of verified digest.
        like: the trained tensors of theta*.
        initial_norm: their `trained_norm` in theta*; 0 compares with nothing.
        density: of the task; None for what is not pruned.
        num_frozen: number of tensors of theta* that the task does not train.
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
    """Refuse a report with figures that are not finite, or negative."""
    if not (math.isfinite(loss) and 0.0 <= train_seconds < math.inf and bytes_received >= 0):
        raise LearnerRejectedError(
            f"the learner was reported with loss {loss}, {train_seconds} s of training and "
            f"{bytes_received} bytes received. Report a finite loss, and no negative figures."
        )


def trained_norm(weights: Mapping[str, Tensor]) -> float:
    """The Euclidean norm of all trained values as one vector, in float64.

    Without batch-norm statistics, which follow the activations and are estimated anew by the soup.
    """
    return math.hypot(
        *(
            float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
            for name, tensor in weights.items()
            if tensor.is_floating_point() and not name.endswith(_STATISTICS)
        )
    )


def _require_norm(norm: float, initial_norm: float) -> None:
    # A theta* of zeros has no length to compare with.
    if initial_norm > 0.0 and norm > MAX_GROWTH * initial_norm:
        raise LearnerRejectedError(
            f"the learner's weights have a norm of {norm:.4g}, {norm / initial_norm:.0f} times "
            f"theta*'s {initial_norm:.4g}; at most {MAX_GROWTH:g} times is taken. It diverged, or "
            "is no learner of this run: lower learners.learning_rate, or look at the worker."
        )


def _require_density(weights: Mapping[str, Tensor], density: float) -> None:
    # What pruning may touch: see lipt.core.learner.pruning.
    prunable = [item for item in weights.values() if item.is_floating_point() and item.ndim >= 2]
    total = sum(item.numel() for item in prunable)
    kept = sum(int(torch.count_nonzero(item)) for item in prunable)
    # One weight more or less is rounding, where there are few of them.
    if abs(kept - density * total) > MAX_DENSITY_ERROR * total + 1:
        raise LearnerRejectedError(
            f"the learner keeps {kept / total:.4f} of its weights, its task says {density:.4f}; a "
            f"difference of {MAX_DENSITY_ERROR:g} is taken. Prune it to the density of its "
            "assignment, or start a run with pruning.method=none."
        )
