"""Matching pursuit: orthogonal, with non-negative weights, on inner products alone.

Each round takes the atom that goes along best with what is still missing, then fits all
weights anew. Weights that would turn negative leave DURING the pursuit, so the residual
is always that of the exact non-negative optimum, later choices see the truth, and their
places are filled again. An atom that has left may come back; none is taken twice.

What is missing is estimated for all atoms in single precision and computed in double for
those that the rounding cannot tell apart: so a choice depends neither on block sizes nor
on the order of the atoms, and equal atoms resolve to the lowest number.

The fit minimizes |sum w_i a_i - b|^2 + ridge |w|^2 over w >= 0 from inner products alone. The Gram
matrix G of the vectors in use is kept as a root of its inverse, T with T' T = G^-1: a new
vector costs two products with T and a dropped one a reflection, where a Cholesky factor
would need triangular solves and a chain of rotations. T need not be triangular, so
vectors are dropped from any place.

Shapes: N atoms, K in use, M asked about.
Source: Killamsetty et al. 2021, "GRAD-MATCH" (arXiv:2103.00123), algorithm 2; Pati et al.
    1993, "Orthogonal Matching Pursuit"; Lawson and Hanson 1974,
    "Solving Least Squares Problems", chapter 23, for the step that keeps the weights feasible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lipt.common.signals.blocks import row_blocks

# A residual below this share of the target cannot be seen in weights of single precision.
_REPRODUCED = 1e-7
# The same, of its square: the least that a round has to explain of the target's.
_PROGRESS = 1e-15
# What double precision leaves of a correlation that is zero, as a share of its factors.
_ZERO = 1e-12


class Atoms(Protocol):
    """Vectors that are known by their inner products, some of them in use, by position.

    squares_N: float64 squared norms.
    target_products_N: float64 products with the target.
    target_square: the target's own.
    """

    squares_N: Tensor
    target_products_N: Tensor
    target_square: float

    def use(self, atom: int) -> None:
        """Give an atom the next position."""
        ...

    def drop(self, position: int) -> None:
        """Free a position; the last atom in use takes it."""
        ...

    def products(self, atoms_M: Tensor) -> Tensor:
        """Products of some atoms with all in use, float64; M x K."""
        ...

    def estimate(self, weights_K: Tensor) -> tuple[Tensor, Tensor]:
        """Products of all atoms with the target less the weighted sum of those in use.

        Returns:
            Estimates in any precision and, for each, a bound of how far it is off; N each.
        """
        ...


@dataclass(frozen=True)
class Pursuit:
    """What a pursuit came to.

    atoms_K: int64, in the order of choice.
    weights_K: float64, all positive: the exact optimum for these atoms.
    residual: the norm of what is missing, as a share of the target's.
    exhausted: whether it ended because no atom brings the sum closer to the target.
    """

    atoms_K: Tensor
    weights_K: Tensor
    residual: float
    exhausted: bool


def pursue(atoms: Atoms, *, ridge: float, is_enough: Callable[[Sequence[int]], bool]) -> Pursuit:
    """Approximate the target by few atoms with positive weights.

    Minimizes |sum w_i a_i - b|^2 + ridge s |w|^2, s the mean of the squared norms: the
    same ridge means the same whatever the atoms' scale.

    Args:
        atoms: none of them in use.
        ridge: 0 for none.
        is_enough: told the atoms in use; true ends the pursuit.
    """
    return _Pursuer(atoms, ridge).run(is_enough)


@dataclass(frozen=True)
class _Candidate:
    """An atom that could be taken next.

    missing: its product with what is missing.
    products_K: with the atoms in use.
    """

    atom: int
    missing: float
    products_K: Tensor


class _Pursuer:
    def __init__(self, atoms: Atoms, ridge: float) -> None:
        device = atoms.squares_N.device
        self._atoms = atoms
        self._ridge = ridge * float(atoms.squares_N.mean())
        self._fit = NonNegativeFit(device)
        self._used: list[int] = []
        self._rounds: list[int] = []
        # In use, or tried in vain since the last round that came closer.
        self._closed_N = torch.zeros(len(atoms.squares_N), dtype=torch.bool, device=device)
        self._zeros_N = _ZERO * atoms.target_square**0.5 * atoms.squares_N.sqrt()

    def run(self, is_enough: Callable[[Sequence[int]], bool]) -> Pursuit:
        explained, num_rounds, exhausted = 0.0, 0, False
        while not exhausted:
            if is_enough(self._used):
                if not self._refine():
                    break
                continue
            candidate = None if self._residual() <= _REPRODUCED else self._best()
            if candidate is None:
                exhausted = not self._refine()
                continue
            num_rounds += 1
            if self._take(candidate, num_rounds) and (
                self._fit.explained > explained + _PROGRESS * self._atoms.target_square
            ):
                explained = self._fit.explained
                self._reopen()
        order_K = torch.tensor(self._rounds, dtype=torch.int64).argsort()
        order_K = order_K.to(self._closed_N.device)
        return Pursuit(
            atoms_K=self._in_use()[order_K],
            weights_K=self._fit.weights_K[order_K],
            residual=self._residual(),
            exhausted=exhausted,
        )

    def _best(self) -> _Candidate | None:
        """The atom whose product with what is missing is largest; None where none is positive."""
        estimates_N, rounding_N = self._atoms.estimate(self._fit.weights_K)
        estimates_N.masked_fill_(self._closed_N, -torch.inf)
        surely_N = torch.maximum((estimates_N - rounding_N).max(), self._zeros_N)
        able_M = torch.nonzero(estimates_N + rounding_N >= surely_N).flatten()
        best = None
        for rows in row_blocks(len(able_M), 8 * (1 + len(self._used))):
            found = self._best_of(able_M[rows])
            if best is None or (
                found is not None
                and found.missing > best.missing + float(self._zeros_N[found.atom])
            ):
                best = found
        return best

    def _best_of(self, atoms_M: Tensor) -> _Candidate | None:
        products_MK = self._atoms.products(atoms_M)
        missing_M = self._missing(atoms_M, products_MK)
        zeros_M = self._zeros_N[atoms_M]
        # The lowest number of those that are equal but for rounding.
        place = int((missing_M >= missing_M.max() - zeros_M).int().argmax())
        missing = float(missing_M[place])
        if missing <= float(zeros_M[place]):
            return None
        if len(atoms_M) == 1:
            return _Candidate(int(atoms_M), missing, products_MK[0])
        # Computed alone, so that its last bits do not depend on who else was asked about.
        alone_K = self._atoms.products(atoms_M[place : place + 1])[0]
        return _Candidate(int(atoms_M[place]), missing, alone_K)

    def _missing(self, atoms_M: Tensor, products_MK: Tensor) -> Tensor:
        """Products of some atoms with what is missing, in float64; M."""
        return self._atoms.target_products_N[atoms_M] - products_MK @ self._fit.weights_K

    def _take(self, candidate: _Candidate, num_round: int) -> bool:
        """Fit with one more atom; false where it does not help."""
        atom = candidate.atom
        self._closed_N[atom] = True
        square = float(self._atoms.squares_N[atom]) + self._ridge
        target = float(self._atoms.target_products_N[atom])
        if not self._fit.add(candidate.products_K, square, target):
            return False
        self._atoms.use(atom)
        self._used.append(atom)
        self._rounds.append(num_round)
        self._drop(self._fit.settle())
        return True

    def _refine(self) -> bool:
        """Make the weights exact; whether that took an atom out of use."""
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

    def _reopen(self) -> None:
        self._closed_N.zero_()
        self._closed_N[self._in_use()] = True

    def _residual(self) -> float:
        weights_K = self._fit.weights_K
        # At the optimum the atoms' products with what is missing are the ridge's share.
        targets_K = self._atoms.target_products_N[self._in_use()]
        explained = weights_K @ targets_K + self._ridge * weights_K.square().sum()
        return math.sqrt(max(0.0, 1 - float(explained) / self._atoms.target_square))

    def _in_use(self) -> Tensor:
        return torch.tensor(self._used, dtype=torch.int64, device=self._closed_N.device)


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
