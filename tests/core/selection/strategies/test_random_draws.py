from typing import Literal

import pytest
import torch
from torch import Tensor

from lipt.core.selection.strategies.random_draws import (
    ccs,
    default_cells,
    strata_of,
    stratified,
)
from lipt.core.signals.dynamics import Dynamics
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import signals_of

Shares = Literal["equal", "proportional"]


def bundled(*sizes: int) -> tuple[Signals, Tensor]:
    """One bundle of directions after another, of these sizes, and who is in which."""
    kinds_N = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    generator = torch.Generator().manual_seed(0)
    features_ND = torch.eye(len(sizes))[kinds_N]
    features_ND = features_ND + 0.05 * torch.randn(features_ND.shape, generator=generator)
    return signals_of(features_ND), kinds_N


@pytest.mark.parametrize(
    ("shares", "budget", "expected"),
    [
        ("equal", 12, [4, 4, 4]),
        ("equal", 30, [6, 12, 12]),  # what the small one lacks is shared
        ("proportional", 20, [2, 8, 10]),  # 60 in all: one of three
        ("proportional", 7, [1, 3, 3]),  # 0.7, 2.8, 3.5: two left, for remainders .8 and .7
    ],
)
def test_shares_by_hand(shares: Shares, budget: int, expected: list[int]) -> None:
    signals, kinds_N = bundled(6, 24, 30)
    for seed in range(5):
        chosen = stratified(signals, budget, num_cells=3, shares=shares, seed=seed).indices_K
        assert kinds_N[chosen].bincount().tolist() == expected


@pytest.mark.parametrize(
    ("budget", "expected"), [(1, 1), (2, 1), (3, 2), (500, 250), (512, 256), (10**6, 256)]
)
def test_cells_grow_with_the_budget_to_a_limit(budget: int, expected: int) -> None:
    assert default_cells(budget) == expected


def of_norms(*norms: float) -> Signals:
    """One class column whose error has the given norm: el2n's score is known."""
    return signals_of(errors_NC=torch.tensor(norms, dtype=torch.float64).float()[:, None])


def graded_signals(num_examples: int) -> Signals:
    """Three classes, each example harder than the one before, by every score."""
    confidences_N = torch.linspace(0.95, 0.4, num_examples)
    rest_N = (1 - confidences_N) / 2
    return signals_of(
        errors_NC=torch.stack([confidences_N - 1, rest_N, rest_N], dim=1),
        dynamics=Dynamics(
            probabilities_NLT=confidences_N[:, None, None].expand(-1, 2, 3),
            margins_NLT=confidences_N[:, None, None].expand(-1, 2, 3),
            error_norms_NL=1 - confidences_N[:, None].expand(-1, 2),
            disagreement_N=torch.zeros(num_examples),
            own_learner_N=torch.full((num_examples,), -1, dtype=torch.int16),
        ),
    )


def test_strata_have_equal_width_not_equal_counts() -> None:
    scores_N = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.6, 1.0])
    assert strata_of(scores_N, 4).tolist() == [0, 0, 0, 1, 2, 3]
    assert strata_of(torch.full((3,), 0.7), 4).tolist() == [0, 0, 0]


def test_equal_shares_of_the_strata_after_the_hardest_are_gone() -> None:
    # Of 10 examples beta 0.2 drops the two with 8 and 9. The rest, up to 4, are two strata of
    # width 2: {0, .1, .2, .3, 1, 1.5} and {2.1, 4}.
    signals = of_norms(0, 9, 0.1, 0.2, 8, 0.3, 1, 1.5, 2.1, 4)
    for seed in range(20):
        chosen = ccs(signals, 4, beta=0.2, num_strata=2, seed=seed).indices_K.tolist()
        assert {8, 9} <= set(chosen)
        assert len(set(chosen) & {0, 2, 3, 5, 6, 7}) == 2
    # What the small stratum cannot give comes from the large one.
    chosen = ccs(signals, 7, beta=0.2, num_strata=2, seed=0).indices_K.tolist()
    assert {8, 9} <= set(chosen)
    assert len(set(chosen) & {0, 2, 3, 5, 6, 7}) == 5


@pytest.mark.parametrize("score", ["el2n", "aum"])
def test_the_hard_end_is_dropped_by_every_score(score: str) -> None:
    signals = graded_signals(40)
    chosen = ccs(signals, 20, score=score, beta=0.5, num_strata=50, seed=1).indices_K
    assert chosen.sort().values.tolist() == list(range(20))


def test_a_budget_that_the_cut_would_not_leave_takes_the_easiest() -> None:
    signals = of_norms(5, 3, 9, 1, 7)
    chosen = ccs(signals, 3, beta=0.9, seed=0).indices_K
    assert chosen.sort().values.tolist() == [0, 1, 3]
    assert len(ccs(signals, 5, beta=0.9, seed=0).indices_K) == 5


def test_of_equally_hard_examples_the_last_are_dropped() -> None:
    chosen = ccs(of_norms(1, 1, 1, 1), 2, beta=0.5, seed=0).indices_K
    assert chosen.sort().values.tolist() == [0, 1]
