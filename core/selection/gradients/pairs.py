"""Similarities of all pairs of examples: distances or cosines of their vectors, in blocks.

In float32, for solvers that read N x N pairs. Two vectors whose difference float32 cannot
resolve are taken as equal. Otherwise the distance of duplicates would be sqrt(rounding)
instead of 0, a thousand times more than the rounding itself, and strategies would pay for
examples that bring nothing new.

Distances are made of differences of the factors, so that gradients that are nearly equal
keep theirs. With f_i = [h_i, 1], A = |e_i - e_j|^2 and B = |h_i - h_j|^2,

    |e_i (x) f_i - e_j (x) f_j|^2 = A (|f_i|^2 + |f_j|^2) / 2 + B (|e_i|^2 + |e_j|^2) / 2
        - A B / 2 + (|e_i|^2 - |e_j|^2) (|f_i|^2 - |f_j|^2) / 2,

for the difference is (e_i - e_j) (x) (f_i + f_j) / 2 + (e_i + e_j) / 2 (x) (f_i - f_j). A and B
do not change when all errors, or all features, are shifted: they are taken of centred ones.

Any row centres them; the nearer to most, the better. So one is taken that lies in the
middle of a few, and not the mean: of a model that is nearly always right most errors are
next to nothing, and the mean, which is that of the few others, is far from all of them.

Shapes: N examples, n and m of them, S of a sample, D columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.gradients.vectors import CACHED_BYTES, Vectors, products, squared_norms

# What a float32 product of some thousand terms resolves, relative to the squared norms.
RESOLUTION = 2.0**-20


class PairwiseSimilarity(Protocol):
    """Symmetric similarities of N examples; none is larger than that of equal examples."""

    @property
    def lowest(self) -> float:
        """No similarity is smaller."""
        ...

    @property
    def highest(self) -> float:
        """No similarity is larger."""
        ...

    @property
    def weights_N(self) -> Tensor | None:
        """How well each example represents others of the same similarity; alike where None."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the examples' vectors are."""
        ...

    @property
    def width(self) -> int:
        """How many numbers stand for one example."""
        ...

    def __len__(self) -> int: ...

    def block(self, rows: slice | Tensor, columns: slice | Tensor) -> Tensor:
        """The similarities of some examples with others; n x m float32."""
        ...

    def take(self, ids_n: Tensor) -> Self:
        """The similarities among some of the examples, with the same bounds."""
        ...


@dataclass(frozen=True)
class _Norms:
    """Squared norms of a pair of factors, as the distance of gradients needs them.

    error_halves_N, feature_halves_N: |e_i|^2 / 2 and |f_i|^2 / 2, float32.
    offsets_N4, mirrored_N4: row i of one times row j of the other is
        (|e_i|^2 - |e_j|^2) (|f_i|^2 - |f_j|^2), float32.
    """

    error_halves_N: Tensor
    feature_halves_N: Tensor
    offsets_N4: Tensor
    mirrored_N4: Tensor

    def take(self, ids_n: Tensor) -> _Norms:
        return _Norms(
            self.error_halves_N[ids_n],
            self.feature_halves_N[ids_n],
            self.offsets_N4[ids_n],
            self.mirrored_N4[ids_n],
        )


@dataclass(frozen=True)
class Proximity:
    """Minus the Euclidean distance, 0 for equal vectors.

    features, errors, norms: of the vectors; no errors where they have one factor.
    limits_N: squared distances up to the sum of two of these are not resolved, float32.
    """

    features: Centred
    errors: Centred | None
    norms: _Norms | None
    limits_N: Tensor
    lowest: float
    highest: float = 0.0

    def __len__(self) -> int:
        return len(self.limits_N)

    @property
    def weights_N(self) -> None:
        """All represent alike."""
        return None

    @property
    def device(self) -> torch.device:
        """Where the vectors are."""
        return self.limits_N.device

    @property
    def width(self) -> int:
        """How many numbers stand for one vector."""
        num_errors = 0 if self.errors is None else self.errors.values_ND.shape[1]
        return self.features.values_ND.shape[1] + num_errors

    def block(self, rows: slice | Tensor, columns: slice | Tensor) -> Tensor:
        """See `PairwiseSimilarity`."""
        squares_nm = self.features.squared_distances(rows, columns)
        if self.errors is not None and self.norms is not None:
            apart_nm = self.errors.squared_distances(rows, columns)
            halves_N = self.norms.error_halves_N
            sums_nm = halves_N[rows, None] + halves_N[columns]
            squares_nm.mul_(sums_nm.sub_(apart_nm, alpha=0.5))
            halves_N = self.norms.feature_halves_N
            torch.add(halves_N[rows, None], halves_N[columns], out=sums_nm)
            squares_nm.addcmul_(apart_nm, sums_nm)
            offsets_n4, mirrored_m4 = self.norms.offsets_N4[rows], self.norms.mirrored_N4[columns]
            squares_nm.addmm_(offsets_n4, mirrored_m4.T, alpha=0.5)
        # Below the resolution is 0; so is what rounding made negative.
        unresolved_nm = squares_nm <= self.limits_N[rows, None] + self.limits_N[columns]
        return squares_nm.masked_fill_(unresolved_nm, 0.0).sqrt_().neg_()

    def take(self, ids_n: Tensor) -> Proximity:
        """See `PairwiseSimilarity`."""
        return replace(
            self,
            features=self.features.take(ids_n),
            errors=None if self.errors is None else self.errors.take(ids_n),
            norms=None if self.norms is None else self.norms.take(ids_n),
            limits_N=self.limits_N[ids_n],
        )


@dataclass(frozen=True)
class ScaledCosine:
    """(1 + cosine) / 2: 1 for the same direction, 0 for opposite ones.

    vectors: of the N examples.
    inverse_norms_N: one over their norms, float32.
    """

    vectors: Vectors
    inverse_norms_N: Tensor
    lowest: float = 0.0
    highest: float = 1.0

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def weights_N(self) -> None:
        """All represent alike."""
        return None

    @property
    def device(self) -> torch.device:
        """Where the vectors are."""
        return self.vectors.device

    @property
    def width(self) -> int:
        """How many numbers stand for one vector."""
        return self.vectors.width

    def block(self, rows: slice | Tensor, columns: slice | Tensor) -> Tensor:
        """See `PairwiseSimilarity`."""
        left, right = (self.vectors[ids].to(torch.float32) for ids in (rows, columns))
        products_nm = products(left, right)
        # Their product first: one after the other would round i, j differently from j, i.
        products_nm.mul_(self.inverse_norms_N[rows, None] * self.inverse_norms_N[columns])
        products_nm.masked_fill_(products_nm >= 1 - RESOLUTION, 1.0).clamp_(min=-1.0)
        return products_nm.add_(1).mul_(0.5)

    def take(self, ids_n: Tensor) -> ScaledCosine:
        """See `PairwiseSimilarity`."""
        inverse_norms_n = self.inverse_norms_N[ids_n]
        return replace(self, vectors=self.vectors[ids_n], inverse_norms_N=inverse_norms_n)


@dataclass(frozen=True)
class Weighed:
    """Similarities of examples of which some represent others better than their like.

    similarity: of the N examples, all alike.
    weights_N: float32.
    lowest, highest: bounds of weight times similarity.
    """

    similarity: PairwiseSimilarity
    weights_N: Tensor
    lowest: float
    highest: float

    def __len__(self) -> int:
        return len(self.similarity)

    @property
    def device(self) -> torch.device:
        """Where the vectors are."""
        return self.similarity.device

    @property
    def width(self) -> int:
        """How many numbers stand for one vector."""
        return self.similarity.width

    def block(self, rows: slice | Tensor, columns: slice | Tensor) -> Tensor:
        """See `PairwiseSimilarity`; without the weights, so that it is symmetric."""
        return self.similarity.block(rows, columns)

    def take(self, ids_n: Tensor) -> Weighed:
        """See `PairwiseSimilarity`."""
        taken = self.similarity.take(ids_n)
        return replace(self, similarity=taken, weights_N=self.weights_N[ids_n])


def proximity(vectors: Vectors) -> Proximity:
    """Minus the Euclidean distance.

    No pair is farther apart than twice the largest distance from any one example.
    """
    features = centred(vectors.features_ND)
    errors = None if vectors.errors_NC is None else centred(vectors.errors_NC)
    scales_N, norms = features.squares_N, None
    if vectors.errors_NC is not None and errors is not None:
        norms = _norms(
            squared_norms(Vectors(vectors.errors_NC)),
            squared_norms(Vectors(vectors.features_ND)) + vectors.bias,
        )
        scales_N = features.squares_N * norms.error_halves_N
        scales_N += errors.squares_N * norms.feature_halves_N
    unbounded = Proximity(features, errors, norms, RESOLUTION * scales_N, -torch.inf)
    farthest = min(
        float(unbounded.block(slice(0, 1), rows).min())
        for rows in row_blocks(len(vectors), 4 * vectors.width)
    )
    return replace(unbounded, lowest=2 * farthest)


def scaled_cosine(vectors: Vectors) -> ScaledCosine:
    """(1 + cosine) / 2; 1/2 for a vector that is zero, or whose square underflows."""
    return ScaledCosine(vectors, _inverse_roots(squared_norms(vectors).float()))


def weighing(similarity: PairwiseSimilarity, weights_N: Tensor) -> Weighed:
    """The same similarities, counted as much as the weight of who represents.

    Args:
        similarity: none below 0, so that a larger weight is never worse; without weights.
        weights_N: not negative.
    """
    return Weighed(
        similarity,
        weights_N.float(),
        lowest=similarity.lowest * float(weights_N.min()),
        highest=similarity.highest * float(weights_N.max()),
    )


def represented(
    similarity: PairwiseSimilarity, rows: slice | Tensor, columns: slice | Tensor
) -> Tensor:
    """How well some examples represent others: weight times similarity; n x m float32."""
    return weighted(similarity, similarity.block(rows, columns), rows)


def weighted(
    similarity: PairwiseSimilarity, similarities_nm: Tensor, rows: slice | Tensor
) -> Tensor:
    """The similarities of some examples times their weights; not copied without weights."""
    if similarity.weights_N is None:
        return similarities_nm
    return similarities_nm * similarity.weights_N[rows, None]


def _norms(error_squares_N: Tensor, feature_squares_N: Tensor) -> _Norms:
    """From float64, less what most of them are: differences of norms keep their digits."""
    u_N = error_squares_N - error_squares_N.median()
    v_N = feature_squares_N - feature_squares_N.median()
    ones_N = torch.ones_like(u_N)
    return _Norms(
        error_halves_N=(error_squares_N / 2).float(),
        feature_halves_N=(feature_squares_N / 2).float(),
        offsets_N4=torch.stack([u_N * v_N, ones_N, -u_N, -v_N], dim=1).float(),
        mirrored_N4=torch.stack([ones_N, u_N * v_N, v_N, u_N], dim=1).float(),
    )


def _inverse_roots(squares_n: Tensor) -> Tensor:
    """1 / sqrt, and 0 for what is too small for products of two of these to be finite."""
    tiny = torch.finfo(squares_n.dtype).tiny
    return squares_n.rsqrt().masked_fill(squares_n < tiny, 0.0)


# Evenly spaced rows, of which the one in the middle is near enough to most of all.
_NUM_SAMPLED = 16


@dataclass(frozen=True)
class Centred:
    """Rows less a common row.

    values_ND: float32, less that row already; or in half precision, as stored, so that they
        take no more room: the row is then subtracted from every block that is read.
    centre_D: what is still to be subtracted, float32; None where nothing is.
    squares_N: squared norms of the centred rows, float32.
    """

    values_ND: Tensor
    centre_D: Tensor | None
    squares_N: Tensor

    def rows(self, ids: slice | Tensor) -> Tensor:
        """Some of the centred rows; n x D float32. A slice may be a view."""
        values_nD = self.values_ND[ids]
        return values_nD if self.centre_D is None else values_nD.float().sub_(self.centre_D)

    def squared_distances(self, rows: slice | Tensor, columns: slice | Tensor) -> Tensor:
        """|a_i - a_j|^2 but for rounding, which may leave less than 0; n x m float32."""
        sums_nm = self.squares_N[rows, None] + self.squares_N[columns]
        return sums_nm.addmm_(self.rows(rows), self.rows(columns).T, alpha=-2)

    def take(self, ids_n: Tensor) -> Centred:
        """Some of the rows, less the same row as before."""
        return replace(self, values_ND=self.values_ND[ids_n], squares_N=self.squares_N[ids_n])


def centred(factor_ND: Tensor) -> Centred:
    """Rows of any floating type, less one of them that is near to most."""
    num_rows, num_columns = factor_ND.shape
    centre_D = _middle(factor_ND[:: -(-num_rows // _NUM_SAMPLED)].float())
    is_half = factor_ND.dtype.itemsize < torch.float32.itemsize
    values_ND = factor_ND if is_half else (factor_ND - centre_D).float()
    result = Centred(values_ND, centre_D if is_half else None, centre_D)
    squares = [
        result.rows(rows).square().sum(dim=-1)
        for rows in row_blocks(num_rows, 8 * num_columns, CACHED_BYTES)
    ]
    return replace(result, squares_N=torch.cat(squares))


def _middle(rows_SD: Tensor) -> Tensor:
    """The row whose distances from all sum to the least, the first of equals; D."""
    distances_SS = torch.cdist(rows_SD, rows_SD, compute_mode="donot_use_mm_for_euclid_dist")
    return rows_SD[distances_SS.sum(dim=1).argmin()]
