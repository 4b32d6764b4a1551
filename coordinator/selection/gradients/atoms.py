"""Last-layer gradients as the atoms of a matching pursuit, without the gradients.

An atom is the gradient e_i (x) [h_i, 1] of one example, or the sum over consecutive ones.
What the pursuit asks of all atoms in every round, their products with a weighted sum of
those in use, is had in one of two ways, the faster of them by size:

- one row of products per atom in use, kept: N (C + D) once, then N K a round;
- the weighted sum itself, which is one C x (D + 1) matrix: N C D a round.

Shapes: N atoms of G examples, n examples, C classes, D features, K atoms in use, M asked
    about.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lipt.coordinator.signals.blocks import row_blocks
from lipt.coordinator.signals.signals import Signals

# Above what float32 products of some thousand terms are off, relative to the norms.
_ROUNDING = 2e-6
# What a block of examples may take: several copies of it are alive at a time.
_BLOCK_BYTES = 16 * 1024**2
# What the kept rows of products may take.
_ROWS_BYTES = 256 * 1024**2
# A round by rows reads C + D + K / 2 numbers an example; by the sum it multiplies C D, of
# which a core does some 4 in the time of reading one.
_PRODUCTS_PER_READ = 4


@dataclass(frozen=True)
class LayerGradient:
    """A gradient of the last layer: of its weight, C x D, and of its bias, C."""

    weight_CD: Tensor
    bias_C: Tensor

    @property
    def square(self) -> float:
        """The squared norm."""
        return float(self.weight_CD.square().sum() + self.bias_C.square().sum())

    def scaled(self, factor: float) -> LayerGradient:
        """The gradient of a loss that counts `factor` times as much."""
        return LayerGradient(self.weight_CD * factor, self.bias_C * factor)


def gradient_sum(signals: Signals, *, block_bytes: int = _BLOCK_BYTES) -> LayerGradient:
    """The sum of the examples' gradients, in float64."""
    num_classes, num_features = signals.errors_NC.shape[1], signals.features_ND.shape[1]
    device = signals.errors_NC.device
    weight_CD = torch.zeros(num_classes, num_features, dtype=torch.float64, device=device)
    bias_C = torch.zeros(num_classes, dtype=torch.float64, device=device)
    for rows in row_blocks(len(signals), 8 * (num_classes + num_features), block_bytes):
        errors_BC = signals.errors_NC[rows].double()
        weight_CD += errors_BC.T @ signals.features_ND[rows].double()
        bias_C += errors_BC.sum(dim=0)
    return LayerGradient(weight_CD, bias_C * float(signals.has_bias))


class GradientAtoms:
    """The atoms of a pursuit: see `solvers.pursuit.Atoms`."""

    def __init__(
        self,
        signals: Signals,
        target: LayerGradient,
        *,
        capacity: int,
        group_size: int = 1,
        keep_rows: bool | None = None,
        block_bytes: int = _BLOCK_BYTES,
    ) -> None:
        """Compute what the atoms have in common with the target.

        Args:
            signals: of all examples.
            target: the gradient to approximate, float64.
            capacity: how many atoms can be in use at a time.
            group_size: G; the last atom has what is left.
            keep_rows: which of the two ways; the faster one where None. By the sum where
                atoms are of several examples.
            block_bytes: what a block of examples may take.
        """
        self._signals, self._target = signals, target
        self._group_size, self._block_bytes = group_size, block_bytes
        num_classes, num_features = signals.errors_NC.shape[1], signals.features_ND.shape[1]
        device = signals.errors_NC.device
        self.target_square = target.square
        self.target_products_N = self._grouped(self._products_with(target))
        self.squares_N, self._norms_N = self._squares_and_norms()
        if keep_rows is None:
            keep_rows = _rows_are_faster(len(signals), num_classes, num_features, capacity)
        empty = partial(torch.empty, dtype=torch.float64, device=device)
        self._errors_KGC: Tensor = empty(capacity, group_size, num_classes)
        self._features_KGD: Tensor = empty(capacity, group_size, num_features)
        self._used_norms_K = torch.empty(capacity, device=device)
        self._num_used = 0
        self._rows_KN: Tensor | None = None
        if keep_rows and group_size == 1:
            self._rows_KN = torch.empty(capacity, len(signals), device=device)
            self._target_estimates_N = self.target_products_N.float()

    def use(self, atom: int) -> None:
        """Give an atom the next position."""
        position, self._num_used = self._num_used, self._num_used + 1
        atom_M = torch.tensor([atom], device=self._norms_N.device)
        errors_MGC, features_MGD = self._examples(atom_M)
        self._errors_KGC[position] = errors_MGC[0]
        self._features_KGD[position] = features_MGD[0]
        self._used_norms_K[position] = self._norms_N[atom]
        if self._rows_KN is not None:
            errors_C, features_D = errors_MGC[0, 0].float(), features_MGD[0, 0].float()
            for rows in self._blocks(4):
                row_B = self._signals.features_ND[rows].float() @ features_D
                row_B += float(self._signals.has_bias)
                row_B *= self._signals.errors_NC[rows].float() @ errors_C
                self._rows_KN[position, rows] = row_B

    def drop(self, position: int) -> None:
        """Free a position; the last atom in use takes it."""
        last = self._num_used = self._num_used - 1
        self._errors_KGC[position] = self._errors_KGC[last]
        self._features_KGD[position] = self._features_KGD[last]
        self._used_norms_K[position] = self._used_norms_K[last]
        if self._rows_KN is not None:
            self._rows_KN[position] = self._rows_KN[last]

    def products(self, atoms_M: Tensor) -> Tensor:
        """Products of some atoms with all in use, float64; M x K."""
        size = self._num_used
        errors_MGC, features_MGD = self._examples(atoms_M)
        shape = (len(atoms_M), self._group_size, size, self._group_size)
        products: Tensor = features_MGD.flatten(0, 1) @ self._features_KGD[:size].flatten(0, 1).T
        products += float(self._signals.has_bias)
        products *= errors_MGC.flatten(0, 1) @ self._errors_KGC[:size].flatten(0, 1).T
        return products.reshape(shape).sum(dim=(1, 3))

    def estimate(self, weights_K: Tensor) -> tuple[Tensor, Tensor]:
        """Products of all atoms with the target less the weighted sum of those in use.

        Returns:
            Float32 estimates and, for each, a bound of how far it is off; N each.
        """
        size = len(weights_K)
        if self._rows_KN is not None:
            products_N = weights_K.float() @ self._rows_KN[:size]
            length = self.target_square**0.5 + float(weights_K.float() @ self._used_norms_K[:size])
            return self._target_estimates_N - products_N, self._norms_N * (_ROUNDING * length)
        weighted_KGC = self._errors_KGC[:size] * weights_K[:, None, None]
        weight_CD = weighted_KGC.flatten(0, 1).T @ self._features_KGD[:size].flatten(0, 1)
        bias_C = weighted_KGC.sum(dim=(0, 1)) * float(self._signals.has_bias)
        missing = LayerGradient(self._target.weight_CD - weight_CD, self._target.bias_C - bias_C)
        length = missing.square**0.5
        single = LayerGradient(missing.weight_CD.float(), missing.bias_C.float())
        products_N = self._grouped(self._products_with(single))
        return products_N, self._norms_N * (_ROUNDING * length)

    def _products_with(self, gradient: LayerGradient) -> Tensor:
        """Products of each example's gradient with one, in its precision; n."""
        dtype = gradient.weight_CD.dtype
        parts = []
        for rows in self._blocks(2 * dtype.itemsize):
            products_BC = self._signals.features_ND[rows].to(dtype) @ gradient.weight_CD.T
            products_BC += gradient.bias_C
            products_BC *= self._signals.errors_NC[rows].to(dtype)
            parts.append(products_BC.sum(dim=-1))
        return torch.cat(parts)

    def _squares_and_norms(self) -> tuple[Tensor, Tensor]:
        """Each atom's squared norm, float64, and its examples' norms summed, float32."""
        num_atoms = -(-len(self._signals) // self._group_size)
        device = self._signals.errors_NC.device
        row_bytes = 8 * (self._signals.errors_NC.shape[1] + self._signals.features_ND.shape[1])
        squares, norms = [], []
        for atoms in row_blocks(
            num_atoms, self._group_size * (row_bytes + 16 * self._group_size), self._block_bytes
        ):
            atoms_M = torch.arange(atoms.start, atoms.stop, device=device)
            errors_MGC, features_MGD = self._examples(atoms_M)
            products_MGG = features_MGD @ features_MGD.mT + float(self._signals.has_bias)
            products_MGG *= errors_MGC @ errors_MGC.mT
            squares.append(products_MGG.sum(dim=(1, 2)))
            norms.append(products_MGG.diagonal(dim1=1, dim2=2).sqrt().sum(dim=1).float())
        return torch.cat(squares), torch.cat(norms)

    def _examples(self, atoms_M: Tensor) -> tuple[Tensor, Tensor]:
        """The atoms' examples in float64; the last atom's missing ones have no error."""
        if self._group_size == 1:
            errors_MC, features_MD = (
                self._signals.errors_NC[atoms_M],
                self._signals.features_ND[atoms_M],
            )
            return errors_MC.double()[:, None], features_MD.double()[:, None]
        members_G = torch.arange(self._group_size, device=atoms_M.device)
        ids_MG = atoms_M[:, None] * self._group_size + members_G
        last = len(self._signals) - 1
        clamped_MG = ids_MG.clamp(max=last)
        errors_MGC = self._signals.errors_NC[clamped_MG].double()
        features_MGD = self._signals.features_ND[clamped_MG].double()
        return errors_MGC * (ids_MG <= last)[:, :, None], features_MGD

    def _grouped(self, values_n: Tensor) -> Tensor:
        """Sums over each atom's examples; N."""
        if self._group_size == 1:
            return values_n
        missing = -len(values_n) % self._group_size
        padded = torch.nn.functional.pad(values_n, (0, missing))
        return padded.reshape(-1, self._group_size).sum(dim=1)

    def _blocks(self, item_bytes: int) -> list[slice]:
        signals = self._signals
        row_bytes = item_bytes * (signals.errors_NC.shape[1] + signals.features_ND.shape[1])
        return list(row_blocks(len(signals), row_bytes, self._block_bytes))


def _rows_are_faster(num_examples: int, num_classes: int, num_features: int, capacity: int) -> bool:
    reads = num_classes + num_features + capacity / 2
    fits = 4 * capacity * num_examples <= _ROWS_BYTES
    return fits and _PRODUCTS_PER_READ * reads <= num_classes * num_features
