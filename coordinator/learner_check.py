"""What a committed learner and its snapshots have to be before anything may see them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lipt.common.errors import BlobTooLargeError, LearnerRejectedError, WeightsError
from lipt.common.weights.finite import require_finite
from lipt.common.weights.sparse import decode_sparse
from lipt.common.weights.specs import TensorSpec


def require_snapshots(num_sent: int, num_wanted: int, *, worker: str, version: str) -> None:
    """Refuse a learner that comes without the snapshots that its task asked for.

    Args:
        num_sent: how many came.
        num_wanted: the run's `learners.num_snapshots`.
        worker: who sent it, for the message.
        version: the lipt that it runs; empty where it is not known.

    Raises:
        LearnerRejectedError: too few or too many: a worker of before snapshots sends none.
    """
    if num_sent != num_wanted:
        raise LearnerRejectedError(
            f"the learner came with {num_sent} snapshots, but learners.num_snapshots is "
            f"{num_wanted}. Worker {worker} runs lipt {version or 'of an unknown version'}: "
            "install the coordinator's version there, or start a run with "
            "learners.num_snapshots=0."
        )


def check_learner(path: Path, like: Mapping[str, TensorSpec]) -> None:
    """Read a learner's file and refuse it unless it is the model's, and finite.

    Args:
        path: a sparse safetensors file, a result's or a snapshot's, its digest already
            verified.
        like: the tensors of theta*.

    Raises:
        LearnerRejectedError: not such a file; other names, shapes or dtypes; or
            values that are not finite.
    """
    try:
        require_finite(decode_sparse(path, like=like))
    except (WeightsError, BlobTooLargeError) as error:
        raise LearnerRejectedError(str(error)) from None
