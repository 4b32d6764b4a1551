"""Subset digest: the same at the coordinator and at the trainer.

SHA-256 of all indices as little-endian int64, ascending, followed by their
weights as little-endian float32: 12 bytes per example, nothing between.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from lipt.common.errors import InvalidRequestError


def subset_digest(indices: npt.ArrayLike, weights: npt.ArrayLike) -> str:
    """Lower-case hexadecimal digest of a subset.

    Args:
        indices: K integers, ascending and distinct; an array, a tensor or a sequence.
        weights: K numbers, one per index; taken as float32.

    Raises:
        InvalidRequestError: the lengths differ, or the indices are not ascending.
    """
    indices_K = np.asarray(indices).astype("<i8", casting="same_kind")
    weights_K = np.asarray(weights).astype("<f4", casting="same_kind")
    if indices_K.ndim != 1 or indices_K.shape != weights_K.shape:
        raise InvalidRequestError(
            f"indices of shape {list(indices_K.shape)} and weights of shape "
            f"{list(weights_K.shape)} are not one subset. Give one weight per index."
        )
    falls = np.flatnonzero(np.diff(indices_K) <= 0)
    if falls.size:
        position = int(falls[0])
        raise InvalidRequestError(
            f"index {indices_K[position + 1]} follows {indices_K[position]} at position "
            f"{position + 1}. Sort a subset's indices, each one once."
        )
    return hashlib.sha256(indices_K.tobytes() + weights_K.tobytes()).hexdigest()
