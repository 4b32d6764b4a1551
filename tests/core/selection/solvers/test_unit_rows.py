from __future__ import annotations

import pytest
import torch

from lipt.core.selection.solvers.unit_rows import exact_bits, unit_rows


def random_rows(num_rows: int, width: int) -> torch.Tensor:
    return torch.randn(num_rows, width, generator=torch.Generator().manual_seed(num_rows))


def test_rows_have_length_one_and_zeros_stay() -> None:
    rows = unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0], [-5.0, 0.0]]), bits=20)
    expected = torch.tensor([[0.6, 0.8], [0.0, 0.0], [-1.0, 0.0]])
    torch.testing.assert_close(rows, expected, rtol=0, atol=2.0**-21)
    assert ((rows.double() * 2**20) % 1 == 0).all()


@pytest.mark.parametrize("factor", [1e-38, 1e-20, 1.0, 1e37])
def test_length_does_not_matter(factor: float) -> None:
    rows = random_rows(5, 8)
    torch.testing.assert_close(unit_rows(rows * factor, 18), unit_rows(rows, 18), rtol=0, atol=1e-5)


@pytest.mark.parametrize("num_rows", [1, 100, 20_000])
def test_sums_of_products_are_exact_in_any_order(num_rows: int) -> None:
    bits = exact_bits(num_rows)
    rows = unit_rows(random_rows(num_rows, 24), bits).double()
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(0))
    total, shuffled = rows.sum(dim=0), rows[order].sum(dim=0)
    assert torch.equal(total, shuffled)
    assert torch.equal((rows @ total)[:50], (rows[:50] * shuffled).flip(1).sum(dim=1))


def test_the_grid_leaves_room_for_the_largest_sum() -> None:
    for num_rows in (1, 1_000, 50_000, 1_281_167, 10**8):
        # Gains of pairs: up to 4 (num_rows + 1), as multiples of 4**-bits.
        assert 4 * (num_rows + 1) * 4 ** exact_bits(num_rows) <= 2**53
    assert exact_bits(1_281_167) == 14
    assert exact_bits(1) == 22
