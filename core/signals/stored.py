"""Stored signals: their precision, and files of a user's own features.

ImageNet's errors take 5 GB in float32, so arrays larger than `StorageLimits` are kept in float16: a
relative error of 5e-4, and errors below 6e-8 are 0. A user's features replace the model's: a
safetensors file with the tensor `features` (N x d), and for pairs `paired_features` (N x p).

Shapes: N examples, D and P features.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lipt.common.data.dataset import Dataset
from lipt.common.data.sources.rows import ColumnRows
from lipt.common.errors import BlobTooLargeError, FeaturesError, WeightsError
from lipt.common.signals import row_blocks
from lipt.common.text import listed
from lipt.common.weights.files import Container, TensorSpec, quoted, read_container


@dataclass(frozen=True)
class StorageLimits:
    """Float32 bytes of all examples' values above which they are stored in float16.

    memory_bytes: of errors, or of features, above which a slower mapped file is used.
    """

    error_bytes: int = 2 * 1024**3
    feature_bytes: int = 4 * 1024**3
    memory_bytes: int = 1024**3

    def error_dtype(self, num_values: int) -> torch.dtype:
        return torch.float16 if 4 * num_values > self.error_bytes else torch.float32

    def feature_dtype(self, num_values: int) -> torch.dtype:
        return torch.float16 if 4 * num_values > self.feature_bytes else torch.float32


STORAGE_LIMITS = StorageLimits()

FEATURES = "features"
PAIRED_FEATURES = "paired_features"

# An error names a few extra tensors; with more of them the header is not even read.
_MAX_TENSORS = 16
_MOST = 1e15
_HOW = (
    "Write safetensors.torch.save_file({'features': N x d, 'paired_features': N x p}, PATH), the "
    "second only for strategies on pairs."
)


@dataclass(frozen=True)
class UserFeatures:
    """Finite features, float32, or float16 if they would be too large."""

    features_ND: Tensor
    paired_features_NP: Tensor | None


def read_user_features(source: bytes | Path, *, num_examples: int, max_bytes: int) -> UserFeatures:
    """Read a file of features; FeaturesError for wrong tensors or shapes, or values not finite."""
    try:
        container = read_container(source, max_bytes=max_bytes, max_tensors=_MAX_TENSORS)
    except (WeightsError, BlobTooLargeError) as error:
        # The rest of these errors' text is about a model's weights.
        raise FeaturesError(f"{error.problem}. {_HOW}") from error
    if FEATURES not in container.specs or container.specs.keys() - {FEATURES, PAIRED_FEATURES}:
        names = ", ".join(map(quoted, container.specs)) or "nothing"
        raise FeaturesError(f"the file of features holds {names}. {_HOW}")
    for name, spec in container.specs.items():
        _require_shape(name, spec, num_examples)
    read = {name: _read(container, name) for name in container.specs}
    return UserFeatures(read[FEATURES], read.get(PAIRED_FEATURES))


def features_of_pairs(dataset: Dataset) -> UserFeatures | None:
    """Both halves of a data set's own pairs; None if its examples are no pairs."""
    rows = dataset.rows
    if not isinstance(rows, ColumnRows) or rows.paired_NP is None:
        return None
    return UserFeatures(rows.tensors[""].flatten(1), rows.paired_NP)


def _require_shape(name: str, spec: TensorSpec, num_examples: int) -> None:
    fitting = len(spec.shape) == 2 and spec.shape[0] == num_examples and spec.shape[1] >= 1
    if not fitting:
        raise FeaturesError(
            f"the tensor {quoted(name)} has the shape {list(spec.shape)}; the data set's "
            f"{num_examples} examples need [{num_examples}, d] with d >= 1. Give one row per "
            "example, in the order of the data set."
        )
    if not spec.dtype.is_floating_point:
        raise FeaturesError(
            f"the tensor {quoted(name)} is {spec}. Convert it to a floating-point type: float32, "
            "float16 or bfloat16."
        )


def _read(container: Container, name: str) -> Tensor:
    spec, values = container.specs[name], container.values(name)
    num_rows, width = spec.shape
    read_NF = torch.empty(spec.shape, dtype=STORAGE_LIMITS.feature_dtype(spec.num_elements))
    finite_N = torch.empty(num_rows, dtype=torch.bool)
    row_bytes = width * spec.dtype.itemsize
    for rows in row_blocks(num_rows, row_bytes):
        # Copied: a mapped file is read-only, and its values may be unaligned.
        block = torch.from_numpy(values[rows.start * row_bytes : rows.stop * row_bytes].copy())
        read_NF[rows] = block.view(spec.dtype).view(-1, width).to(read_NF.dtype)
        # Squares of larger values, and their sums, overflow. NaN fails the comparison, too.
        finite_N[rows] = (read_NF[rows].float().abs() <= _MOST).all(dim=-1)
    bad = list(map(str, torch.nonzero(~finite_N).flatten().tolist()))
    if bad:
        kept = str(read_NF.dtype).removeprefix("torch.")
        raise FeaturesError(
            f"the tensor {quoted(name)} has values that are too large or not finite in {kept}, for "
            f"{len(bad)} of {num_rows} examples, with ids {listed(bad, 5)}. Give finite numbers, "
            f"scaled to below {min(_MOST, torch.finfo(read_NF.dtype).max):.3g}."
        )
    return read_NF
