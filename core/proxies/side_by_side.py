"""Side by side: features of several kinds of the same examples, which are read once.

Shapes: N examples, B of a block, D features of all kinds together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lipt.common.data import Dataset
from lipt.common.inputs.stored import Stored
from lipt.common.signals.blocks import row_blocks
from lipt.common.signals.passes import require_finite_rows
from lipt.core.signals.stored import STORAGE_LIMITS, StorageLimits

# Enough of them that loading each model's weights for a block is little.
_BLOCK_BYTES = 8 * 1024**2
_MIN_BLOCK = 1024

# Features of the examples with these ids, as they are stored: B x d, on the CPU.
Extractor = Callable[[Tensor, Stored], Tensor]


def side_by_side(
    extractors: Sequence[Extractor],
    dataset: Dataset,
    ids_N: Tensor,
    *,
    on_progress: Callable[[int, int], None],
    limits: StorageLimits = STORAGE_LIMITS,
) -> Tensor:
    """All features of some examples; N x D, float32 or float16.

    Args:
        extractors: at least one; their columns are in this order.
        dataset: where the examples come from.
        ids_N: the examples, at least one.
        on_progress: told how many of them are done.
        limits: what is kept in float32.

    Raises:
        SignalsError: features are not finite; names the first ids.
    """
    row_bytes = dataset.inputs.num_bytes
    block_bytes = max(_BLOCK_BYTES, _MIN_BLOCK * row_bytes)
    features_ND: Tensor | None = None
    for rows in row_blocks(len(ids_N), row_bytes, block_bytes):
        ids_B = ids_N[rows]
        examples_B = dataset.examples(ids_B)
        block_BD = torch.cat([extract(ids_B, examples_B) for extract in extractors], dim=1)
        if features_ND is None:
            shape = (len(ids_N), block_BD.shape[1])
            features_ND = torch.empty(shape, dtype=limits.feature_dtype(math.prod(shape)))
        features_ND[rows] = block_BD.to(features_ND.dtype)
        finite_B = features_ND[rows].isfinite().all(dim=-1)
        require_finite_rows(finite_B, ids_B, "features")
        on_progress(rows.stop, len(ids_N))
    if features_ND is None:
        raise ValueError("there are no examples to take features of")
    return features_ND
