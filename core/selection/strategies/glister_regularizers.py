"""GLISTER's regularizers: a second set function R, added to the gain.

Where there are few validation examples, the best subset for their loss can be narrow.
The paper adds lambda R(S) for one of two functions: supervised facility location, which
wants every training example to have a chosen one of its class like it, or a random
function, which perturbs the order.

Shapes: N examples, D features, K chosen so far, B candidates.
Source: Killamsetty et al. 2021 (arXiv:2012.10630); Wei et al. 2015, "Submodularity in
Data Subset Selection and Active Learning".
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.determinism import derive_generator
from lipt.common.signals.blocks import row_blocks
from lipt.core.signals.signals import Signals

RegularizerName = Literal["none", "facility_location", "random"]

# A matrix of all similarities of up to this size is made once instead of at every step.
_HELD_BYTES = 256 * 1024**2


class Regularizer(Protocol):
    """A monotone submodular R: gains are never negative and never grow."""

    def gains(self, candidates_B: Tensor) -> Tensor:
        """R(S + i) - R(S) of every candidate i; B float64."""
        ...

    def add(self, chosen: Tensor) -> None:
        """Put examples into S."""
        ...


def make_regularizer(name: RegularizerName, signals: Signals, seed: int) -> Regularizer | None:
    """The regularizer of that name over the signals' examples, with nothing chosen."""
    match name:
        case "none":
            return None
        case "facility_location":
            return ClassCoverage(signals)
        case "random":
            return RandomFunction(len(signals), seed, signals.features_ND.device)


class RandomFunction:
    """R(S) = the sum of u_i over S, with u_i drawn once from [0, 1)."""

    def __init__(self, num_examples: int, seed: int, device: torch.device) -> None:
        generator = derive_generator(seed, "glister-random-function")
        values_N = torch.rand(num_examples, generator=generator, dtype=torch.float64)
        self._values_N = values_N.to(device)

    def gains(self, candidates_B: Tensor) -> Tensor:
        """See `Regularizer`."""
        return self._values_N[candidates_B]

    def add(self, chosen: Tensor) -> None:
        """See `Regularizer`; what is chosen does not matter."""


class ClassCoverage:
    """R(S) = the mean over all i of the largest similarity to an example in S.

    Similarity is (1 + cosine of the features) / 2 within a class, and 0 between classes.
    """

    def __init__(self, signals: Signals) -> None:
        self._directions_ND = functional.normalize(signals.features_ND.double(), dim=-1)
        self._labels_N = signals.labels_N
        num_examples = len(signals)
        self._covered_N = self._directions_ND.new_zeros(num_examples, dtype=torch.float32)
        self._held_NN: Tensor | None = None
        if 4 * num_examples**2 <= _HELD_BYTES:
            held_NN = self._covered_N.new_empty(num_examples, num_examples)
            for rows in row_blocks(num_examples, 16 * num_examples):
                held_NN[rows] = self._compute(rows)
            self._held_NN = held_NN

    def gains(self, candidates_B: Tensor) -> Tensor:
        """See `Regularizer`."""
        gains_B = self._directions_ND.new_empty(len(candidates_B))
        row_bytes = 16 * len(self._covered_N)
        for rows in row_blocks(len(candidates_B), row_bytes):
            better_BN = self._rows(candidates_B[rows]).sub_(self._covered_N).clamp_(min=0)
            gains_B[rows] = better_BN.mean(dim=-1, dtype=torch.float64)
        return gains_B

    def add(self, chosen: Tensor) -> None:
        """See `Regularizer`."""
        for rows in row_blocks(len(chosen), 16 * len(self._covered_N)):
            best_N = self._rows(chosen[rows]).amax(dim=0)
            self._covered_N = torch.maximum(self._covered_N, best_N)

    def _rows(self, positions_B: Tensor) -> Tensor:
        """The similarities of some examples to all, a new tensor; B x N float32."""
        return self._compute(positions_B) if self._held_NN is None else self._held_NN[positions_B]

    def _compute(self, rows: Tensor | slice) -> Tensor:
        cosines_BN = self._directions_ND[rows] @ self._directions_ND.T
        same_class_BN = self._labels_N[rows, None] == self._labels_N
        return cosines_BN.add_(1).div_(2).mul_(same_class_BN).float()
