"""Examples as vectors, for strategies that compare them: by feature, or by gradient.

A feature h_i, or the last layer's gradient e_i (x) [h_i, 1], of which only the factors
are held. All products are in float64, from blocks of rows: half-precision signals of any
size can be given, and what is equal in the data differs by so little that it compares
equal in float32. So equal examples tie wherever they stand, and on any block size.

Shapes: N examples, C classes, D features, B rows asked for.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lipt.coordinator.signals.blocks import BLOCK_BYTES, row_blocks
from lipt.coordinator.signals.signals import Signals

SpaceName = Literal["features", "gradients"]

# Relative to a squared norm: more than the rounding of a squared distance, and less than
# float32 features that differ can make of it.
_RESOLUTION = 1e-12
# Signals up to this size in float64 are converted once instead of block by block.
_HELD_BYTES = 256 * 1024**2


class Space:
    """The vectors of all examples, and the products among them."""

    def __init__(
        self, signals: Signals, name: SpaceName, *, block_bytes: int = BLOCK_BYTES
    ) -> None:
        """Take the factors.

        Args:
            signals: features, and errors in the space of gradients.
            name: what an example's vector is.
            block_bytes: what a block of rows may take in float64.
        """
        in_gradients = name == "gradients"
        self._features_ND = signals.features_ND
        self._errors_NC = signals.errors_NC if in_gradients else None
        self._bias = float(in_gradients and signals.has_bias)
        self._block_bytes = block_bytes
        self._row_bytes = 8 * self._features_ND.shape[1]
        self._features_ND = double_if_small(self._features_ND)
        if self._errors_NC is not None:
            self._row_bytes += 8 * self._errors_NC.shape[1]
            self._errors_NC = double_if_small(self._errors_NC)

    def __len__(self) -> int:
        return len(self._features_ND)

    @property
    def device(self) -> torch.device:
        """Where the vectors are, and what is computed of them."""
        return self._features_ND.device

    def products(self, positions_B: Tensor) -> Tensor:
        """The inner products of some examples with all; B x N float64."""
        features_BD, errors_BC = self._factors(positions_B)
        row_bytes = self._row_bytes + 16 * len(positions_B)
        parts = []
        for rows in row_blocks(len(self), row_bytes, self._block_bytes):
            features_RD, errors_RC = self._factors(rows)
            products_BR = features_BD @ features_RD.T
            if errors_BC is not None and errors_RC is not None:
                products_BR.add_(self._bias).mul_(errors_BC @ errors_RC.T)
            parts.append(products_BR)
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def squared_distances(self, positions_B: Tensor, squares_N: Tensor) -> Tensor:
        """The squared distances of some examples from all, 0 from equal ones; B x N float64.

        Args:
            positions_B: which.
            squares_N: of `squared_norms`.
        """
        distances_BN = self.products(positions_B)
        torch.add(squares_N, distances_BN, alpha=-2, out=distances_BN)
        # Less what rounding may leave of the distance from an equal example.
        distances_BN += squares_N[positions_B, None] * (1 - _RESOLUTION)
        return distances_BN.clamp_(min=0.0)

    def squared_norms(self) -> Tensor:
        """|v_i|^2; N float64."""
        parts = []
        for rows in row_blocks(len(self), 2 * self._row_bytes, self._block_bytes):
            features_RD, errors_RC = self._factors(rows)
            squares_R = features_RD.square().sum(dim=-1)
            if errors_RC is not None:
                squares_R.add_(self._bias).mul_(errors_RC.square().sum(dim=-1))
            parts.append(squares_R)
        return torch.cat(parts)

    def squared_distances_from_mean(self, squares_N: Tensor) -> Tensor:
        """The squared distances from the mean of all vectors, 0 at the mean; N float64.

        Args:
            squares_N: of `squared_norms`.
        """
        weights_N = torch.full_like(squares_N, 1 / len(squares_N))
        products_N = self.products_with_sum(weights_N)
        # The mean product with the mean is the mean's squared norm.
        sums_N = squares_N + products_N.mean()
        distances_N = sums_N - 2 * products_N
        return distances_N.masked_fill_(distances_N <= _RESOLUTION * sums_N, 0.0)

    def products_with_sum(self, weights_N: Tensor) -> Tensor:
        """<v_i, sum_j w_j v_j>, without an N x N matrix: the sum is one vector; N float64.

        A sum of gradients is a matrix of C x (D + 1).

        Args:
            weights_N: how much each example counts in the sum, float64.
        """
        blocks = list(row_blocks(len(self), 2 * self._row_bytes, self._block_bytes))
        if self._errors_NC is None:
            sum_D = torch.stack([weights_N[rows] @ self._factors(rows)[0] for rows in blocks])
            return torch.cat([self._factors(rows)[0] @ sum_D.sum(dim=0) for rows in blocks])
        num_classes, num_features = self._errors_NC.shape[1], self._features_ND.shape[1]
        sum_CD = torch.zeros(num_classes, num_features, dtype=torch.float64, device=self.device)
        bias_C = torch.zeros(num_classes, dtype=torch.float64, device=self.device)
        for rows in blocks:
            weighted_RC = self._errors_NC[rows].double() * weights_N[rows, None]
            sum_CD += weighted_RC.T @ self._features_ND[rows].double()
            bias_C += self._bias * weighted_RC.sum(dim=0)
        parts = []
        for rows in blocks:
            seen_RC = self._features_ND[rows].double() @ sum_CD.T + bias_C
            parts.append((seen_RC * self._errors_NC[rows].double()).sum(dim=-1))
        return torch.cat(parts)

    def _factors(self, rows: slice | Tensor) -> tuple[Tensor, Tensor | None]:
        errors = None if self._errors_NC is None else self._errors_NC[rows].double()
        return self._features_ND[rows].double(), errors


def double_if_small(values: Tensor) -> Tensor:
    """In float64 where that is no burden, so that blocks need not be converted again and again."""
    return values.double() if 8 * values.numel() <= _HELD_BYTES else values


class ScaledCosine:
    """(1 + cosine) / 2 of the vectors of a space: 1 for the same direction, 0 for opposite ones.

    In [0, 1], as sums over a coverage need it, and positive semidefinite, as determinants
    do. A zero vector has no direction: its cosine is 0, with itself, too.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        norms_N = space.squared_norms().sqrt()
        self._inverse_norms_N = norms_N.reciprocal().masked_fill(norms_N == 0, 0.0)

    def rows(self, positions_B: Tensor) -> Tensor:
        """The similarity of some examples to all; B x N float64."""
        similarities_BN = self._space.products(positions_B)
        similarities_BN *= self._inverse_norms_N[positions_B, None]
        similarities_BN *= self._inverse_norms_N
        return similarities_BN.add_(1).div_(2)

    def to_themselves(self) -> Tensor:
        """1, or 1/2 for a zero vector; N float64."""
        return (1 + (self._inverse_norms_N > 0).double()) / 2

    def column_sums(self) -> Tensor:
        """Each example's similarity to all, itself included, added up; N float64."""
        cosines_N = self._space.products_with_sum(self._inverse_norms_N) * self._inverse_norms_N
        return (len(self._space) + cosines_N) / 2
