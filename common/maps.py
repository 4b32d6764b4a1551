"""Maps: examples as points on a plane, for the coordinator's page.

Principal component analysis is deterministic, and its distances are those of the features along two
axes.

Shapes: N examples of the data, M drawn, D features.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.determinism import derive_seed

_MOST_AT_RANDOM = 1000
# Limit for all subsets together, beyond the random ones.
_MOST_CHOSEN = 500
# On difficult data, a sixth of all labels may be suspected.
MOST_SUSPECTS = 100


def rows_to_draw(
    num_examples: int, subsets: Sequence[NDArray[np.int64]], suspects: Sequence[int], seed: int
) -> Tensor:
    """Rows of a map, ascending: a random sample, extra rows of each subset, the worst suspects."""
    order = np.random.default_rng(derive_seed(seed, "map")).permutation(num_examples)
    share = _MOST_CHOSEN // max(len(subsets), 1)
    parts = [order[:_MOST_AT_RANDOM], np.array(suspects[:MOST_SUSPECTS], np.int64)]
    parts += [order[np.isin(order, subset)][:share] for subset in subsets]
    return torch.from_numpy(np.unique(np.concatenate(parts)))


def principal_components(features_MD: Tensor) -> Tensor:
    """The points along the two directions of largest variance; float64, M x 2."""
    centred_MD = features_MD.double() - features_MD.double().mean(dim=0)
    _, directions_DD = torch.linalg.eigh(centred_MD.T @ centred_MD)
    found = (centred_MD @ directions_DD.flip(1))[:, :2]
    places_M2 = centred_MD.new_zeros(len(centred_MD), 2)
    places_M2[:, : found.shape[1]] = found
    return places_M2


def scaled_to_box(places_M2: Tensor, *, width: float, height: float, margin: float) -> Tensor:
    """Scale points to a centred rectangle with a margin, equally on both axes."""
    places_M2 = places_M2.double()
    low_2, high_2 = places_M2.amin(dim=0), places_M2.amax(dim=0)
    size_2 = torch.tensor([width, height], dtype=torch.float64)
    scale = float(((size_2 - 2 * margin) / (high_2 - low_2).clamp(min=1e-9)).amin())
    return (places_M2 - (low_2 + high_2) / 2) * scale + size_2 / 2
