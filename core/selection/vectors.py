"""Vectors of examples, by their factors: last-layer gradients, features or errors.

The gradient of example i is the outer product e_i (x) [h_i, 1], without the 1 for a layer without a
bias. So products are (e_i . e_j)(h_i . h_j + 1), and a sum of gradients is one C x (D + 1) matrix.
Features or errors alone are vectors with one factor.

Shapes: N examples, n and m of them, B of a block, C classes, D features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Annotated, Literal

import torch
from torch import Tensor

from lipt.core.passes import BLOCK_BYTES, row_blocks
from lipt.core.signals.views import Features, LastLayer

Space = Annotated[Literal["features", "gradients"], "compare features, or last-layer gradients"]

# A block's products should stay in the CPU's cache.
CACHED_BYTES = 4 * 1024**2
# numba is an extra. Looking for it takes a tenth of a millisecond: once is enough.
_HAS_NUMBA = find_spec("numba") is not None


def can_compile(device: torch.device) -> bool:
    """Whether `compiled_loops` works on that device."""
    return device.type == "cpu" and _HAS_NUMBA


@dataclass(frozen=True)
class Vectors:
    """N vectors e_i (x) [h_i, bias], or h_i alone; factors may have leading dimensions."""

    features_ND: Tensor
    errors_NC: Tensor | None = None
    bias: float = 0.0

    def __len__(self) -> int:
        return len(self.features_ND)

    def __getitem__(self, rows: slice | Tensor | int) -> Vectors:
        return self.map(lambda factor: factor[rows])

    @property
    def device(self) -> torch.device:
        return self.features_ND.device

    @property
    def width(self) -> int:
        """Number of values in a vector's factors."""
        num_errors = 0 if self.errors_NC is None else self.errors_NC.shape[-1]
        return self.features_ND.shape[-1] + num_errors

    @property
    def outer_NC(self) -> Tensor:
        """The errors, or a column of ones."""
        if self.errors_NC is None:
            return self.features_ND.new_ones(*self.features_ND.shape[:-1], 1)
        return self.errors_NC

    def map(self, change: Callable[[Tensor], Tensor]) -> Vectors:
        errors_NC = None if self.errors_NC is None else change(self.errors_NC)
        return Vectors(change(self.features_ND), errors_NC, self.bias)

    def put(self, rows: slice | int, vectors: Vectors) -> None:
        self.features_ND[rows] = vectors.features_ND
        if self.errors_NC is not None and vectors.errors_NC is not None:
            self.errors_NC[rows] = vectors.errors_NC

    def to(self, dtype: torch.dtype) -> Vectors:
        return self.map(lambda factor: factor.to(dtype))


@dataclass(frozen=True)
class LayerGradient:
    """An explicit vector: by the weight, and by the bias (zeros without one)."""

    weight_CD: Tensor
    bias_C: Tensor

    @property
    def square(self) -> float:
        return float(self.weight_CD.square().sum() + self.bias_C.square().sum())

    @property
    def norm(self) -> float:
        return math.sqrt(self.square)

    def minus(self, other: LayerGradient) -> LayerGradient:
        return LayerGradient(self.weight_CD - other.weight_CD, self.bias_C - other.bias_C)

    def scaled(self, factor: float) -> LayerGradient:
        return LayerGradient(self.weight_CD * factor, self.bias_C * factor)

    def to(self, dtype: torch.dtype) -> LayerGradient:
        return LayerGradient(self.weight_CD.to(dtype), self.bias_C.to(dtype))


def gradients_of(layer: LastLayer) -> Vectors:
    return Vectors(layer.features_ND, layer.errors_NC, float(layer.has_bias))


def vectors_of(view: LastLayer | Features) -> Vectors:
    """The last layer's gradients, or the features."""
    return gradients_of(view) if isinstance(view, LastLayer) else Vectors(view.features_ND)


def with_bias(features_BD: Tensor, bias: float) -> Tensor:
    """The features [h_i, bias], or h_i without a bias, in their own dtype."""
    if not bias:
        return features_BD
    return torch.cat([features_BD, features_BD.new_full((len(features_BD), 1), bias)], dim=1)


def products(left: Vectors, right: Vectors) -> Tensor:
    """<v_i, v_j> of every pair, not in blocks; n x m, or n for a single right one."""
    products_nm = _inner(left.features_ND, right.features_ND)
    if left.errors_NC is not None and right.errors_NC is not None:
        products_nm.add_(left.bias).mul_(_inner(left.errors_NC, right.errors_NC))
    return products_nm


def squared_norms(vectors: Vectors) -> Tensor:
    """|e_i|^2 (|h_i|^2 + 1); N float64."""
    on_cpu = vectors.device.type == "cpu"
    squares = []
    block_bytes = CACHED_BYTES // 2 if on_cpu else BLOCK_BYTES
    for rows in row_blocks(len(vectors), 16 * vectors.width, block_bytes):
        block = vectors[rows]
        squares_B = block.features_ND.double().square().sum(dim=-1)
        if block.errors_NC is not None:
            squares_B.add_(block.bias).mul_(block.errors_NC.double().square().sum(dim=-1))
        squares.append(squares_B)
    return torch.cat(squares)


def weighted_sum(
    vectors: Vectors, weights_N: Tensor | None = None, *, block_bytes: int
) -> LayerGradient:
    """sum_i w_i v_i in float64; weights are ones if None."""
    num_classes, num_features = vectors[:0].outer_NC.shape[1], vectors.features_ND.shape[1]
    zeros = partial(torch.zeros, dtype=torch.float64, device=vectors.device)
    weight_CD, bias_C = zeros(num_classes, num_features), zeros(num_classes)
    for rows in row_blocks(len(vectors), 8 * vectors.width, block_bytes):
        block = vectors[rows]
        errors_BC = block.outer_NC.double()
        if weights_N is not None:
            errors_BC = errors_BC * weights_N[rows, None]
        weight_CD += errors_BC.T @ block.features_ND.double()
        bias_C += errors_BC.sum(dim=0)
    return LayerGradient(weight_CD, bias_C * vectors.bias)


def alignments(vectors: Vectors, gradient: LayerGradient, *, block_bytes: int) -> Tensor:
    """<v_i, gradient>, in the gradient's precision; N."""
    dtype = gradient.weight_CD.dtype
    aligned_N = gradient.bias_C.new_empty(len(vectors))
    for rows in row_blocks(len(vectors), dtype.itemsize * vectors.width, block_bytes):
        block = vectors[rows]
        products_BC = block.features_ND.to(dtype) @ gradient.weight_CD.T
        products_BC += gradient.bias_C
        if block.errors_NC is not None:
            products_BC *= block.errors_NC
        torch.sum(products_BC, dim=-1, out=aligned_N[rows])
    return aligned_N


def _inner(left: Tensor, right: Tensor) -> Tensor:
    return left @ (right if right.dim() == 1 else right.mT)


# Relative to a squared norm: above the rounding of a squared distance, below the distances of
# different float32 features.
_RESOLUTION = 1e-12
# Bytes of a block of factors for a sum.
_SUM_BYTES = 32 * 1024**2
# Factors up to this size in float64 are converted once instead of block by block.
_HELD_BYTES = 256 * 1024**2


class ProductRows:
    """Float64 products of examples' vectors with all; equal vectors compare equal in float32."""

    def __init__(self, vectors: Vectors) -> None:
        self._vectors = vectors.map(
            lambda factor: factor.double() if 8 * factor.numel() <= _HELD_BYTES else factor
        )
        self.squares_N = squared_norms(self._vectors)

    def __len__(self) -> int:
        return len(self._vectors)

    def products(self, positions_B: Tensor) -> Tensor:
        """<v_i, v_j> for some i and all j; B x N float64."""
        some = self._vectors[positions_B].to(torch.float64)
        row_bytes = 8 * self._vectors.width + 16 * len(positions_B)
        parts = [
            products(some, self._vectors[rows].to(torch.float64))
            for rows in row_blocks(len(self), row_bytes)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def products_with_sum(self, weights_N: Tensor) -> Tensor:
        """<v_i, sum_j w_j v_j>; N float64."""
        total = weighted_sum(self._vectors, weights_N, block_bytes=_SUM_BYTES)
        return alignments(self._vectors, total, block_bytes=_SUM_BYTES)

    def squared_distances(self, positions_B: Tensor) -> Tensor:
        """|v_i - v_j|^2, 0 for equal ones; B x N float64."""
        distances_BN = self.products(positions_B)
        torch.add(self.squares_N, distances_BN, alpha=-2, out=distances_BN)
        # Minus the maximum rounding in the distance from an equal example.
        distances_BN += self.squares_N[positions_B, None] * (1 - _RESOLUTION)
        return distances_BN.clamp_(min=0.0)

    def squared_distances_from_mean(self) -> Tensor:
        """|v_i - mean|^2; N float64."""
        weights_N = torch.full_like(self.squares_N, 1 / len(self))
        products_N = self.products_with_sum(weights_N)
        # The mean product with the mean is the mean's squared norm.
        sums_N = self.squares_N + products_N.mean()
        distances_N = sums_N - 2 * products_N
        return distances_N.masked_fill_(distances_N <= _RESOLUTION * sums_N, 0.0)


class CosineKernel:
    """(1 + cosine) / 2 of all vectors, positive semidefinite; the cosine of zeros is 0."""

    def __init__(self, rows: ProductRows) -> None:
        self._rows = rows
        norms_N = rows.squares_N.sqrt()
        self._inverse_norms_N = norms_N.reciprocal().masked_fill(norms_N == 0, 0.0)

    def rows(self, positions_B: Tensor) -> Tensor:
        """Similarities of some examples with all; B x N float64."""
        similarities_BN = self._rows.products(positions_B)
        similarities_BN *= self._inverse_norms_N[positions_B, None]
        similarities_BN *= self._inverse_norms_N
        return similarities_BN.add_(1).div_(2)

    def diagonal(self) -> Tensor:
        """Self-similarities: 1, or 1/2 for a zero vector; N float64."""
        return (1 + (self._inverse_norms_N > 0).double()) / 2

    def column_sums(self) -> Tensor:
        """The sums of each example's similarities with all; N float64."""
        cosines_N = self._rows.products_with_sum(self._inverse_norms_N) * self._inverse_norms_N
        return (len(self._rows) + cosines_N) / 2


# A block's distances should stay in the cache.
_DISTANCES_BYTES = 8 * 1024**2


def other_distances(vectors: Vectors) -> Iterator[tuple[slice, Tensor]]:
    """(1 - cosine) / 2 of some examples from all others, 0 for equal directions; B x N float64.

    An example's distance from itself is infinite.
    """
    kernel = CosineKernel(ProductRows(vectors))
    for rows in row_blocks(len(vectors), 16 * len(vectors), _DISTANCES_BYTES):
        ids_B = torch.arange(rows.start, rows.stop, device=vectors.device)
        distances_BN = 1 - kernel.rows(ids_B)
        distances_BN.masked_fill_(distances_BN <= _RESOLUTION, 0.0)
        distances_BN[ids_B - rows.start, ids_B] = torch.inf
        yield rows, distances_BN
