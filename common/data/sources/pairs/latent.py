"""Latent classes: of each pair, by what classes are called or by where images lie.

Named classes are zero-shot: each image's is the text that it is most alike. Without names they are
clusters: spherical k-means on a sample of the images, 256 for each cluster at the most, and then
every image's nearest centre. Rows are looked at in blocks.

Shapes: N pairs, B of a block, C classes, M of the sample, D features.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.determinism.kernels import pinned_kernels

_SAMPLED_PER_CLUSTER = 256
_ROUNDS = 20
_BLOCK_VALUES = 2**24


def nearest(rows_ND: Tensor, centres_CD: Tensor) -> Tensor:
    """The centre with the largest inner product, the first where several have it; N, int64."""
    labels_N = torch.empty(len(rows_ND), dtype=torch.int64)
    step = max(1, _BLOCK_VALUES // max(centres_CD.shape))
    with pinned_kernels(1):
        for start in range(0, len(rows_ND), step):
            similarity_BC = rows_ND[start : start + step] @ centres_CD.T
            labels_N[start : start + step] = similarity_BC.argmax(dim=1)
    return labels_N


def clusters(rows_ND: Tensor, num_clusters: int) -> Tensor:
    """Centres of clusters, C x D of length 1, the same for the same rows.

    Args:
        rows_ND: of length 1.
        num_clusters: C.
    """
    generator = torch.Generator().manual_seed(0)
    size = min(len(rows_ND), _SAMPLED_PER_CLUSTER * num_clusters)
    sample_M = torch.randperm(len(rows_ND), generator=generator)[:size].sort().values
    sample_MD = rows_ND[sample_M]
    with pinned_kernels(1):
        centres_CD = _spread(sample_MD, num_clusters, generator)
        for _ in range(_ROUNDS):
            labels_M = nearest(sample_MD, centres_CD)
            sums_CD = torch.zeros_like(centres_CD).index_add_(0, labels_M, sample_MD)
            # A centre that nothing is nearest to stays where it is.
            found_C = sums_CD.norm(dim=1) > 0
            centres_CD[found_C] = functional.normalize(sums_CD[found_C], dim=1)
    return centres_CD


def _spread(rows_MD: Tensor, num_clusters: int, generator: torch.Generator) -> Tensor:
    """Rows to begin with, each drawn by its squared distance from those before (k-means++)."""
    chosen = [int(torch.randint(len(rows_MD), (1,), generator=generator))]
    distances_M = torch.full((len(rows_MD),), torch.inf)
    while len(chosen) < num_clusters:
        to_last_M = (2 - 2 * rows_MD @ rows_MD[chosen[-1]]).clamp(min=0)
        distances_M = torch.minimum(distances_M, to_last_M)
        # What is left are copies: any will do.
        weights_M = distances_M if bool(distances_M.sum() > 0) else torch.ones_like(distances_M)
        chosen.append(int(weights_M.multinomial(1, generator=generator)))
    return rows_MD[chosen].clone()
