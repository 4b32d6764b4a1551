"""Baselines: mixtures that need no merged learners.

Each returns K shares of sum 1, float64. The closed form is in `densities`.

Shapes: N target examples, M examples of a source, D features, K sources.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

# The exponent of sizes in temperature sampling: small sources get more than their part.
TEMPERED = 0.7
_MOST_COSINES = 2**24


def by_size(sizes_K: Tensor, exponent: float = 1.0) -> Tensor:
    """Shares in proportion to a power of the sources' sizes."""
    powers_K = sizes_K.double() ** exponent
    return powers_K / powers_K.sum()


def lone_ranking(losses_K: Tensor) -> Tensor:
    """The softmax of lone learners' negative losses on the target."""
    return (-losses_K.double()).softmax(dim=0)


def nearest_sources(sources: Sequence[Tensor], features_ND: Tensor) -> Tensor:
    """The share of target examples whose nearest example is in each source.

    By the cosine of features, centred at their mean over all sources; `sources` are M x D each.
    """
    pool_XD = torch.cat(list(sources))
    mean_D = pool_XD.mean(dim=0)
    owners_X = torch.arange(len(sources)).repeat_interleave(torch.tensor([*map(len, sources)]))
    pool_DX = functional.normalize(pool_XD - mean_D, dim=1).T
    nearest = [
        (functional.normalize(part_BD - mean_D, dim=1) @ pool_DX).argmax(dim=1)
        for part_BD in torch.split(features_ND, max(1, _MOST_COSINES // len(pool_XD)))
    ]
    counts_K = owners_X[torch.cat(nearest)].bincount(minlength=len(sources))
    return counts_K.double() / len(features_ND)


def greedy_shares(losses_K: Tensor, loss_of: Callable[[Tensor], float]) -> Tensor:
    """The greedy soup's own shares: learners enter an equal mean unless they raise its loss.

    The best learner alone is first, then the others in order of their losses on the target.
    """
    counts_K, least = torch.zeros(len(losses_K), dtype=torch.float64), float("inf")
    for source in losses_K.argsort(stable=True).tolist():
        tried_K = counts_K.clone()
        tried_K[source] = 1
        if (loss := loss_of(tried_K / tried_K.sum())) <= least:
            counts_K, least = tried_K, loss
    return counts_K / counts_K.sum()
