"""How alike two examples' gradients are, computed for the pairs that are asked for.

In float32 and in blocks, for solvers that read all N x N pairs. What is called a gradient
here may be any outer product: with errors of 1 and no bias it is the feature itself.

Shapes: N examples, n and m of them, C classes, D features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lipt.coordinator.selection.gradients.kernels import (
    cosines_from_products,
    distances_from_products,
    gradient_products,
    gradient_rows,
    squared_gradient_norms,
)
from lipt.coordinator.selection.gradients.space import SpaceName
from lipt.coordinator.signals.blocks import row_blocks
from lipt.coordinator.signals.signals import Signals


@dataclass(frozen=True)
class PairwiseSimilarity:
    """Symmetric similarities of N examples; none is larger than that of equal examples.

    signals: of the N examples.
    squares_N: the squared norms of their gradients.
    from_products: (products_nm, squares_n, squares_m) -> similarities_nm, in place.
    lowest, highest: bounds of the similarities.
    """

    signals: Signals
    squares_N: Tensor
    from_products: Callable[[Tensor, Tensor, Tensor], Tensor]
    lowest: float
    highest: float

    def __len__(self) -> int:
        return len(self.signals)

    @property
    def device(self) -> torch.device:
        """Where the signals are."""
        return self.squares_N.device

    @property
    def row_width(self) -> int:
        """How many numbers stand for one example."""
        return self.signals.errors_NC.shape[1] + self.signals.features_ND.shape[1]

    def block(self, rows: slice | Tensor, columns: slice | Tensor) -> Tensor:
        """The similarities of some examples with others; n x m float32."""
        products_nm = gradient_products(
            gradient_rows(self.signals, rows), gradient_rows(self.signals, columns)
        )
        return self.from_products(products_nm, self.squares_N[rows], self.squares_N[columns])

    def take(self, ids_n: Tensor) -> PairwiseSimilarity:
        """The similarities among some of the examples, with the same bounds."""
        return replace(
            self, signals=gradient_rows(self.signals, ids_n), squares_N=self.squares_N[ids_n]
        )


def proximity(signals: Signals) -> PairwiseSimilarity:
    """Minus the Euclidean distance of the gradients.

    No pair is farther apart than twice the largest distance from any one example.
    """
    squares_N = squared_gradient_norms(signals)
    first = gradient_rows(signals, slice(0, 1))
    row_bytes = 4 * (signals.errors_NC.shape[1] + signals.features_ND.shape[1])
    radius = max(
        float(
            distances_from_products(
                gradient_products(first, gradient_rows(signals, rows)),
                squares_N[:1],
                squares_N[rows],
            ).max()
        )
        for rows in row_blocks(len(signals), row_bytes)
    )
    return PairwiseSimilarity(signals, squares_N, _minus_distances, -2.0 * radius, 0.0)


def scaled_cosine(signals: Signals) -> PairwiseSimilarity:
    """(1 + cosine) / 2 of the gradients: 1 for the same direction, 0 for opposite ones."""
    squares_N = squared_gradient_norms(signals)
    return PairwiseSimilarity(signals, squares_N, _scaled_cosines, 0.0, 1.0)


def in_space(signals: Signals, space: SpaceName) -> Signals:
    """Signals whose gradients are the examples' vectors in that space."""
    if space == "gradients":
        return signals
    ones_N1 = torch.ones(len(signals), 1, device=signals.features_ND.device)
    return Signals(ones_N1, signals.features_ND, signals.labels_N, has_bias=False)


def _minus_distances(products_nm: Tensor, squares_n: Tensor, squares_m: Tensor) -> Tensor:
    return distances_from_products(products_nm, squares_n, squares_m).neg_()


def _scaled_cosines(products_nm: Tensor, squares_n: Tensor, squares_m: Tensor) -> Tensor:
    return cosines_from_products(products_nm, squares_n, squares_m).add_(1).mul_(0.5)
