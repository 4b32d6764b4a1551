from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lipt.core.selection.solvers.linear_cut import exact_bits, unit_rows
from lipt.core.selection.strategies.milo import disparity_gains, milo, stochastic_greedy
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import random_signals, signals_of


def at_angles(*degrees: float) -> Tensor:
    angles_N = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angles_N.cos(), angles_N.sin()], dim=1)


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


def samples(num_candidates: int, budget: int, epsilon: float, seed: int) -> list[list[int]]:
    """The candidates of each pick, all of the same gain."""
    seen: list[list[int]] = []

    def gains_of(ids_B: Tensor) -> Tensor:
        seen.append(ids_B.tolist())
        return torch.zeros(len(ids_B))

    taken: list[int] = []
    chosen = stochastic_greedy(
        num_candidates,
        budget,
        gains_of=gains_of,
        take=taken.append,
        epsilon=epsilon,
        generator=torch.Generator().manual_seed(seed),
    )
    # The first of equal gains; what is chosen is told, and leaves.
    assert chosen.tolist() == taken == [sample[0] for sample in seen]
    assert all(sample == sorted(set(sample)) for sample in seen)
    assert len(set(taken)) == budget
    return seen


@pytest.mark.parametrize(
    ("num_candidates", "budget", "epsilon", "expected"),
    [
        (1000, 100, 0.1, 24),  # 10 ln 10 = 23.03
        (1000, 100, 0.9, 2),  # 1.05: hardly a choice, which is why 0.9 is no default
        (7, 7, 0.1, 3),
        (30, 1, 0.1, 30),
    ],
)
def test_sample_sizes(num_candidates: int, budget: int, epsilon: float, expected: int) -> None:
    seen = samples(num_candidates, budget, epsilon, seed=0)
    assert [len(sample) for sample in seen] == [
        min(expected, num_candidates - pick) for pick in range(budget)
    ]


def test_every_candidate_may_be_drawn() -> None:
    drawn = {candidate for seed in range(200) for candidate in samples(5, 1, 0.7, seed)[0]}
    assert drawn == set(range(5))
