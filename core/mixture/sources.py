"""Sources: how many examples of each a mixture means, and which.

Shapes: K sources.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lipt.core.selection.by_source import apportion


def draw(
    source_ids: Sequence[Tensor], shares_K: Tensor, total: int, *, generator: torch.Generator
) -> Tensor:
    """Draw ids by shares, without replacement while a source lasts, then again; shuffled."""
    drawn = []
    for ids, count in zip(source_ids, apportion(shares_K, total), strict=True):
        rounds = [
            torch.randperm(len(ids), generator=generator) for _ in range(-(-count // len(ids)))
        ]
        drawn.append(ids[torch.cat([torch.empty(0, dtype=torch.int64), *rounds])[:count]])
    ids = torch.cat(drawn)
    return ids[torch.randperm(len(ids), generator=generator)]
