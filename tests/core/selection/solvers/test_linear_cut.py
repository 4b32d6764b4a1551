import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipt.core.selection.solvers.linear_cut import (
    cut_picks,
    exact_bits,
    spherical_kmeans,
    unit_rows,
)
from tests.properties import at_most


def swapped(rows: Tensor) -> Tensor:
    return rows.roll(rows.shape[-1] // 2, dims=-1)


def gains_of(
    similarities: Tensor, own: Tensor, scale: float, picks: list[int]
) -> list[tuple[float, float]]:
    """The gain of each pick beside the largest there was; F is worked out anew each time."""

    def value(chosen: list[int]) -> float:
        inside = torch.zeros(len(own), dtype=torch.bool)
        inside[chosen] = True
        cut = similarities[inside][:, ~inside].sum()
        return float(own[inside].sum() + scale * cut)

    gains = []
    for number, pick in enumerate(picks):
        chosen = picks[:number]
        values = {
            e: value([*chosen, e]) - value(chosen) for e in range(len(own)) if e not in chosen
        }
        gains.append((values[pick], max(values.values())))
    return gains


def rows_of(kind: str, num_rows: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(num_rows, 6, generator=generator)
    if kind == "similar":
        rows += 3
    if kind == "duplicates":
        rows = rows[torch.randint(max(1, num_rows // 3), (num_rows,), generator=generator)]
    if kind == "zeros":
        rows[::2] = 0
    return unit_rows(rows, exact_bits(num_rows))


@pytest.mark.parametrize("kind", ["any", "similar", "duplicates", "zeros"])
@pytest.mark.parametrize("pairs", [False, True])
@settings(max_examples=at_most(10))
@given(
    num_rows=st.integers(1, 14),
    seed=st.integers(0, 1000),
    pool_size=st.integers(1, 16),
    scale=st.sampled_from([1.0, 0.25, 1 / 3]),
)
def test_each_pick_gains_most(
    kind: str, pairs: bool, num_rows: int, seed: int, pool_size: int, scale: float
) -> None:
    rows = rows_of(kind, num_rows, seed)
    map_rows = swapped if pairs else torch.Tensor.double
    own = torch.randint(-4, 5, (num_rows,), generator=torch.Generator().manual_seed(seed)) / 8
    own = own.double()
    picks = list(cut_picks(rows, own, scale=scale, map_rows=map_rows, pool_size=pool_size))
    positions = [position for _, position in picks]
    assert sorted(positions) == list(range(num_rows))
    # Near ties may go either way: what counts is that no other gains more.
    plain = gains_of(rows.double() @ map_rows(rows.double()).T, own, scale, positions)
    for (gain, _), (expected, largest) in zip(picks, plain, strict=True):
        assert gain == pytest.approx(expected, abs=1e-9)
        assert expected == pytest.approx(largest, abs=1e-9)


def random_rows(num_rows: int, width: int) -> torch.Tensor:
    return torch.randn(num_rows, width, generator=torch.Generator().manual_seed(num_rows))


def test_rows_have_length_one_and_zeros_stay() -> None:
    rows = unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0], [-5.0, 0.0]]), bits=20)
    expected = torch.tensor([[0.6, 0.8], [0.0, 0.0], [-1.0, 0.0]])
    torch.testing.assert_close(rows, expected, rtol=0, atol=2.0**-21)
    assert ((rows.double() * 2**20) % 1 == 0).all()


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


def test_equal_rows_are_picked_by_position() -> None:
    rows = unit_rows(torch.ones(50, 3), exact_bits(50))
    picks = cut_picks(rows, torch.zeros(50, dtype=torch.float64), scale=1.0, pool_size=8)
    assert [position for _, position in picks] == list(range(50))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bundles(num_each: int) -> Tensor:
    centres = torch.eye(3).repeat_interleave(num_each, dim=0)
    rows = centres + 0.2 * torch.randn(centres.shape, generator=generator(5))
    return rows * torch.linspace(0.1, 10, len(rows))[:, None]


@pytest.mark.parametrize("seed", range(5))
def test_finds_directions_that_are_apart(seed: int) -> None:
    found = spherical_kmeans(bundles(20), 3, generator=generator(seed)).reshape(3, 20)
    assert (found == found[:, :1]).all()
    assert len(found[:, 0].unique()) == 3


@pytest.mark.parametrize("rows", [torch.ones(6, 3), torch.zeros(6, 3), torch.ones(1, 2)])
def test_equal_rows_are_one_cluster(rows: Tensor) -> None:
    assert spherical_kmeans(rows, 4, generator=generator()).tolist() == [0] * len(rows)
