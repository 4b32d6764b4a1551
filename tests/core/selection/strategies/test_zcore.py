from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.core.selection.registry import find_strategy
from lipt.core.selection.select import select
from lipt.core.selection.strategies import zcore as module
from lipt.core.selection.strategies.zcore import (
    draw_points,
    feature_corners,
    score_coverage,
    zcore,
)
from tests.core.selection.builders import random_signals, signals_of


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_corners_by_hand() -> None:
    columns_DN = torch.tensor([[4.0, 1.0, 2.0, 9.0], [5.0, 5.0, 5.0, 5.0]])
    assert feature_corners(columns_DN).tolist() == [[1.0, 3.0, 9.0], [5.0, 5.0, 5.0]]
    assert feature_corners(columns_DN[:, :3]).tolist() == [[1.0, 2.0, 4.0], [5.0, 5.0, 5.0]]


def test_points_are_triangular_in_planes_of_different_features() -> None:
    corners_D3 = torch.tensor([[0.0, 0.0, 1.0], [-2.0, 1.0, 2.0], [7.0, 7.0, 7.0]])
    draws = draw_points(corners_D3.double(), 30_000, generator())
    first_M, second_M = draws.features_M2.T
    assert (first_M != second_M).all()
    # Each of 6 ordered pairs 5,000 times, deviation 65.
    assert ((3 * first_M + second_M).bincount(minlength=9)[[1, 2, 3, 5, 6, 7]] > 4700).all()
    for feature, (low, middle, high) in enumerate(corners_D3.tolist()):
        points = draws.points_M2[draws.features_M2 == feature].double()
        assert low <= points.min() <= points.max() <= high
        assert float(points.mean()) == pytest.approx((low + middle + high) / 3, abs=0.03)
        sides = low * low + middle * middle + high * high
        products = low * middle + low * high + middle * high
        assert float(points.var()) == pytest.approx((sides - products) / 18, abs=0.03)


def covered(features_ND: Tensor, budget: int, **options: int) -> list[int]:
    scored = score_coverage(signals_of(features_ND), seed=0, **options)
    return zcore(scored, budget, seed=0).indices_K.tolist()


def test_what_stands_alone_is_kept_of_a_crowd_its_edge() -> None:
    # 4 corners of a square with one example each, 36 close together at its centre.
    corners = torch.tensor([[0.0, 0.0], [0.0, 10.0], [10.0, 0.0], [10.0, 10.0]])
    crowd = 5 + 0.01 * torch.randn(36, 2, generator=generator())
    # Who is at the crowd's edge covers as much of the square as a corner does.
    chosen = covered(torch.cat([crowd, corners]), 10)
    assert set(range(36, 40)) <= set(chosen)


def test_one_of_a_group_of_duplicates_is_kept_first() -> None:
    features_ND = random_signals(12).features_ND.repeat_interleave(3, dim=0)
    chosen = covered(features_ND, 12)
    assert sorted(chosen) == list(range(0, 36, 3))


def test_draws_follow_the_number_of_examples_unless_it_is_given() -> None:
    signals = random_signals(30)
    by_default = score_coverage(signals, seed=0).scores_N
    assert torch.equal(by_default, score_coverage(signals, num_draws=600, seed=0).scores_N)
    assert not torch.equal(by_default, score_coverage(signals, num_draws=601, seed=0).scores_N)


def test_scores_are_of_all_examples_in_any_case() -> None:
    features_ND = random_signals(60).features_ND
    signals = signals_of(features_ND, labels=[row % 3 for row in range(60)])
    strategy = find_strategy("zcore")
    options = strategy.parse_options({"num_neighbours": "10"})
    scores_N = score_coverage(signals, num_neighbours=10, seed=5).scores_N
    chosen = select(strategy, signals, 12, balanced=True, seed=5, options=options).indices_K
    for label in range(3):
        rows = torch.nonzero(signals.labels_N == label).flatten()
        best = rows[scores_N[rows].argsort(descending=True, stable=True)[:4]]
        assert set(best.tolist()) == set(chosen[signals.labels_N[chosen] == label].tolist())


def test_more_draws_than_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    signals = random_signals(20)
    monkeypatch.setattr(module, "_MOST_DRAWS", 7)
    scores_N = score_coverage(signals, num_draws=15, num_neighbours=3, seed=0).scores_N
    # Every draw gives as much as it takes: what is left is the random start.
    start_N = torch.rand(20, generator=derive_generator(0, "zcore"), dtype=torch.float64)
    assert float(scores_N.sum()) == pytest.approx(float(start_N.sum()), abs=1e-4)
    gained_N = scores_N.double() - start_N
    assert float(gained_N.clamp(min=0).sum()) <= 15


@pytest.mark.parametrize("rows", [torch.zeros(5, 3), torch.ones(5, 1), torch.ones(1, 1)])
def test_examples_that_cannot_be_told_apart(rows: Tensor) -> None:
    for budget in {1, len(rows)}:
        chosen = covered(rows, budget)
        assert len(set(chosen)) == budget
        # The first of all that coincide covers every point.
        assert chosen[0] == 0
