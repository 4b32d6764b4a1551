"""Non-negative fit: least squares on a set of vectors that grows one by one and may shrink.

Minimizes |sum w_i a_i - b|^2 + ridge |w|^2 over w >= 0 from inner products alone. The Gram
matrix G of the vectors in use is kept as a root of its inverse, T with T' T = G^-1: a new
vector costs two products with T and a dropped one a reflection, where a Cholesky factor
would need triangular solves and a chain of rotations. T need not be triangular, so
vectors are dropped from any place.

Shapes: K vectors in use.
Source: Lawson and Hanson 1974, "Solving Least Squares Problems", chapter 23, for the step
    that keeps the weights feasible.
"""

from __future__ import annotations

import torch
from torch import Tensor

# A vector counts as a combination of those in use when less than this share of its square
# lies outside of their span: its weight would be rounding magnified by the inverse.
_DEPENDENT = 1e-8
_FIRST_CAPACITY = 64


class NonNegativeFit:
    """The vectors in use, by position, and their optimal weights, all positive.

    Attributes:
        weights_K: float64; the optimum once `settle` has returned.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._root = self._empty(_FIRST_CAPACITY, _FIRST_CAPACITY)
        # T b: in it, the optimum without the sign constraint is T' (T b).
        self._rotated_target_K = self._empty(0)
        self.weights_K = self._empty(0)

    def __len__(self) -> int:
        return len(self.weights_K)

    @property
    def explained(self) -> float:
        """How far the objective lies below |b|^2."""
        return float(self._rotated_target_K.square().sum())

    def add(self, products_K: Tensor, square: float, target: float) -> bool:
        """Take a vector into use, with weight 0 until `settle`.

        Args:
            products_K: float64 inner products with the vectors in use.
            square: its own, with the ridge added.
            target: its inner product with b.

        Returns:
            False, and nothing is changed, where it depends on those in use or where a
            positive weight would not bring the sum closer to b.
        """
        size = len(self)
        root_KK = self._root[:size, :size]
        inside_K = root_KK @ products_K
        outside = square - float(inside_K.square().sum())
        gain = target - float(inside_K @ self._rotated_target_K)
        if outside <= _DEPENDENT * square or gain <= 0:
            return False
        self._reserve(size + 1)
        scale = outside**0.5
        self._root[size, :size] = (root_KK.T @ inside_K) / -scale
        self._root[:size, size] = 0
        self._root[size, size] = 1 / scale
        new = torch.tensor([gain / scale], dtype=torch.float64, device=self._device)
        self._rotated_target_K = torch.cat([self._rotated_target_K, new])
        self.weights_K = torch.cat([self.weights_K, torch.zeros_like(new)])
        return True

    def settle(self) -> list[int]:
        """Move to the optimum of the vectors in use, dropping those that it would make negative.

        The weights go straight towards the optimum without the sign constraint and stop
        where the first becomes zero; that vector goes. The objective never rises.

        Returns:
            The positions dropped, one after another, each as `drop` takes it.
        """
        dropped = []
        while len(self):
            optimum_K = self._root[: len(self), : len(self)].T @ self._rotated_target_K
            falling_K = optimum_K <= 0
            if not bool(falling_K.any()):
                self.weights_K = optimum_K
                break
            fall_K = (self.weights_K - optimum_K).where(falling_K, 1)
            shares_K = torch.where(falling_K, self.weights_K / fall_K, torch.inf).nan_to_num(0)
            position = int(shares_K.argmin())
            self.weights_K = torch.lerp(self.weights_K, optimum_K, shares_K[position]).clamp(min=0)
            self.drop(position)
            dropped.append(position)
        return dropped

    def refine(self, correlations_K: Tensor) -> list[int]:
        """Remove the rounding that the weights have gathered.

        Args:
            correlations_K: half the objective's negative slope by each weight, computed
                afresh: zero at the exact optimum.

        Returns:
            The positions dropped because their exact weight is not positive.
        """
        root_KK = self._root[: len(self), : len(self)]
        self.weights_K = self.weights_K + root_KK.T @ (root_KK @ correlations_K)
        positions = torch.nonzero(self.weights_K <= 0).flatten().flip(0).tolist()
        for position in positions:
            self.drop(position)
        return positions

    def drop(self, position: int) -> None:
        """Take a vector out of use; the last one takes its position."""
        last = len(self) - 1
        root_KK = self._root[: last + 1, : last + 1]
        column_K = root_KK[:, position].clone()
        root_KK[:, position] = root_KK[:, last]
        root_KK[:, last] = column_K
        # A reflection leaves T' T as it is. This one leaves the vector's column no entry but
        # the last, and the inverse of the smaller Gram matrix is what remains without it.
        mirror_K = column_K
        mirror_K[last] += torch.linalg.vector_norm(column_K).copysign(column_K[last])
        twice_K = mirror_K * (2 / mirror_K.square().sum())
        root_KK.addr_(twice_K, mirror_K @ root_KK, alpha=-1)
        reflected_K = self._rotated_target_K - twice_K * (mirror_K @ self._rotated_target_K)
        self._rotated_target_K = reflected_K[:last]
        kept_K = self.weights_K.clone()
        kept_K[position] = kept_K[last]
        self.weights_K = kept_K[:last]

    def _reserve(self, size: int) -> None:
        capacity = len(self._root)
        if size > capacity:
            grown = self._empty(2 * capacity, 2 * capacity)
            grown[:capacity, :capacity] = self._root
            self._root = grown

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float64, device=self._device)
