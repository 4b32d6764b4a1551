"""Similarities of all pairs of examples: distances or cosines of their vectors, in blocks.

In float32; vectors whose difference that cannot resolve count as equal. Distances use differences
of centred factors, which keeps the digits of nearly equal gradients. With f_i = [h_i, 1], A =
|e_i - e_j|^2 and B = |h_i - h_j|^2,

    |e_i (x) f_i - e_j (x) f_j|^2 = A (|f_i|^2 + |f_j|^2) / 2 + B (|e_i|^2 + |e_j|^2) / 2
        - A B / 2 + (|e_i|^2 - |e_j|^2) (|f_i|^2 - |f_j|^2) / 2.

Shapes: N examples, n and m of them, S of a sample, D columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lipt.core.passes import row_blocks
from lipt.core.selection.vectors import CACHED_BYTES, Vectors, products, squared_norms

# Resolution of a float32 product of some thousand terms, relative to the squared norms.
RESOLUTION = 2.0**-20


@dataclass(frozen=True)
class Proximity:
    """Minus the Euclidean distance, 0 for equal vectors.

    errors, norms: None for vectors of one factor. The norms are |e_i|^2 / 2 and |f_i|^2 / 2, and
    two N x 4: row i of one times row j of the other is (|e_i|^2 - |e_j|^2) (|f_i|^2 - |f_j|^2).
    limits_N: squared distances up to the sum of two of these are not resolved.
    """

    features: Centred
    errors: Centred | None
    norms: tuple[Tensor, Tensor, Tensor, Tensor] | None
    limits_N: Tensor
    lowest: float
    highest: float = 0.0
    weights_N: None = None

    def __len__(self) -> int:
        return len(self.limits_N)

    @property
    def device(self) -> torch.device:
        return self.limits_N.device

    @property
    def width(self) -> int:
        num_errors = 0 if self.errors is None else self.errors.values_ND.shape[1]
        return self.features.values_ND.shape[1] + num_errors

    def block(self, rows: slice | Tensor, columns: slice | Tensor) -> Tensor:
        """The similarities of some examples with others; n x m float32."""
        squares_nm = self.features.squared_distances(rows, columns)
        if self.errors is not None and self.norms is not None:
            error_halves_N, feature_halves_N, offsets_N4, mirrored_N4 = self.norms
            apart_nm = self.errors.squared_distances(rows, columns)
            sums_nm = error_halves_N[rows, None] + error_halves_N[columns]
            squares_nm.mul_(sums_nm.sub_(apart_nm, alpha=0.5))
            torch.add(feature_halves_N[rows, None], feature_halves_N[columns], out=sums_nm)
            squares_nm.addcmul_(apart_nm, sums_nm)
            squares_nm.addmm_(offsets_N4[rows], mirrored_N4[columns].T, alpha=0.5)
        # Distances below the resolution, or negative by rounding, are 0.
        unresolved_nm = squares_nm <= self.limits_N[rows, None] + self.limits_N[columns]
        return squares_nm.masked_fill_(unresolved_nm, 0.0).sqrt_().neg_()

    def take(self, ids_n: Tensor) -> Proximity:
        norms = self.norms
        return replace(
            self,
            features=self.features.take(ids_n),
            errors=None if self.errors is None else self.errors.take(ids_n),
            norms=norms and (norms[0][ids_n], norms[1][ids_n], norms[2][ids_n], norms[3][ids_n]),
            limits_N=self.limits_N[ids_n],
        )


@dataclass(frozen=True)
class ScaledCosine:
    """(1 + cosine) / 2: 1 for the same direction, 0 for opposite ones.

    lowest, highest: bounds of all pairs, times the weights.
    weights_N: weight of each example as a representative; None for equal weights.
    """

    vectors: Vectors
    inverse_norms_N: Tensor
    lowest: float = 0.0
    highest: float = 1.0
    weights_N: Tensor | None = None

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def device(self) -> torch.device:
        return self.vectors.device

    @property
    def width(self) -> int:
        return self.vectors.width

    def block(self, rows: slice | Tensor, columns: slice | Tensor) -> Tensor:
        """Similarities without weights; n x m float32."""
        left, right = (self.vectors[ids].to(torch.float32) for ids in (rows, columns))
        products_nm = products(left, right)
        # Multiply the norms first: one after the other would round i, j differently from j, i.
        products_nm.mul_(self.inverse_norms_N[rows, None] * self.inverse_norms_N[columns])
        products_nm.masked_fill_(products_nm >= 1 - RESOLUTION, 1.0).clamp_(min=-1.0)
        return products_nm.add_(1).mul_(0.5)

    def take(self, ids_n: Tensor) -> ScaledCosine:
        return replace(
            self,
            vectors=self.vectors[ids_n],
            inverse_norms_N=self.inverse_norms_N[ids_n],
            weights_N=None if self.weights_N is None else self.weights_N[ids_n],
        )


PairwiseSimilarity = Proximity | ScaledCosine


def proximity(vectors: Vectors) -> Proximity:
    """Minus the Euclidean distance; no pair is farther apart than twice the first's farthest."""
    features = centred(vectors.features_ND)
    errors = None if vectors.errors_NC is None else centred(vectors.errors_NC)
    scales_N, norms = features.squares_N, None
    if vectors.errors_NC is not None and errors is not None:
        error_squares_N = squared_norms(Vectors(vectors.errors_NC))
        feature_squares_N = squared_norms(Vectors(vectors.features_ND)) + vectors.bias
        # In float64, minus their medians, so that their differences keep their digits.
        u_N = error_squares_N - error_squares_N.median()
        v_N = feature_squares_N - feature_squares_N.median()
        ones_N = torch.ones_like(u_N)
        norms = (
            (error_squares_N / 2).float(),
            (feature_squares_N / 2).float(),
            torch.stack([u_N * v_N, ones_N, -u_N, -v_N], dim=1).float(),
            torch.stack([ones_N, u_N * v_N, v_N, u_N], dim=1).float(),
        )
        scales_N = features.squares_N * norms[0]
        scales_N += errors.squares_N * norms[1]
    unbounded = Proximity(features, errors, norms, RESOLUTION * scales_N, -torch.inf)
    farthest = min(
        float(unbounded.block(slice(0, 1), rows).min())
        for rows in row_blocks(len(vectors), 4 * vectors.width)
    )
    return replace(unbounded, lowest=2 * farthest)


def scaled_cosine(vectors: Vectors) -> ScaledCosine:
    """(1 + cosine) / 2; 1/2 for a vector whose square is 0 in float32."""
    squares_N = squared_norms(vectors).float()
    tiny = torch.finfo(squares_N.dtype).tiny
    return ScaledCosine(vectors, squares_N.rsqrt().masked_fill(squares_N < tiny, 0.0))


def with_weights(similarity: ScaledCosine, weights_N: Tensor) -> ScaledCosine:
    """The same similarities, times non-negative weights of the representatives."""
    return replace(
        similarity,
        weights_N=weights_N.float(),
        lowest=similarity.lowest * float(weights_N.min()),
        highest=similarity.highest * float(weights_N.max()),
    )


def represented(
    similarity: PairwiseSimilarity, rows: slice | Tensor, columns: slice | Tensor
) -> Tensor:
    """Weighted similarities of some examples with others; n x m float32."""
    return weighted(similarity, similarity.block(rows, columns), rows)


def weighted(
    similarity: PairwiseSimilarity, similarities_nm: Tensor, rows: slice | Tensor
) -> Tensor:
    """Similarities times the weights of the rows; not copied without weights."""
    if similarity.weights_N is None:
        return similarities_nm
    return similarities_nm * similarity.weights_N[rows, None]


_NUM_SAMPLED = 16


@dataclass(frozen=True)
class Centred:
    """Rows minus a common row, and their squared norms, float32.

    centre_D: None if values_ND are centred; else values_ND are float16, and centred by block.
    """

    values_ND: Tensor
    centre_D: Tensor | None
    squares_N: Tensor

    def rows(self, ids: slice | Tensor) -> Tensor:
        """Some centred rows; n x D float32, a view where possible."""
        values_nD = self.values_ND[ids]
        return values_nD if self.centre_D is None else values_nD.float().sub_(self.centre_D)

    def squared_distances(self, rows: slice | Tensor, columns: slice | Tensor) -> Tensor:
        """Squared distances, possibly negative by rounding; n x m float32."""
        sums_nm = self.squares_N[rows, None] + self.squares_N[columns]
        return sums_nm.addmm_(self.rows(rows), self.rows(columns).T, alpha=-2)

    def take(self, ids_n: Tensor) -> Centred:
        return replace(self, values_ND=self.values_ND[ids_n], squares_N=self.squares_N[ids_n])


def centred(factor_ND: Tensor) -> Centred:
    """Rows minus the most central of a sample: few large errors would pull the mean away."""
    num_rows, num_columns = factor_ND.shape
    sample_SD = factor_ND[:: -(-num_rows // _NUM_SAMPLED)].float()
    distances_SS = torch.cdist(sample_SD, sample_SD, compute_mode="donot_use_mm_for_euclid_dist")
    # The first of equals.
    centre_D = sample_SD[distances_SS.sum(dim=1).argmin()]
    is_half = factor_ND.dtype.itemsize < torch.float32.itemsize
    values_ND = factor_ND if is_half else (factor_ND - centre_D).float()
    result = Centred(values_ND, centre_D if is_half else None, centre_D)
    squares = [
        result.rows(rows).square().sum(dim=-1)
        for rows in row_blocks(num_rows, 8 * num_columns, CACHED_BYTES)
    ]
    return replace(result, squares_N=torch.cat(squares))
