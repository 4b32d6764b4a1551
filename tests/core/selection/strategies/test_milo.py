from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.determinism import derive_generator
from lipt.core.selection.solvers.linear_cut import exact_bits, unit_rows
from lipt.core.selection.strategies.milo import (
    disparity_gains,
    draw_ahead,
    milo,
    sample_size,
)
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import at_angles, random_signals, signals_of


def cosines(signals: Signals) -> Tensor:
    unit_ND = functional.normalize(signals.features_ND.double())
    return unit_ND @ unit_ND.T


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


def test_easy_is_the_best_of_all_where_the_sample_is_everything() -> None:
    # Of two picks each sample is larger than the data: plain greedy on the graph cut.
    signals = random_signals(40)
    similarity_NN = (1 + cosines(signals)) / 2
    own_N = similarity_NN.sum(dim=1) - 0.4 * similarity_NN.diagonal()
    first = int(own_N.argmax())
    gains_N = own_N - 0.8 * similarity_NN[first]
    gains_N[first] = -torch.inf
    assert milo(signals, 2, seed=0).indices_K.tolist() == [first, int(gains_N.argmax())]


def test_easy_takes_the_first_of_equal_examples_of_each_sample() -> None:
    # Of 30 for 20 picks, 4 examples each: with equal gains the lowest of each sample is taken.
    signals, seen = signals_of(torch.ones(30, 2)), []
    chosen = milo(signals, 20, seed=0).indices_K.tolist()
    left, generator = list(range(30)), derive_generator(0, "milo-easy", 0)
    for pick in chosen:
        sample = draw_ahead(left, sample_size(30, 20), generator)
        ids = [candidate for candidate, _ in sample]
        seen.append(len(set(ids)))
        assert pick == ids[0] == min(ids)
        left[sample[0][1]] = left[-1]
        left.pop()
    assert seen == [4] * 20
    assert len(set(chosen)) == 20


def test_every_candidate_may_be_drawn() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = [draw_ahead([7, 8, 9], 1, generator)[0][0] for _ in range(300)]
    assert all(70 < drawn.count(candidate) < 130 for candidate in (7, 8, 9))


@pytest.mark.parametrize(
    ("num_examples", "budget", "expected"),
    [(1000, 100, 24), (7, 7, 3), (30, 1, 70)],  # 10 ln 10 = 23.03
)
def test_sample_sizes(num_examples: int, budget: int, expected: int) -> None:
    assert sample_size(num_examples, budget) == expected
