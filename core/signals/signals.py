"""Signals: the values of each example on which every strategy selects.

The error e_i is the gradient of the loss by the outputs: softmax - onehot, sigmoid - labels, or
output - number. The last layer's gradient is its outer product with the feature and a one for the
bias, [h_i, 1]. Inner products are (e_i . e_j)(h_i . h_j + 1) and norms |e_i| sqrt(|h_i|^2 + 1),
exactly: N x (C + d) numbers in place of N x C (d + 1).

ImageNet's errors take 5 GB in float32, so arrays larger than `StorageLimits` are kept in float16: a
relative error of 5e-4, and errors below 6e-8 are 0. A user's features replace the model's: a
safetensors file with the tensor `features` (N x d), and for pairs `paired_features` (N x p).

Shapes: N examples, C classes (labels, or numbers), D features, P of a pair's second half, K chosen
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.errors import BlobTooLargeError, FeaturesError, SignalsError, WeightsError
from lipt.common.tensor_files import TensorSpec, quoted, read_container, specs_of
from lipt.common.text import listed
from lipt.core.kept_values import KeptValue
from lipt.core.passes import row_blocks
from lipt.core.signals.dynamics import Dynamics
from lipt.core.signals.targeted import TargetSignals
from lipt.core.signals.views import LastLayer, View
from lipt.data.dataset import Dataset
from lipt.data.inputs.standardization import feature_scale, sample_size, scaled_features
from lipt.data.sources.rows import ColumnRows
from lipt.data.targets.kinds import TargetKind

ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class Signals(LastLayer, KeptValue):
    """All that is computed of N examples; row i of every tensor is the same example.

    gradient_norms_N: of all parameters.
    paired_features_NP: the second half of each pair (a caption's features, say), float32.
    duplicate_group_N: int64, the same for near-duplicates.
    confidence_N: weights of the labels in a later fit, float64 in (0, 1], if some are surely wrong.
    validation: of the run's validation examples; they stay whole in `take`.
    targeted: losses under theta*, and what a target has to do with the examples.
    scored_by: credentials whose workers computed some, and what was verified, as JSON.
    """

    other_models: tuple[Signals, ...] = ()
    gradient_norms_N: Tensor | None = None
    dynamics: Dynamics | None = None
    paired_features_NP: Tensor | None = None
    duplicate_group_N: Tensor | None = None
    confidence_N: Tensor | None = None
    validation: Signals | None = None
    targeted: TargetSignals | None = None
    scored_by: Mapping[str, Any] | None = None

    def take(self, positions_K: Tensor) -> Self:
        dynamics = None if self.dynamics is None else self.dynamics.take(positions_K)
        targeted = None if self.targeted is None else self.targeted.take(positions_K)
        return replace(super().take(positions_K), dynamics=dynamics, targeted=targeted)


def probabilities_of(errors: Tensor, labels: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The softmax, at the precision of its errors: error + onehot, of any examples."""
    own = labels[..., None]
    return errors.to(dtype, copy=True).scatter_add_(-1, own, torch.ones_like(own, dtype=dtype))


def required(values: ValueT | None, what: str) -> ValueT:
    """Values that a strategy requires."""
    if values is None:
        raise SignalsError(f"the signals have no {what}: compute them first, or give them.")
    return values


def labels_only(labels_N: Tensor, kind: TargetKind = TargetKind.CLASS) -> Signals:
    empty = torch.empty(len(labels_N), 0)
    return Signals(errors_NC=empty, features_ND=empty, labels_N=labels_N, kind=kind)


def unlabelled(num_examples: int) -> Signals:
    return labels_only(torch.zeros(num_examples, dtype=torch.int64))


# Strategies use the rest.
_SHARE_OF_FREE_MEMORY = 0.5


def moved_if_it_fits(signals: Signals, device: torch.device) -> Signals:
    """The signals on the device if they fit, else unchanged."""
    if device.type != "cuda":
        return signals
    free_bytes, _ = torch.cuda.mem_get_info(device)
    fits = num_bytes(signals) <= free_bytes * _SHARE_OF_FREE_MEMORY
    return moved(signals, device) if fits else signals


def num_bytes(signals: Signals) -> int:
    """Bytes of all tensors, including the validation split's and the learners'."""
    sizes: list[int] = []

    def count(tensor: Tensor) -> Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    _mapped(signals, count)
    return sum(sizes)


def moved(signals: Signals, device: torch.device) -> Signals:
    placed: Signals = _mapped(signals, lambda tensor: tensor.to(device))
    return placed


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_mapped(part, change) for part in value)
    if isinstance(value, View):
        parts = {name: _mapped(part, change) for name, part in vars(value).items()}
        return replace(value, **parts)
    return value


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
    values = {
        name: partial(_rows_of_file, spec, container.values(name))
        for name, spec in container.specs.items()
    }
    return _checked(container.specs, values, num_examples)


def features_of_tensors(tensors: Mapping[str, Tensor], num_examples: int) -> UserFeatures:
    """Features in this process's memory, checked as those of a file."""
    values = {name: partial(_rows_of_tensor, tensor) for name, tensor in tensors.items()}
    return _checked(specs_of(tensors), values, num_examples)


# Some of a tensor's rows.
_RowsOf = Callable[[slice], Tensor]


def _rows_of_tensor(tensor: Tensor, rows: slice) -> Tensor:
    return tensor[rows].cpu()


def _rows_of_file(spec: TensorSpec, values: NDArray[np.uint8], rows: slice) -> Tensor:
    row_bytes = spec.shape[1] * spec.dtype.itemsize
    # Copied: a mapped file is read-only, and its values may be unaligned.
    block = torch.from_numpy(values[rows.start * row_bytes : rows.stop * row_bytes].copy())
    return block.view(spec.dtype).view(-1, spec.shape[1])


def _checked(
    specs: Mapping[str, TensorSpec], values: Mapping[str, _RowsOf], num_examples: int
) -> UserFeatures:
    if FEATURES not in specs or specs.keys() - {FEATURES, PAIRED_FEATURES}:
        names = ", ".join(map(quoted, specs)) or "nothing"
        raise FeaturesError(f"the file of features holds {names}. {_HOW}")
    for name, spec in specs.items():
        _require_shape(name, spec, num_examples)
    read = {name: _read(name, spec, values[name]) for name, spec in specs.items()}
    return UserFeatures(read[FEATURES], read.get(PAIRED_FEATURES))


def features_of_pairs(dataset: Dataset) -> UserFeatures | None:
    """Both halves of a data set's own pairs; None if its examples are no pairs."""
    rows = dataset.rows
    if not isinstance(rows, ColumnRows) or rows.paired_NP is None:
        return None
    values_ND = rows.tensors[""].flatten(1)
    return UserFeatures(
        scaled_features(values_ND, feature_scale(values_ND)).to(torch.float32), rows.paired_NP
    )


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


def _read(name: str, spec: TensorSpec, rows_of: _RowsOf) -> Tensor:
    num_rows, width = spec.shape
    read_NF = torch.empty(spec.shape, dtype=STORAGE_LIMITS.feature_dtype(spec.num_elements))
    finite_N = torch.empty(num_rows, dtype=torch.bool)

    step = max(1, num_rows // sample_size(width))
    sample = torch.cat([rows_of(slice(row, row + 1)) for row in range(0, num_rows, step)])
    scale = feature_scale(sample.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))
    for rows in row_blocks(num_rows, width * spec.dtype.itemsize):
        block = scaled_features(rows_of(rows), scale)
        read_NF[rows] = block.to(read_NF.dtype)
        # Squares of larger values, and their sums, overflow. NaN fails the comparison, too.
        finite_N[rows] = (read_NF[rows].float().abs() <= _MOST).all(dim=-1)
    bad = torch.nonzero(~finite_N).flatten().tolist()
    if bad:
        row_1F = rows_of(slice(bad[0], bad[0] + 1))
        sizes_F = scaled_features(row_1F, scale)[0].double().abs().nan_to_num(nan=torch.inf)
        column, kept = int(sizes_F.argmax()), str(read_NF.dtype).removeprefix("torch.")
        raise FeaturesError(
            f"the tensor {quoted(name)} has values that are too large or not finite in {kept}, for "
            f"{len(bad)} of {num_rows} examples, with ids {listed(list(map(str, bad)), 5)}: "
            f"{float(row_1F[0, column]):g} in column {column} of the first. Give finite numbers, "
            f"scaled to below {min(_MOST, torch.finfo(read_NF.dtype).max):.3g}."
        )
    return read_NF
