"""Sample: which examples a map draws.

Some thousand points are what an eye and a page can take. They are a random sample, with enough
of every subset in it, and the suspects of a diagnosis.

Shapes: N examples of the data, M that are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.determinism.seeding import derive_seed

_MOST_AT_RANDOM = 1000
# Of all subsets together, beyond those that are drawn at random.
_MOST_CHOSEN = 500
# On data that is only hard, a sixth of all labels may be suspected.
MOST_SUSPECTS = 100


def rows_to_draw(
    num_examples: int, subsets: Sequence[NDArray[np.int64]], suspects: Sequence[int], seed: int
) -> Tensor:
    """The rows of a map, ascending: a random sample, more of each subset, the worst suspects.

    Args:
        num_examples: N.
        subsets: the rows of each.
        suspects: rows, the worst first.
        seed: decides the sample.

    Returns:
        int64, M.
    """
    order = np.random.default_rng(derive_seed(seed, "map")).permutation(num_examples)
    share = _MOST_CHOSEN // max(len(subsets), 1)
    parts = [order[:_MOST_AT_RANDOM], np.array(suspects[:MOST_SUSPECTS], np.int64)]
    parts += [order[np.isin(order, subset)][:share] for subset in subsets]
    return torch.from_numpy(np.unique(np.concatenate(parts)))
