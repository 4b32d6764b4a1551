"""What a committed learner has to be before the soup may see it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lipt.common.errors import BlobTooLargeError, LearnerRejectedError, WeightsError
from lipt.common.weights.finite import require_finite
from lipt.common.weights.sparse import decode_sparse
from lipt.common.weights.specs import TensorSpec


def check_learner(path: Path, like: Mapping[str, TensorSpec]) -> None:
    """Read a learner's file and refuse it unless it is the model's, and finite.

    Args:
        path: a sparse safetensors file, its digest already verified.
        like: the tensors of theta*.

    Raises:
        LearnerRejectedError: not such a file; other names, shapes or dtypes; or
            values that are not finite.
    """
    try:
        require_finite(decode_sparse(path, like=like))
    except (WeightsError, BlobTooLargeError) as error:
        raise LearnerRejectedError(str(error)) from None
