"""Products, cosines and distances of last-layer gradients, without the gradients.

The gradient of example i is the outer product e_i (x) [h_i, 1], so every product is
(e_i . e_j)(h_i . h_j + 1): two small matrix products in the place of one over C (D + 1)
columns. A layer without a bias has no 1. None of these functions works in blocks: the
caller gives it rows whose n x m products fit.

Two gradients whose difference float32 cannot resolve are taken as equal. Otherwise the
distance of duplicates would be sqrt(rounding) instead of 0, a thousand times more than
the rounding itself, and strategies would pay for examples that bring nothing new.

Shapes: n and m examples, C classes, D features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.coordinator.signals.blocks import BLOCK_BYTES, row_blocks
from lipt.coordinator.signals.signals import Signals

# What a float32 product of some thousand terms resolves, relative to the squared norms.
RESOLUTION = 2.0**-20
_CPU_CACHE_BYTES = 2 * 1024**2


def gradient_rows(signals: Signals, rows: slice | Tensor) -> Signals:
    """What the gradients of some examples are made of, as stored; a slice copies nothing."""
    return Signals(
        errors_NC=signals.errors_NC[rows],
        features_ND=signals.features_ND[rows],
        labels_N=signals.labels_N[rows],
        has_bias=signals.has_bias,
    )


def squared_gradient_norms(signals: Signals) -> Tensor:
    """|e_i|^2 (|h_i|^2 + 1) of all examples, summed in float64; n float32.

    Works in blocks that stay in a CPU's cache, on signals of any size and precision.
    """
    row_bytes = 16 * (signals.errors_NC.shape[1] + signals.features_ND.shape[1])
    block_bytes = _CPU_CACHE_BYTES if signals.features_ND.device.type == "cpu" else BLOCK_BYTES
    blocks = [
        _squared_norms(signals.errors_NC[rows])
        * (_squared_norms(signals.features_ND[rows]) + float(signals.has_bias))
        for rows in row_blocks(len(signals), row_bytes, block_bytes)
    ]
    return torch.cat(blocks).float()


def gradient_products(left: Signals, right: Signals) -> Tensor:
    """<g_i, g_j> of every pair; n x m float32."""
    products_nm = left.features_ND.float() @ right.features_ND.float().T
    if left.has_bias:
        products_nm += 1
    return products_nm.mul_(left.errors_NC.float() @ right.errors_NC.float().T)


def gradient_cosines(left: Signals, right: Signals) -> Tensor:
    """<g_i, g_j> / (|g_i| |g_j|) of every pair, in [-1, 1]; n x m float32.

    0 where a gradient is zero, or its square underflows.
    """
    return cosines_from_products(
        gradient_products(left, right), squared_gradient_norms(left), squared_gradient_norms(right)
    )


def gradient_distances(left: Signals, right: Signals) -> Tensor:
    """|g_i - g_j| of every pair, 0 for equal gradients; n x m float32."""
    return distances_from_products(
        gradient_products(left, right), squared_gradient_norms(left), squared_gradient_norms(right)
    )


def cosines_from_products(products_nm: Tensor, squares_n: Tensor, squares_m: Tensor) -> Tensor:
    """The cosines of vectors whose products and squared norms are known.

    Args:
        products_nm: float32, overwritten with the result.
        squares_n: squared norms of the rows.
        squares_m: squared norms of the columns.
    """
    # Their product first: one after the other would round i, j differently from j, i.
    products_nm.mul_(_inverse_roots(squares_n)[:, None] * _inverse_roots(squares_m))
    return products_nm.masked_fill_(products_nm >= 1 - RESOLUTION, 1.0).clamp_(min=-1.0)


def distances_from_products(products_nm: Tensor, squares_n: Tensor, squares_m: Tensor) -> Tensor:
    """The Euclidean distances of vectors whose products and squared norms are known.

    Args:
        products_nm: float32, overwritten with the result.
        squares_n: squared norms of the rows.
        squares_m: squared norms of the columns.
    """
    sums_nm = squares_n[:, None] + squares_m
    products_nm.mul_(-2).add_(sums_nm)
    # Below the resolution, relative to both norms, is 0; so is what rounding made negative.
    unresolved_nm = products_nm <= sums_nm.mul_(RESOLUTION)
    return products_nm.masked_fill_(unresolved_nm, 0.0).sqrt_()


def _squared_norms(values_nd: Tensor) -> Tensor:
    return values_nd.double().square().sum(dim=-1)


def _inverse_roots(squares_n: Tensor) -> Tensor:
    """1 / sqrt, and 0 for what is too small for products of two of these to be finite."""
    tiny = torch.finfo(squares_n.dtype).tiny
    return squares_n.rsqrt().masked_fill(squares_n < tiny, 0.0)
