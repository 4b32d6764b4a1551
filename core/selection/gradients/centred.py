"""Centred factors: rows less a common row, which keeps the digits in which rows differ.

The squared distance |a|^2 + |b|^2 - 2 a.b of two rows loses what is small against their
norms: of a model that has hardly been trained, all errors are nearly the same. Distances do
not change when a common row is subtracted, and the norms then are those of what differs.

Any row will do; the nearer to most, the better. So one of them is taken that lies in the
middle of a few, and not the mean: of a model that is nearly always right most errors are
next to nothing, and the mean, which is that of the few others, is far from all of them.

Shapes: N rows, n and m of them, S of a sample, D columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.gradients.vectors import CACHED_BYTES

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
