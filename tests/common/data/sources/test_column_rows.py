from __future__ import annotations

import torch

from lipt.common.data.sources.rows import ColumnRows
from lipt.common.inputs.specs import Column, ColumnType


def test_a_row_is_the_bytes_of_its_values_in_the_order_of_the_columns() -> None:
    columns = (Column("a", ColumnType.INT16, (2,)), Column("b", ColumnType.BOOL, ()))
    tensors = {
        "b": torch.tensor([True, False]),
        "a": torch.tensor([[1, 2], [256, -1]], dtype=torch.int16),
    }
    rows = ColumnRows("s", ("x", "y"), torch.tensor([0, 1]), columns, tensors)
    assert rows.raw(0) == b"\x01\x00\x02\x00\x01"
    assert rows.raw(1) == b"\x00\x01\xff\xff\x00"
    assert len(rows) == 2
