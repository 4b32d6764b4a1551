"""Matching pursuit: orthogonal, with non-negative weights, on last-layer gradients.

Each round takes the atom with the largest correlation with the residual, then refits all weights.
Atoms whose weights would turn negative are dropped and replaced. An atom is the gradient e_i (x)
[h_i, 1] of one example, or the sum over consecutive ones. Products with the residual are estimated
in float32, and computed in float64 where rounding could change the choice, which does not depend on
blocks or the order of atoms; ties go to the lowest.

The fit minimizes |sum w_i a_i - b|^2 + ridge |w|^2 over w >= 0 from inner products alone. It keeps
T with T' T = G^-1 for the Gram matrix G of the active atoms.

Shapes: N atoms of G examples, n examples, C classes, D features, K active atoms, M queried atoms.
Source: Killamsetty et al. 2021, "GRAD-MATCH" (arXiv:2103.00123), algorithm 2; Pati et al. 1993,
"Orthogonal Matching Pursuit"; Lawson and Hanson 1974, "Solving Least Squares Problems", chapter 23,
for the step that keeps the weights feasible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from lipt.core.passes import row_blocks
from lipt.core.selection.vectors import LayerGradient, Vectors, alignments, products, weighted_sum

# Above the rounding error of float32 products of some thousand terms, relative to the norms.
_ROUNDING = 2e-6
# Bytes of a block of examples; several copies of it exist at a time.
BLOCK_BYTES = 16 * 1024**2
# Bytes of the stored rows of products.
_ROWS_BYTES = 256 * 1024**2
# A round by rows reads C + D + K / 2 numbers an example. A round by the sum multiplies C D numbers,
# and a core does about 4 products in the time of one read.
_PRODUCTS_PER_READ = 4


class GradientAtoms:
    """Gradients accessed through inner products; active atoms have positions.

    Stores each active atom's row of products, N (C + D) once and N K a round. Or it stores their
    sum as one C x (D + 1) matrix, N C D a round, if that is cheaper.
    """

    def __init__(
        self, gradients: Vectors, target: LayerGradient, *, capacity: int, group_size: int = 1
    ) -> None:
        """Compute the norms and target products of the atoms; at most `capacity` get active."""
        self._gradients, self._target = gradients, target
        self._group_size = group_size
        self.target_square = target.square
        self.target_products_N = self._products_with(target)
        self.squares_N, self._norms_N = self._squares_and_norms()
        # Their examples, grouped by atom.
        self._used = gradients.map(
            lambda factor: factor.new_empty(
                capacity * group_size, factor.shape[1], dtype=torch.float64
            )
        )
        self._used_norms_K = self._norms_N.new_empty(capacity)
        self._num_used = 0
        self._rows_KN: Tensor | None = None
        multiplied = gradients[:0].outer_NC.shape[1] * gradients.features_ND.shape[1]
        if (
            group_size == 1
            and 4 * capacity * len(gradients) <= _ROWS_BYTES
            and _PRODUCTS_PER_READ * (gradients.width + capacity / 2) <= multiplied
        ):
            self._rows_KN = self._norms_N.new_empty(capacity, len(gradients))
            self._target_estimates_N = self.target_products_N.float()

    def use(self, atom: int) -> None:
        """Activate an atom at the next position."""
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
        """Deactivate the atom at a position; the last active one takes the position."""
        last = self._num_used = self._num_used - 1
        self._used.put(self._places(position), self._used[self._places(last)])
        self._used_norms_K[position] = self._used_norms_K[last]
        if self._rows_KN is not None:
            self._rows_KN[position] = self._rows_KN[last]

    def num_examples(self, atoms: Sequence[int]) -> int:
        """Number of examples of some atoms; the last atom may be short."""
        missing = -len(self._gradients) % self._group_size
        last = len(self._gradients) // self._group_size
        return len(atoms) * self._group_size - (missing if missing and last in atoms else 0)

    def products(self, atoms_M: Tensor) -> Tensor:
        """Products of some atoms with all active ones, float64; M x K."""
        products_nm = products(self._examples(atoms_M), self._in_use())
        shape = (len(atoms_M), self._group_size, self._num_used, self._group_size)
        return products_nm.reshape(shape).sum(dim=(1, 3))

    def estimate(self, weights_K: Tensor) -> tuple[Tensor, Tensor]:
        """Products of all atoms with the residual, and error bounds; N float32."""
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
        products_n = alignments(self._gradients, gradient, block_bytes=BLOCK_BYTES // 2)
        missing = -len(products_n) % self._group_size
        return functional.pad(products_n, (0, missing)).reshape(-1, self._group_size).sum(dim=1)

    def _squares_and_norms(self) -> tuple[Tensor, Tensor]:
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
        """The atoms' M G examples in float64; missing examples of the last atom have no error."""
        if self._group_size == 1:
            return self._gradients[atoms_M].to(torch.float64)
        members_G = torch.arange(self._group_size, device=atoms_M.device)
        ids_n = (atoms_M[:, None] * self._group_size + members_G).flatten()
        last = len(self._gradients) - 1
        examples = self._gradients[ids_n.clamp(max=last)].to(torch.float64)
        return replace(examples, errors_NC=examples.outer_NC * (ids_n <= last)[:, None])


# A residual below this share of the target does not show in float32 weights.
_REPRODUCED = 1e-7
# The same squared: the least share of the target's square that a round has to explain.
_PROGRESS = 1e-15
# Rounding of a zero correlation in float64, as a share of its factors.
_ZERO = 1e-12


@dataclass(frozen=True)
class Pursuit:
    """Atoms in the order of choice, int64, and their optimal weights, float64, all positive.

    residual: its norm as a share of the target's.
    """

    atoms_K: Tensor
    weights_K: Tensor
    residual: float


# A candidate atom, its product with the residual, and its products with the active atoms.
_Candidate = tuple[int, float, Tensor]


class Pursuer:
    """Minimizes |sum w_i a_i - b|^2 + ridge s |w|^2, s the mean of the squared norms."""

    def __init__(self, atoms: GradientAtoms, *, ridge: float) -> None:
        device = atoms.squares_N.device
        self._atoms = atoms
        self._ridge = ridge * float(atoms.squares_N.mean())
        self._fit = NonNegativeFit(device)
        self._used: list[int] = []
        self._rounds: list[int] = []
        # Active, or tried in vain since the last round that improved the fit.
        self._closed_N = torch.zeros(len(atoms.squares_N), dtype=torch.bool, device=device)
        self._zeros_N = _ZERO * atoms.target_square**0.5 * atoms.squares_N.sqrt()

    def run(self, budget: int) -> Pursuit:
        """Approximate the target by atoms with positive weights, `budget` examples at most."""
        explained, num_rounds = 0.0, 0
        while True:
            candidate = None
            enough = self._atoms.num_examples(self._used) >= budget
            if not enough and self._residual() > _REPRODUCED:
                candidate = self._best()
            if candidate is None:
                # A dropped atom frees a position for another one.
                if not self._refine():
                    break
                continue
            num_rounds += 1
            if self._take(candidate, num_rounds) and (
                self._fit.explained > explained + _PROGRESS * self._atoms.target_square
            ):
                explained = self._fit.explained
                self._closed_N.zero_()
                self._closed_N[self._in_use()] = True
        order_K = torch.tensor(self._rounds, dtype=torch.int64).argsort()
        order_K = order_K.to(self._closed_N.device)
        return Pursuit(
            atoms_K=self._in_use()[order_K],
            weights_K=self._fit.weights_K[order_K],
            residual=self._residual(),
        )

    def _best(self) -> _Candidate | None:
        estimates_N, rounding_N = self._atoms.estimate(self._fit.weights_K)
        estimates_N.masked_fill_(self._closed_N, -torch.inf)
        surely_N = torch.maximum((estimates_N - rounding_N).max(), self._zeros_N)
        able_M = torch.nonzero(estimates_N + rounding_N >= surely_N).flatten()
        best = None
        for rows in row_blocks(len(able_M), 8 * (1 + len(self._used))):
            candidate = self._best_of(able_M[rows])
            if best is None or (
                candidate is not None
                and candidate[1] > best[1] + float(self._zeros_N[candidate[0]])
            ):
                best = candidate
        return best

    def _best_of(self, atoms_M: Tensor) -> _Candidate | None:
        products_MK = self._atoms.products(atoms_M)
        missing_M = self._missing(atoms_M, products_MK)
        zeros_M = self._zeros_N[atoms_M]
        # The lowest index among values that are equal up to rounding.
        place = int((missing_M >= missing_M.max() - zeros_M).int().argmax())
        missing = float(missing_M[place])
        if missing <= float(zeros_M[place]):
            return None
        if len(atoms_M) == 1:
            return int(atoms_M), missing, products_MK[0]
        # Computed alone, so that its last bits do not depend on the other queried atoms.
        alone_K = self._atoms.products(atoms_M[place : place + 1])[0]
        return int(atoms_M[place]), missing, alone_K

    def _missing(self, atoms_M: Tensor, products_MK: Tensor) -> Tensor:
        return self._atoms.target_products_N[atoms_M] - products_MK @ self._fit.weights_K

    def _take(self, candidate: _Candidate, num_round: int) -> bool:
        """Fit with one more atom; false if the fit does not improve."""
        atom, _, products_K = candidate
        self._closed_N[atom] = True
        square = float(self._atoms.squares_N[atom]) + self._ridge
        target = float(self._atoms.target_products_N[atom])
        if not self._fit.add(products_K, square, target):
            return False
        self._atoms.use(atom)
        self._used.append(atom)
        self._rounds.append(num_round)
        self._drop(self._fit.settle())
        return True

    def _refine(self) -> bool:
        """Make the weights exact; true if an atom was dropped."""
        used_K = self._in_use()
        missing_K = torch.empty_like(self._fit.weights_K)
        for rows in row_blocks(len(used_K), 8 * (1 + len(used_K))):
            missing_K[rows] = self._missing(used_K[rows], self._atoms.products(used_K[rows]))
        positions = self._fit.refine(missing_K - self._ridge * self._fit.weights_K)
        self._drop(positions)
        return bool(positions)

    def _drop(self, positions: Sequence[int]) -> None:
        for position in positions:
            self._atoms.drop(position)
            for values in (self._used, self._rounds):
                values[position] = values[-1]
                values.pop()

    def _residual(self) -> float:
        weights_K = self._fit.weights_K
        # At the optimum, the atoms' products with the residual equal the ridge's share.
        targets_K = self._atoms.target_products_N[self._in_use()]
        explained = weights_K @ targets_K + self._ridge * weights_K.square().sum()
        return math.sqrt(max(0.0, 1 - float(explained) / self._atoms.target_square))

    def _in_use(self) -> Tensor:
        return torch.tensor(self._used, dtype=torch.int64, device=self._closed_N.device)


# A vector counts as dependent when less than this share of its square lies outside the span of the
# active ones. Its weight would be rounding, magnified by the inverse.
_DEPENDENT = 1e-8
_FIRST_CAPACITY = 64


class NonNegativeFit:
    """The active vectors, by position, and their weights, float64; optimal after `settle`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._root = self._empty(_FIRST_CAPACITY, _FIRST_CAPACITY)
        # T b: the optimum without the sign constraint is T' (T b).
        self._rotated_target_K = self._empty(0)
        self.weights_K = self._empty(0)

    def __len__(self) -> int:
        return len(self.weights_K)

    @property
    def explained(self) -> float:
        """The decrease of the objective below |b|^2."""
        return float(self._rotated_target_K.square().sum())

    def add(self, products_K: Tensor, square: float, target: float) -> bool:
        """Activate a vector with weight 0 until `settle`; false, unchanged, if it cannot help."""
        size = len(self)
        root_KK = self._root[:size, :size]
        inside_K = root_KK @ products_K
        outside = square - float(inside_K.square().sum())
        gain = target - float(inside_K @ self._rotated_target_K)
        if outside <= _DEPENDENT * square or gain <= 0:
            return False
        if size == len(self._root):
            grown = self._empty(2 * size, 2 * size)
            grown[:size, :size] = self._root
            self._root = grown
        scale = outside**0.5
        self._root[size, :size] = (root_KK.T @ inside_K) / -scale
        self._root[:size, size] = 0
        self._root[size, size] = 1 / scale
        new = torch.tensor([gain / scale], dtype=torch.float64, device=self._device)
        self._rotated_target_K = torch.cat([self._rotated_target_K, new])
        self.weights_K = torch.cat([self.weights_K, torch.zeros_like(new)])
        return True

    def settle(self) -> list[int]:
        """Move to the optimum, dropping vectors whose weight becomes 0; returns their positions."""
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
        """Remove the weights' rounding, by half the objective's negative slopes; returns drops."""
        root_KK = self._root[: len(self), : len(self)]
        self.weights_K = self.weights_K + root_KK.T @ (root_KK @ correlations_K)
        positions = torch.nonzero(self.weights_K <= 0).flatten().flip(0).tolist()
        for position in positions:
            self.drop(position)
        return positions

    def drop(self, position: int) -> None:
        """Deactivate a vector; the last one takes its position."""
        last = len(self) - 1
        root_KK = self._root[: last + 1, : last + 1]
        column_K = root_KK[:, position].clone()
        root_KK[:, position] = root_KK[:, last]
        root_KK[:, last] = column_K
        # A reflection leaves T' T unchanged. This one zeroes the vector's column except its last
        # entry; the rest is T of the smaller Gram matrix.
        mirror_K = column_K
        mirror_K[last] += torch.linalg.vector_norm(column_K).copysign(column_K[last])
        twice_K = mirror_K * (2 / mirror_K.square().sum())
        root_KK.addr_(twice_K, mirror_K @ root_KK, alpha=-1)
        reflected_K = self._rotated_target_K - twice_K * (mirror_K @ self._rotated_target_K)
        self._rotated_target_K = reflected_K[:last]
        kept_K = self.weights_K.clone()
        kept_K[position] = kept_K[last]
        self.weights_K = kept_K[:last]

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float64, device=self._device)
