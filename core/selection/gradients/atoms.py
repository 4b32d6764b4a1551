"""Gradient atoms: last-layer gradients as what a matching pursuit chooses from.

An atom is the gradient e_i (x) [h_i, 1] of one example, or the sum over consecutive ones.
What the pursuit asks of all atoms in every round, their products with a weighted sum of
those in use, is had in one of two ways, the faster of them by size:

- one row of products per atom in use, kept: N (C + D) once, then N K a round;
- the weighted sum itself, which is one C x (D + 1) matrix: N C D a round.

Shapes: N atoms of G examples, n examples, C classes, D features, K atoms in use, M asked
    about.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.gradients.vectors import (
    LayerGradient,
    Vectors,
    alignments,
    products,
    weighted_sum,
)

# Above what float32 products of some thousand terms are off, relative to the norms.
_ROUNDING = 2e-6
# What a block of examples may take: several copies of it are alive at a time.
BLOCK_BYTES = 16 * 1024**2
# What the kept rows of products may take.
_ROWS_BYTES = 256 * 1024**2
# A round by rows reads C + D + K / 2 numbers an example; by the sum it multiplies C D, of
# which a core does some 4 in the time of reading one.
_PRODUCTS_PER_READ = 4


class GradientAtoms:
    """The atoms of a pursuit: see `solvers.pursuit.Atoms`."""

    def __init__(
        self,
        gradients: Vectors,
        target: LayerGradient,
        *,
        capacity: int,
        group_size: int = 1,
        keep_rows: bool | None = None,
    ) -> None:
        """Compute what the atoms have in common with the target.

        Args:
            gradients: of all examples.
            target: the gradient to approximate, float64.
            capacity: how many atoms can be in use at a time.
            group_size: G; the last atom has what is left.
            keep_rows: which of the two ways; the faster one where None. By the sum where
                atoms are of several examples.
        """
        self._gradients, self._target = gradients, target
        self._group_size = group_size
        self.target_square = target.square
        self.target_products_N = self._products_with(target)
        self.squares_N, self._norms_N = self._squares_and_norms()
        if keep_rows is None:
            keep_rows = _rows_are_faster(gradients, capacity)
        # Their examples, one atom's after another's.
        self._used = gradients.map(
            lambda factor: factor.new_empty(
                capacity * group_size, factor.shape[1], dtype=torch.float64
            )
        )
        self._used_norms_K = self._norms_N.new_empty(capacity)
        self._num_used = 0
        self._rows_KN: Tensor | None = None
        if keep_rows and group_size == 1:
            self._rows_KN = self._norms_N.new_empty(capacity, len(gradients))
            self._target_estimates_N = self.target_products_N.float()

    def use(self, atom: int) -> None:
        """Give an atom the next position."""
        position, self._num_used = self._num_used, self._num_used + 1
        examples_G = self._examples(torch.tensor([atom], device=self._norms_N.device))
        self._used.put(self._places(position), examples_G)
        self._used_norms_K[position] = self._norms_N[atom]
        if self._rows_KN is not None:
            single = examples_G[0].to(torch.float32)
            row_bytes = 4 * self._gradients.width
            for rows in row_blocks(len(self._gradients), row_bytes, BLOCK_BYTES):
                block = self._gradients[rows].to(torch.float32)
                self._rows_KN[position, rows] = products(block, single)

    def drop(self, position: int) -> None:
        """Free a position; the last atom in use takes it."""
        last = self._num_used = self._num_used - 1
        self._used.put(self._places(position), self._used[self._places(last)])
        self._used_norms_K[position] = self._used_norms_K[last]
        if self._rows_KN is not None:
            self._rows_KN[position] = self._rows_KN[last]

    def products(self, atoms_M: Tensor) -> Tensor:
        """Products of some atoms with all in use, float64; M x K."""
        products_nm = products(self._examples(atoms_M), self._in_use())
        shape = (len(atoms_M), self._group_size, self._num_used, self._group_size)
        return products_nm.reshape(shape).sum(dim=(1, 3))

    def estimate(self, weights_K: Tensor) -> tuple[Tensor, Tensor]:
        """Products of all atoms with the target less the weighted sum of those in use.

        Returns:
            Float32 estimates and, for each, a bound of how far it is off; N each.
        """
        if self._rows_KN is not None:
            size, weights_k = self._num_used, weights_K.float()
            products_N = weights_k @ self._rows_KN[:size]
            length = self.target_square**0.5 + float(weights_k @ self._used_norms_K[:size])
            return self._target_estimates_N - products_N, self._norms_N * (_ROUNDING * length)
        weights_n = weights_K.repeat_interleave(self._group_size)
        missing = self._target.minus(
            weighted_sum(self._in_use(), weights_n, block_bytes=BLOCK_BYTES)
        )
        length = missing.norm
        return self._products_with(missing.to(torch.float32)), self._norms_N * (_ROUNDING * length)

    def _in_use(self) -> Vectors:
        return self._used[: self._num_used * self._group_size]

    def _places(self, position: int) -> slice:
        return slice(position * self._group_size, (position + 1) * self._group_size)

    def _products_with(self, gradient: LayerGradient) -> Tensor:
        """Products of each atom with one gradient, in its precision; N."""
        products_n = alignments(self._gradients, gradient, block_bytes=BLOCK_BYTES // 2)
        if self._group_size == 1:
            return products_n
        missing = -len(products_n) % self._group_size
        return functional.pad(products_n, (0, missing)).reshape(-1, self._group_size).sum(dim=1)

    def _squares_and_norms(self) -> tuple[Tensor, Tensor]:
        """Each atom's squared norm, float64, and its examples' norms summed, float32."""
        num_atoms = -(-len(self._gradients) // self._group_size)
        row_bytes = self._group_size * (8 * self._gradients.width + 16 * self._group_size)
        squares, norms = [], []
        for atoms in row_blocks(num_atoms, row_bytes, BLOCK_BYTES):
            atoms_M = torch.arange(atoms.start, atoms.stop, device=self._gradients.device)
            examples_MG = self._examples(atoms_M).map(
                lambda factor: factor.reshape(-1, self._group_size, factor.shape[1])
            )
            products_MGG = products(examples_MG, examples_MG)
            squares.append(products_MGG.sum(dim=(1, 2)))
            norms.append(products_MGG.diagonal(dim1=1, dim2=2).sqrt().sum(dim=1).float())
        return torch.cat(squares), torch.cat(norms)

    def _examples(self, atoms_M: Tensor) -> Vectors:
        """The atoms' examples, M G in float64; the last atom's missing ones have no error."""
        if self._group_size == 1:
            return self._gradients[atoms_M].to(torch.float64)
        members_G = torch.arange(self._group_size, device=atoms_M.device)
        ids_n = (atoms_M[:, None] * self._group_size + members_G).flatten()
        last = len(self._gradients) - 1
        examples = self._gradients[ids_n.clamp(max=last)].to(torch.float64)
        return replace(examples, errors_NC=examples.outer_NC * (ids_n <= last)[:, None])


def _rows_are_faster(gradients: Vectors, capacity: int) -> bool:
    multiplied = gradients[:0].outer_NC.shape[1] * gradients.features_ND.shape[1]
    fits = 4 * capacity * len(gradients) <= _ROWS_BYTES
    return fits and _PRODUCTS_PER_READ * (gradients.width + capacity / 2) <= multiplied
