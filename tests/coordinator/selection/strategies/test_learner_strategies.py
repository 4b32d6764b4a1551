"""Strategies that watch learners train, on courses whose scores are known by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from scipy import stats
from torch import Tensor

from lipt.common.errors import SignalsError
from lipt.coordinator.selection.strategies.aum import aum
from lipt.coordinator.selection.strategies.disagreement import disagreement
from lipt.coordinator.selection.strategies.dual import (
    beta_parameters,
    dual,
    log_beta_density,
    uncertain_and_hard,
)
from lipt.coordinator.selection.strategies.el2n import el2n
from lipt.coordinator.selection.strategies.forgetting import forgetting, forgetting_events
from lipt.coordinator.signals.dynamics import Dynamics, deviation_over_moments, mean_over_moments
from lipt.coordinator.signals.signals import Signals, labels_only
from tests.coordinator.selection.builders import random_dynamics

# Per example, per learner, per moment.
Course = Sequence[Sequence[float]]


def signals(
    *,
    margins: Sequence[Course] | None = None,
    probabilities: Sequence[Course] | None = None,
    error_norms: Sequence[Sequence[float]] | None = None,
    disagreement: Sequence[float] | None = None,
) -> Signals:
    """All labels 0; what is not given is 0 or, of two learners at two moments, 0."""
    given = [x for x in (margins, probabilities, error_norms, disagreement) if x is not None]
    num_examples = len(given[0])
    shape = torch.tensor(margins or probabilities or [[[0.0] * 2] * 2] * num_examples).shape

    def tensor(values: object, shape: Sequence[int]) -> Tensor:
        return torch.zeros(*shape) if values is None else torch.tensor(values)

    return watched(
        Dynamics(
            probabilities_NLT=tensor(probabilities, shape),
            margins_NLT=tensor(margins, shape),
            error_norms_NL=tensor(error_norms, shape[:2]),
            disagreement_N=tensor(disagreement, shape[:1]),
        )
    )


def watched(dynamics: Dynamics) -> Signals:
    """Nothing but how the learners came to see the examples."""
    labels_N = torch.zeros(len(dynamics), dtype=torch.int64)
    return replace(labels_only(labels_N), dynamics=dynamics)


def random_signals(num_examples: int, num_learners: int = 3, num_moments: int = 4) -> Signals:
    generator = torch.Generator().manual_seed(3)
    return watched(random_dynamics(num_examples, num_learners, num_moments, generator=generator))


def test_forgetting_counts_steps_from_right_to_wrong() -> None:
    margins: list[Course] = [
        [[1, -1, 1, -1], [1, 1, 1, 1]],  # 2 + 0
        [[1, -1, -1, -1], [1, -1, 1, -1]],  # 1 + 2
        [[1, 1, 1, 1], [1, 1, 1, 1]],  # 0
        [[-1, -1, -1, -1], [-1, -1, -1, 0]],  # never right: a margin of 0 is a tie
        [[-1, 1, 1, 1], [-1, -1, 1, 1]],  # learned, never forgotten
    ]
    events_N = forgetting_events(torch.tensor(margins).float())
    assert events_N.tolist() == [2.0, 3.0, 0.0, math.inf, 0.0]
    assert forgetting(signals(margins=margins), 3).indices_K.tolist() == [3, 1, 0]


def test_examples_that_are_never_learned_are_kept_first() -> None:
    # The defect: scored 0, they would be the first to be dropped.
    margins: list[Course] = [[[1, -1, 1]], [[-1, -1, -1]], [[1, 1, 1]]]
    assert forgetting(signals(margins=margins), 1).indices_K.tolist() == [1]


def test_equal_events_go_by_margin_and_then_by_id() -> None:
    margins: list[Course] = [[[1, -1]], [[1, -3]], [[1, -1]], [[-1, -1]], [[-1, -2]], [[2, 2]]]
    # Never right: -2 before -1; forgotten once: -3 before the two of -1; never forgotten last.
    assert forgetting(signals(margins=margins), 6).indices_K.tolist() == [4, 3, 1, 0, 2, 5]


def test_without_snapshots_a_learner_forgets_at_most_once() -> None:
    events_N = forgetting_events(random_signals(100, num_moments=2).learners().margins_NLT)
    assert events_N[events_N.isfinite()].max() <= 3


def test_aum_keeps_the_smallest_mean_margin_first() -> None:
    # Means over theta* and two learners: 2, -1, 1.
    margins: list[Course] = [[[1, 2], [1, 3]], [[0, -1], [0, -2]], [[0, 3], [0, 0]]]
    assert aum(signals(margins=margins), 2).indices_K.tolist() == [1, 2]


def test_disagreement_keeps_the_largest_variance_first() -> None:
    chosen = disagreement(signals(disagreement=[0.1, 0.4, 0.2]), 2)
    assert chosen.indices_K.tolist() == [1, 2]


def test_a_single_learner_has_nobody_to_disagree_with() -> None:
    with pytest.raises(SignalsError, match=r"at least 2 learners, and 1 took part.*num_learners"):
        disagreement(random_signals(5, num_learners=1), 2)


def test_el2n_of_learners_is_the_mean_of_their_norms() -> None:
    # The merged model's errors are not looked at: there are none.
    given = signals(error_norms=[[0.2, 0.4], [1.0, 0.0], [0.0, 0.8]])
    assert el2n(given, 2, models="learners").indices_K.tolist() == [1, 2]


def test_dual_s_score_is_difficulty_times_uncertainty() -> None:
    probabilities: list[Course] = [
        [[0.5, 0.5]],  # 0.5 x 0
        [[0.2, 0.6]],  # 0.6 x 0.2
        [[0.0, 0.4]],  # 0.8 x 0.2
        [[0.7, 0.9]],  # 0.2 x 0.1
    ]
    chosen = dual(signals(probabilities=probabilities), 4, sampling="largest", seed=0)
    assert chosen.indices_K.tolist() == [2, 1, 3, 0]


def test_windows_take_the_spread_of_a_few_moments_of_one_learner() -> None:
    # Windows of 2 of 0.2, 0.6, 0.6: 0.6 x 0.2 and 0.4 x 0, and the other learner's 0.6 x 0.2 and
    # 0.5 x 0.1, in the mean 0.29 / 4. Windows of 3, or of more than there are, are one a learner.
    courses = [[0.2, 0.6, 0.6], [0.2, 0.6, 0.4]]
    probabilities_NLT = torch.tensor([courses])
    assert float(uncertain_and_hard(probabilities_NLT, 2)) == pytest.approx(0.29 / 4)
    spreads = [float(torch.tensor(course).std(correction=0)) for course in courses]
    whole = (spreads[0] * (1 - 1.4 / 3) + spreads[1] * (1 - 1.2 / 3)) / 2
    assert float(uncertain_and_hard(probabilities_NLT, 3)) == pytest.approx(whole)
    assert float(uncertain_and_hard(probabilities_NLT, 10)) == pytest.approx(whole)


def test_one_window_of_all_counts_theta_star_once() -> None:
    # Of 0.2, 0.6, 0.6 and 0.6, 0.4: mean 0.48, squared deviations 0.112 / 5 in the mean.
    probabilities_NLT = torch.tensor([[[0.2, 0.6, 0.6], [0.2, 0.6, 0.4]]])
    score = float(uncertain_and_hard(probabilities_NLT, "all"))
    assert score == pytest.approx(0.52 * (0.128 / 5) ** 0.5)


def test_windows_change_who_is_kept() -> None:
    # Slow and steady change is uncertain over all moments, and not within two of them.
    probabilities: list[Course] = [[[0.1, 0.3, 0.5, 0.7]], [[0.3, 0.6, 0.3, 0.6]]]
    for window, first in (("all", 0), (2, 1)):
        given = signals(probabilities=probabilities)
        chosen = dual(given, 1, sampling="largest", window=window, seed=0)  # type: ignore[arg-type]
        assert chosen.indices_K.tolist() == [first]


def test_beta_moves_to_easy_examples_as_fewer_are_kept() -> None:
    # All kept: b = 15 x 0.6; half dropped with c = 1: half of it.
    assert beta_parameters(0.4, dropped=0.0, exponent=5.5) == pytest.approx((7.0, 9.0))
    assert beta_parameters(0.4, dropped=0.5, exponent=1.0) == pytest.approx((11.5, 4.5))
    modes = []
    for dropped in (0.0, 0.3, 0.6, 0.9):
        a, b = beta_parameters(0.4, dropped=dropped, exponent=2.0)
        modes.append((a - 1) / (a + b - 2))
    assert modes == sorted(modes)
    assert modes[0] == pytest.approx(6 / 14)


def test_beta_density_is_scipys_up_to_a_constant() -> None:
    means_N = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    ours_N = log_beta_density(means_N, 11.5, 4.5)
    theirs_N = torch.from_numpy(stats.beta.logpdf(means_N.numpy(), 11.5, 4.5))
    torch.testing.assert_close(ours_N - ours_N[0], theirs_N - theirs_N[0])


def test_dual_draws_one_example_as_often_as_its_weight_says() -> None:
    given = random_signals(12)
    values_NLT = given.learners().probabilities_NLT
    means_N = mean_over_moments(values_NLT)
    scores_N = (1 - means_N) * deviation_over_moments(values_NLT, means_N)
    top = scores_N.argsort(descending=True)[:10]
    a, b = beta_parameters(float(means_N[top].mean()), dropped=11 / 12, exponent=5.5)
    weights_N = scores_N * torch.from_numpy(stats.beta.pdf(means_N.numpy(), a, b))
    num_draws = 4000
    drawn = [int(dual(given, 1, seed=seed).indices_K) for seed in range(num_draws)]
    counts_N = torch.bincount(torch.tensor(drawn), minlength=12)
    expected_N = num_draws * weights_N / weights_N.sum()
    # Seeded, so this is one number; the bound is that of 1 in 1000.
    chi_squared = ((counts_N - expected_N).square() / expected_N).sum()
    assert float(chi_squared) < stats.chi2.ppf(0.999, df=11)


def test_examples_without_weight_are_drawn_last_in_order() -> None:
    # Two that are certain at every moment, and one that is not.
    probabilities: list[Course] = [[[1.0, 1.0]], [[0.5, 0.5]], [[0.2, 0.9]]]
    chosen = dual(signals(probabilities=probabilities), 3, seed=5)
    assert chosen.indices_K.tolist() == [2, 0, 1]
