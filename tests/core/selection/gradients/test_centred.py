"""Centred rows: distances as before, with the digits in which rows differ."""

from __future__ import annotations

import pytest
import torch

from lipt.core.selection.gradients.centred import centred

EVERY = slice(None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_distances_by_hand(dtype: torch.dtype) -> None:
    # 1000 and the powers of two up to it have all their digits in half precision.
    factor = torch.tensor([[1000.0, 0.0], [1000.0, 4.0], [1003.0, 4.0]], dtype=dtype)
    rows = centred(factor)
    # The middle one: 4 and 3 from the others, which are 5 apart.
    assert rows.squares_N.tolist() == [16.0, 0.0, 9.0]
    expected = [[0.0, 16.0, 25.0], [16.0, 0.0, 9.0], [25.0, 9.0, 0.0]]
    assert rows.squared_distances(EVERY, EVERY).tolist() == expected
    assert rows.take(torch.tensor([2, 0])).squared_distances(EVERY, EVERY)[0, 1] == 25.0
    # Halves take no more room than they did.
    assert (rows.values_ND is factor) == (dtype == torch.float16)
    assert rows.rows(EVERY).dtype == torch.float32


def test_a_far_row_is_not_subtracted_from_the_others() -> None:
    # The mean would be 1e3 from all: squared, 1e6 and the 1e-6 that they differ by.
    factor = torch.arange(100.0)[:, None] * 1e-3
    factor[7] = 1e5
    rows = centred(factor)
    assert rows.squared_distances(slice(10, 11), slice(11, 12)).item() == pytest.approx(1e-6, 1e-3)


def test_rows_are_not_modified() -> None:
    for dtype in (torch.float16, torch.float32):
        factor = torch.arange(6, dtype=dtype).reshape(3, 2)
        rows = centred(factor)
        rows.squared_distances(slice(0, 2), torch.tensor([1, 2]))
        assert factor.flatten().tolist() == [0, 1, 2, 3, 4, 5]
