"""Greedy on sums and a pool against greedy on the whole matrix of similarities."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipt.core.selection.solvers.linear_cut import cut_picks
from lipt.core.selection.solvers.unit_rows import exact_bits, unit_rows
from tests.properties import at_most


def swapped(rows: Tensor) -> Tensor:
    return rows.roll(rows.shape[-1] // 2, dims=-1)


def plain_greedy(similarities: Tensor, own: Tensor, scale: float) -> tuple[list[int], list[float]]:
    """F is worked out anew for every candidate of every pick."""

    def value(chosen: list[int]) -> float:
        inside = torch.zeros(len(own), dtype=torch.bool)
        inside[chosen] = True
        cut = similarities[inside][:, ~inside].sum()
        return float(own[inside].sum() + scale * cut)

    chosen: list[int] = []
    gains = []
    while len(chosen) < len(own):
        left = [e for e in range(len(own)) if e not in chosen]
        values = [value([*chosen, e]) - value(chosen) for e in left]
        # Positions are ascending, so the first of equal values has the lowest.
        best = next(i for i, v in enumerate(values) if v > max(values) - 1e-9)
        gains.append(values[best])
        chosen.append(left[best])
    return chosen, gains


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
def test_equals_plain_greedy(
    kind: str, pairs: bool, num_rows: int, seed: int, pool_size: int, scale: float
) -> None:
    rows = rows_of(kind, num_rows, seed)
    map_rows = swapped if pairs else torch.Tensor.double
    own = torch.randint(-4, 5, (num_rows,), generator=torch.Generator().manual_seed(seed)) / 8
    own = own.double()
    picks = list(cut_picks(rows, own, scale=scale, map_rows=map_rows, pool_size=pool_size))
    expected, gains = plain_greedy(rows.double() @ map_rows(rows.double()).T, own, scale)
    assert [position for _, position in picks] == expected
    assert [gain for gain, _ in picks] == pytest.approx(gains, abs=1e-9)


@pytest.mark.parametrize("kind", ["any", "similar", "duplicates"])
def test_the_pool_does_not_matter(kind: str) -> None:
    rows = rows_of(kind, 150, 3)
    own = torch.linspace(-1, 1, 150, dtype=torch.float64).square()
    whole = list(islice(cut_picks(rows, own, scale=0.5, pool_size=150), 80))
    for pool_size in (1, 7, 64, 149):
        picks = cut_picks(rows, own, scale=0.5, pool_size=pool_size)
        assert list(islice(picks, 80)) == whole


def test_equal_rows_are_picked_by_position() -> None:
    rows = unit_rows(torch.ones(50, 3), exact_bits(50))
    picks = cut_picks(rows, torch.zeros(50, dtype=torch.float64), scale=1.0, pool_size=8)
    assert [position for _, position in picks] == list(range(50))
