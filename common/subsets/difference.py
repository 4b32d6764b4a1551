"""Subset difference: what makes one subset of another, where that is less to send.

It holds the indices that go, and those that come or change, with their new weights; all else
stays. The receiver applies it to the subset that it has and checks the result's digest, so that a
difference can be refused but never give another subset.

Sizes are those of the contract's messages: a packed varint per index, 4 bytes per weight.

Shapes: K examples of a subset, R removed, S set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lipt.common.errors import SubsetError

_WEIGHT_BYTES = 4


@dataclass(frozen=True)
class Examples:
    """Indices, int64, ascending and distinct, and their weights, float32."""

    indices_K: NDArray[np.int64]
    weights_K: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.indices_K)


@dataclass(frozen=True)
class Difference:
    """What makes one subset of another.

    removed_R: indices, ascending, that only the old one has.
    changed: the new one's examples that the old one has not, or not with this weight.
    """

    removed_R: NDArray[np.int64]
    changed: Examples


def find_difference(old: Examples, new: Examples) -> Difference:
    """What `apply_difference` needs to make `new` of `old`."""
    removed_K = ~np.isin(old.indices_K, new.indices_K, assume_unique=True)
    shared_K = np.isin(new.indices_K, old.indices_K, assume_unique=True)
    # Bits, not values: 0.0 and -0.0 have different digests.
    before = old.weights_K[~removed_K].view(np.int32)
    changed_K = ~shared_K
    changed_K[shared_K] = new.weights_K[shared_K].view(np.int32) != before
    return Difference(
        removed_R=old.indices_K[removed_K],
        changed=Examples(new.indices_K[changed_K], new.weights_K[changed_K]),
    )


def apply_difference(old: Examples, difference: Difference) -> Examples:
    """The subset that a difference makes of `old`.

    Raises:
        SubsetError: indices that are not ascending or not there, or not one weight for each;
            the difference is to another subset, or damaged.
    """
    removed_R, changed = difference.removed_R, difference.changed
    if changed.indices_K.shape != changed.weights_K.shape:
        _refuse(f"it has {len(changed.indices_K)} indices and {len(changed.weights_K)} weights")
    for name, indices in (("removes", removed_R), ("sets", changed.indices_K)):
        if np.any(indices[1:] <= indices[:-1]):
            _refuse(f"the indices that it {name} are not ascending, each once")
    absent_R = ~np.isin(removed_R, old.indices_K)
    if absent_R.any():
        _refuse(f"it removes index {removed_R[absent_R][0]}, which is not there")
    both_R = np.isin(removed_R, changed.indices_K)
    if both_R.any():
        _refuse(f"it removes and sets index {removed_R[both_R][0]}")
    gone = np.concatenate([removed_R, changed.indices_K])
    stays_K = ~np.isin(old.indices_K, gone)
    indices = np.concatenate([old.indices_K[stays_K], changed.indices_K])
    weights = np.concatenate([old.weights_K[stays_K], changed.weights_K])
    order = np.argsort(indices, kind="stable")
    return Examples(indices[order], weights[order])


def examples_bytes(examples: Examples) -> int:
    """What examples take on the wire, without the few bytes around each message."""
    return _varint_bytes(examples.indices_K) + _WEIGHT_BYTES * len(examples)


def difference_bytes(difference: Difference) -> int:
    """What a difference takes on the wire, counted as `examples_bytes` counts."""
    return _varint_bytes(difference.removed_R) + examples_bytes(difference.changed)


def _varint_bytes(indices: NDArray[np.int64]) -> int:
    """7 bits to the byte: one byte, and one more for each power of 128 that is reached."""
    powers = 128 ** np.arange(1, 9, dtype=np.int64)
    longer = len(indices) - np.searchsorted(indices, powers)
    return len(indices) + int(longer.sum())


def _refuse(reason: str) -> None:
    raise SubsetError(
        f"the difference to the previous subset does not fit: {reason}. Ask again without "
        "`previous`, for the whole subset."
    )
