from __future__ import annotations

from itertools import pairwise
from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lipt.core.selection.solvers.unit_rows import exact_bits, unit_rows
from lipt.core.selection.strategies.milo import disparity_gains, milo
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import random_signals, random_subsets, signals_of

Stage = Literal["easy", "diverse"]
stages = pytest.mark.parametrize("stage", ["easy", "diverse"])


def at_angles(*degrees: float) -> Tensor:
    angles_N = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angles_N.cos(), angles_N.sin()], dim=1)


def cosines(signals: Signals) -> Tensor:
    unit_ND = functional.normalize(signals.features_ND.double())
    return unit_ND @ unit_ND.T


def graph_cut(signals: Signals, chosen: Tensor) -> float:
    similarity_NN = (1 + cosines(signals)) / 2
    return float(similarity_NN[:, chosen].sum() - 0.4 * similarity_NN[chosen][:, chosen].sum())


def plain_graph_cut(signals: Signals, budget: int) -> list[int]:
    chosen: list[int] = []
    for _ in range(budget):
        left = [row for row in range(len(signals)) if row not in chosen]
        chosen.append(max(left, key=lambda row: graph_cut(signals, torch.tensor([*chosen, row]))))
    return chosen


def plain_disparity_gains(signals: Signals) -> list[float]:
    """Farthest first from the example nearest to the mean direction."""
    unit_ND = functional.normalize(signals.features_ND.double())
    distances_NN = 1 - cosines(signals)
    taken = [int((unit_ND - unit_ND.mean(dim=0)).norm(dim=1).argmin())]
    gains = [0.0] * len(signals)
    while len(taken) < len(signals):
        left = [row for row in range(len(signals)) if row not in taken]
        nearest = {row: float(distances_NN[row, taken].min()) for row in left}
        taken.append(max(left, key=lambda row: nearest[row]))
        gains[taken[-1]] = nearest[taken[-1]] / float(distances_NN.max())
    return gains


def test_disparity_gains_by_hand() -> None:
    # The mean is nearest to 0 degrees. Then 180 (1 - cos 180 = 2, the farthest pair), 60
    # (1 - cos 60 = 0.5), and the others at 0, which add nothing.
    rows_N2 = unit_rows(at_angles(0, 60, 180, 0, 0), exact_bits(5))
    expected = [0.0, 0.25, 1.0, 0.0, 0.0]
    assert disparity_gains(rows_N2).tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("num_examples", [1, 2, 3, 90])
def test_disparity_gains_are_those_of_plain_greedy(num_examples: int) -> None:
    signals = random_signals(num_examples)
    rows_ND = unit_rows(signals.features_ND, exact_bits(num_examples))
    expected = plain_disparity_gains(signals)
    assert disparity_gains(rows_ND).tolist() == pytest.approx(expected, abs=1e-5)


def test_diverse_draws_by_the_taylor_softmax() -> None:
    # Gains 0, 0.25, 1, 0 and 0.
    signals = signals_of(at_angles(0, 60, 180, 0, 0))
    drawn = [
        int(milo(signals, 1, stage="diverse", draw=draw, seed=0).indices_K) for draw in range(2000)
    ]
    for row, weight in enumerate([1.0, 1.28125, 2.5, 1.0, 1.0]):
        # The deviation is 0.0108 at most.
        assert drawn.count(row) / 2000 == pytest.approx(weight / 6.78125, abs=0.04)


def test_easy_with_all_in_the_sample_is_plain_greedy() -> None:
    # ceil(N / K ln 10) >= N where K <= 2.
    for seed in range(4):
        signals = random_signals(40, seed=seed)
        assert milo(signals, 2, seed=0).indices_K.tolist() == plain_graph_cut(signals, 2)


def test_easy_is_close_to_greedy_in_the_cut() -> None:
    signals = random_signals(120)
    greedy = graph_cut(signals, torch.tensor(plain_graph_cut(signals, 12)))
    drawn = sum(graph_cut(signals, subset) for subset in random_subsets(120, 12)) / 20
    for draw in range(5):
        found = graph_cut(signals, milo(signals, 12, draw=draw, seed=0).indices_K)
        assert (found - drawn) / (greedy - drawn) > 0.7


@stages
def test_every_draw_and_every_seed_is_another_subset(stage: Stage) -> None:
    signals = random_signals(100)
    subsets = {
        tuple(milo(signals, 20, stage=stage, draw=draw, seed=seed).indices_K.tolist())
        for draw in range(4)
        for seed in range(3)
    }
    assert len(subsets) == 12
    again = milo(signals, 20, stage=stage, draw=3, seed=2).indices_K
    assert tuple(again.tolist()) in subsets


def test_diverse_favours_who_is_like_nobody() -> None:
    # 95 in one bundle and 5 far from everybody: 1/20 of the examples, and more of the draws.
    generator = torch.Generator().manual_seed(0)
    features_ND = torch.eye(8)[0] + 0.02 * torch.randn(100, 8, generator=generator)
    features_ND[:5] = torch.eye(8)[1:6]
    signals = signals_of(features_ND)
    draws = [milo(signals, 10, stage="diverse", draw=draw, seed=0) for draw in range(200)]
    found = sum(int((chosen.indices_K < 5).sum()) for chosen in draws) / 200
    # Without weights 0.5 of 10, with a deviation of 0.05; weight 2.5 makes it about 1.1.
    assert found > 0.9


@stages
@pytest.mark.parametrize("rows", [torch.zeros(5, 3), torch.ones(5, 3), torch.ones(1, 1)])
def test_examples_that_cannot_be_told_apart(stage: Stage, rows: Tensor) -> None:
    signals = signals_of(rows)
    for budget in {1, len(rows)}:
        chosen = milo(signals, budget, stage=stage, seed=0).indices_K.tolist()
        assert len(set(chosen)) == budget
    gains_N = disparity_gains(unit_rows(rows, exact_bits(len(rows))))
    assert gains_N.tolist() == [0.0] * len(rows)


def test_weights_by_the_authors_gains_would_be_nearly_equal() -> None:
    # Why this variant's gains are not theirs: the draw would be uniform but for a few.
    distances = sorted(plain_disparity_gains(random_signals(100, num_features=32)))[:0:-1]
    gains = [0.0, distances[0], *(after - before for before, after in pairwise(distances))]
    weights = sorted(1 + g + g**2 / 2 for g in (gain - min(gains) for gain in gains))
    assert weights[-5] < 1.03 * weights[5]
