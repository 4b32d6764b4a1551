"""Subsets that no strategy has chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lipt.common.subsets.digest import subset_digest
from lipt.trainer.subsets.subset import Subset


def made_up_subset(
    indices: Sequence[int],
    weights: Sequence[float] | None = None,
    *,
    fingerprint: str = "f" * 64,
    strategy: str = "made-up",
    **manifest: Any,
) -> Subset:
    """These examples, each of weight 1 where no weights are given."""
    indices_N = np.array(indices, np.int64)
    weights_N = np.array([1.0] * len(indices_N) if weights is None else weights, np.float32)
    digest = subset_digest(indices_N, weights_N)
    return Subset(indices_N, weights_N, fingerprint, digest, strategy, manifest)
