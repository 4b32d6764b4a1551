"""Subset digest: the same at the coordinator and at the trainer.

SHA-256 of all indices as little-endian int64, ascending, followed by their
weights as little-endian float32: 12 bytes per example, nothing between.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from lipt.common.errors import InvalidRequestError

# Indices that are looked at together: what is looked at takes little beside the whole.
_BLOCK = 2**20


def subset_digest(indices: npt.ArrayLike, weights: npt.ArrayLike) -> str:
    """Lower-case hexadecimal digest of a subset.

    Args:
        indices: K integers, ascending and distinct; an array, a tensor or a sequence.
        weights: K numbers, one per index; taken as float32.

    Raises:
        InvalidRequestError: the lengths differ, or the indices are not ascending.
    """
    indices_K = _as(indices, "<i8")
    weights_K = _as(weights, "<f4")
    if indices_K.ndim != 1 or indices_K.shape != weights_K.shape:
        raise InvalidRequestError(
            f"indices of shape {list(indices_K.shape)} and weights of shape "
            f"{list(weights_K.shape)} are not one subset. Give one weight per index."
        )
    position = first_fall(indices_K)
    if position is not None:
        raise InvalidRequestError(
            f"index {indices_K[position]} follows {indices_K[position - 1]} at position "
            f"{position}. Sort a subset's indices, each one once."
        )
    digest = hashlib.sha256(indices_K.data)
    digest.update(weights_K.data)
    return digest.hexdigest()


def first_fall(indices_K: npt.NDArray[np.int64]) -> int | None:
    """The position of the first index that is not above the one before it; None without one."""
    for start in range(0, len(indices_K), _BLOCK):
        block = indices_K[start : start + _BLOCK + 1]
        falls = np.flatnonzero(block[1:] <= block[:-1])
        if falls.size:
            return start + int(falls[0]) + 1
    return None


def _as(column: npt.ArrayLike, dtype: str) -> npt.NDArray[Any]:
    # Contiguous, so that it is hashed where it lies; a copy only where it is not.
    converted = np.asarray(column).astype(dtype, casting="same_kind", copy=False)
    return np.ascontiguousarray(converted) if converted.ndim else converted
