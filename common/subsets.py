"""Subsets: digests and files of chosen examples.

Digest: SHA-256 of all indices as little-endian int64, ascending, then their weights as
little-endian float32, then any soft labels as little-endian float16, row by row. It does not depend
on storage or transfer.

File: the columns as byte planes in a gzip stream; `Subset.file` in proto/lipt/v1/subset.proto has
the format with an example. High bytes of differences are nearly equal: a random tenth takes 5 bits
an index.

Shapes: K examples of a subset, L of another, N of the data, C classes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from lipt.common.errors import InvalidRequestError, SubsetError

_EXAMPLE_BYTES = 12
_SOFT_BYTES = 2
# DEFLATE expands at most 1,032 times.
_MOST_EXPANSION = 1040
_OVERHEAD_BYTES = 4096


@dataclass(frozen=True)
class Examples:
    """Indices, int64, ascending and distinct; weights, float32; and optional soft labels."""

    indices_K: NDArray[np.int64]
    weights_K: NDArray[np.float32]
    soft_labels_KC: NDArray[np.float16] | None = None

    def __len__(self) -> int:
        return len(self.indices_K)

    @property
    def num_classes(self) -> int:
        """The classes of the soft labels; 0 without."""
        return 0 if self.soft_labels_KC is None else self.soft_labels_KC.shape[1]

    @property
    def digest(self) -> str:
        return subset_digest(self.indices_K, self.weights_K, self.soft_labels_KC)


def subset_digest(
    indices: npt.ArrayLike, weights: npt.ArrayLike, soft_labels: npt.ArrayLike | None = None
) -> str:
    """Lower-case hexadecimal digest of a subset; `soft_labels` are K x C."""
    indices_K = _as(indices, "<i8")
    weights_K = _as(weights, "<f4")
    if indices_K.ndim != 1 or indices_K.shape != weights_K.shape:
        raise _not_one_subset(indices_K, "weights", weights_K)
    falls = np.flatnonzero(indices_K[1:] <= indices_K[:-1])
    if falls.size:
        before, after = indices_K[falls[0] : falls[0] + 2]
        raise InvalidRequestError(
            f"index {after} follows {before} at position {falls[0] + 1}. Sort a subset's indices, "
            "each one once."
        )
    digest = hashlib.sha256(indices_K.data)
    digest.update(weights_K.data)
    if soft_labels is not None:
        soft_labels_KC = _as(soft_labels, "<f2")
        if soft_labels_KC.ndim != 2 or len(soft_labels_KC) != len(indices_K):
            raise _not_one_subset(indices_K, "soft labels", soft_labels_KC)
        digest.update(soft_labels_KC.data)
    return digest.hexdigest()


def _not_one_subset(
    indices_K: NDArray[Any], name: str, values: NDArray[Any]
) -> InvalidRequestError:
    shapes = f"shape {list(indices_K.shape)} and {name} of shape {list(values.shape)}"
    return InvalidRequestError(f"indices of {shapes} differ in length. Give one for each index.")


def _as(column: npt.ArrayLike, dtype: str) -> NDArray[Any]:
    # Contiguous, to hash in place.
    converted = np.asarray(column).astype(dtype, casting="same_kind", copy=False)
    return np.ascontiguousarray(converted) if converted.ndim else converted


def packed_sizes(num_examples: int, num_classes: int = 0) -> range:
    """The possible sizes of a file; `num_classes` is 0 without soft labels."""
    if num_examples < 0 or num_classes < 0:
        return range(0)
    plain = _plain_bytes(num_examples, num_classes)
    return range(plain // _MOST_EXPANSION, plain + plain // 64 + _OVERHEAD_BYTES)


def _plain_bytes(num_examples: int, num_classes: int) -> int:
    return (_EXAMPLE_BYTES + _SOFT_BYTES * num_classes) * num_examples


def pack(examples: Examples) -> bytes:
    """Pack a subset as a file; deterministic for one version of zlib."""
    content = _planes(np.diff(examples.indices_K, prepend=0), "<i8")
    content += _planes(examples.weights_K, "<f4")
    if examples.soft_labels_KC is not None:
        content += _planes(examples.soft_labels_KC.ravel(), "<f2")
    return gzip.compress(content, compresslevel=6, mtime=0)


def unpack(content: bytes, num_examples: int, num_classes: int = 0) -> Examples:
    """Unpack an untrusted file; `subset_digest` checks the order."""
    if len(content) not in packed_sizes(num_examples, num_classes):
        raise _no_file(f"{len(content)} bytes cannot hold {num_examples} examples")
    size = _plain_bytes(num_examples, num_classes)
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            planes = file.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise _no_file(str(error)) from None
    if len(planes) != size:
        raise _no_file(f"it does not hold {num_examples} examples")
    weights, soft = 8 * num_examples, _EXAMPLE_BYTES * num_examples
    soft_labels = _from_planes(planes[soft:], "<f2").reshape(num_examples, num_classes)
    return Examples(
        _from_planes(planes[:weights], "<i8").cumsum(),
        _from_planes(planes[weights:soft], "<f4"),
        soft_labels if num_classes else None,
    )


def _planes(values: NDArray[Any], dtype: str) -> bytes:
    octets = np.ascontiguousarray(values, dtype).view(np.uint8)
    return octets.reshape(len(values), np.dtype(dtype).itemsize).T.tobytes()


def _from_planes(content: bytes, dtype: str) -> NDArray[Any]:
    planes = np.frombuffer(content, np.uint8).reshape(np.dtype(dtype).itemsize, -1)
    return planes.T.copy(order="C").view(dtype).reshape(-1)


def _no_file(reason: str) -> SubsetError:
    return SubsetError(
        f"what arrived is no file of a subset: {reason}. Ask again, or see the coordinator's log."
    )


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """The overlap of two subsets; `by_chance` is for random ones with equal class counts."""

    shared: int
    jaccard: float
    by_chance: float


def overlap(
    first_K: NDArray[np.int64], second_L: NDArray[np.int64], labels_N: NDArray[np.int64]
) -> Overlap:
    """Compare two subsets, each with unique rows of `labels_N`."""
    all_C = np.bincount(labels_N)
    first_C, second_C = (
        np.bincount(labels_N[rows], minlength=len(all_C)) for rows in (first_K, second_L)
    )
    shared = len(np.intersect1d(first_K, second_L, assume_unique=True))
    return Overlap(
        shared=shared,
        jaccard=shared / max(len(first_K) + len(second_L) - shared, 1),
        by_chance=float((first_C * second_C / np.maximum(all_C, 1)).sum()),
    )
