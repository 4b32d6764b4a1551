from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.solvers import unit_rows as kmeans
from lipt.core.selection.solvers.unit_rows import exact_bits, spherical_kmeans, unit_rows


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


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bundles(num_each: int) -> Tensor:
    """Three bundles of directions, of any length."""
    centres = torch.eye(3).repeat_interleave(num_each, dim=0)
    rows = centres + 0.2 * torch.randn(centres.shape, generator=generator(5))
    return rows * torch.linspace(0.1, 10, len(rows))[:, None]


@pytest.mark.parametrize("seed", range(5))
def test_finds_directions_that_are_apart(seed: int) -> None:
    found = spherical_kmeans(bundles(20), 3, generator=generator(seed)).reshape(3, 20)
    assert (found == found[:, :1]).all()
    assert len(found[:, 0].unique()) == 3


def test_every_row_is_nearest_to_its_own_mean_direction() -> None:
    rows = torch.randn(120, 4, generator=generator(1))
    found = spherical_kmeans(rows, 5, generator=generator())
    unit = functional.normalize(rows.double(), dim=1)
    centres = torch.stack([unit[found == cluster].sum(dim=0) for cluster in range(5)])
    cosines = unit @ functional.normalize(centres, dim=1).T
    own = cosines.gather(1, found[:, None])[:, 0]
    assert (own >= cosines.amax(dim=1) - 1e-5).all()


def test_one_seed_gives_one_clustering_on_any_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(90, 6, generator=generator(2))
    whole = spherical_kmeans(rows, 4, generator=generator(7))
    for num_rows in (1, 13, 89):
        blocks = partial(row_blocks, block_bytes=num_rows * 6 * 8)
        monkeypatch.setattr(kmeans, "row_blocks", blocks)
        parts = spherical_kmeans(rows, 4, generator=generator(7))
        assert torch.equal(parts, whole)
    assert not torch.equal(spherical_kmeans(rows, 4, generator=generator(8)), whole)


@pytest.mark.parametrize("rows", [torch.ones(6, 3), torch.zeros(6, 3), torch.ones(1, 2)])
def test_equal_rows_are_one_cluster(rows: Tensor) -> None:
    assert spherical_kmeans(rows, 4, generator=generator()).tolist() == [0] * len(rows)


def test_no_more_clusters_than_rows() -> None:
    found = spherical_kmeans(torch.eye(3), 10, generator=generator())
    assert sorted(found.tolist()) == [0, 1, 2]
