"""Made-up rows of columns."""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.common.data.sources.rows import ColumnRows
from lipt.common.inputs.specs import Column, ColumnType

TOKENS = Column("tokens", ColumnType.INT16, (2,), num_values=9)
SIZES = Column("sizes", ColumnType.FLOAT32, (), standardized=True)


def column_rows(**tensors: Tensor) -> ColumnRows:
    """Three rows, a label each; some tensors in place of others."""
    given = {
        "tokens": torch.tensor([[1, 2], [3, 4], [5, 0]], dtype=torch.int16),
        "sizes": torch.tensor([1.0, 2.0, 6.0]),
        **tensors,
    }
    return ColumnRows("made", None, torch.tensor([0, 1, 2]), (TOKENS, SIZES), given)
