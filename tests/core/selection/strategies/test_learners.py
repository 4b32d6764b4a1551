import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats

from lipt.common.errors import SignalsError
from lipt.core.selection.strategies.learners import (
    aum,
    beta_parameters,
    disagreement,
    forgetting,
    forgetting_events,
    log_beta_density,
    mean_margins,
    uncertain_and_hard,
)
from lipt.core.selection.strategies.scores import el2n
from lipt.core.signals.dynamics import Dynamics
from lipt.core.signals.signals import Signals, labels_only
from tests.core.selection.builders import random_dynamics

# Per example, per learner, per moment.
Course = Sequence[Sequence[float]]


def signals(own: Sequence[int] | None = None, **given: Sequence[Any]) -> Signals:
    """Random but for what is given; no learner was trained on an example unless `own` says so."""
    tensors = {name: torch.tensor(values).float() for name, values in given.items()}
    size, learners, moments = (*next(iter(tensors.values())).shape, 2, 2)[:3]
    dynamics = random_dynamics(size, learners, moments, generator=torch.Generator().manual_seed(0))
    own_N = torch.tensor(own or [-1] * size, dtype=torch.int16)
    return watched(replace(dynamics, own_learner_N=own_N, **tensors))


def watched(dynamics: Dynamics) -> Signals:
    labels_N = torch.zeros(len(dynamics.own_learner_N), dtype=torch.int64)
    return replace(labels_only(labels_N), dynamics=dynamics)


def random_signals(num_examples: int, num_learners: int = 3, num_moments: int = 4) -> Signals:
    generator = torch.Generator().manual_seed(3)
    return watched(random_dynamics(num_examples, num_learners, num_moments, generator=generator))


def test_forgetting_counts_steps_from_right_to_wrong() -> None:
    margins: list[Course] = [
        [[1, -1, 1, -1], [1, 1, 1, 1]],  # 2 + 0 by two
        [[1, -1, -1, -1], [1, -1, 1, -1]],  # 1 + 2 by two
        [[1, 1, 1, 1], [1, 1, 1, 1]],  # 0
        [[-1, -1, -1, -1], [-1, -1, -1, 0]],  # never right: a margin of 0 is a tie
        [[-1, 1, 1, 1], [-1, -1, 1, 1]],  # learned, never forgotten
    ]
    everyone_NL = torch.ones(5, 2, dtype=torch.bool)
    events_N = forgetting_events(torch.tensor(margins).float(), everyone_NL)
    assert events_N.tolist() == [1.0, 1.5, 0.0, math.inf, 0.0]
    assert forgetting(signals(margins_NLT=margins), 3).indices_K.tolist() == [3, 1, 0]
    margins: list[Course] = [[[1, -1]], [[1, -3]], [[1, -1]], [[-1, -1]], [[-1, -2]], [[2, 2]]]
    # Never right: -2 before -1; forgotten once: -3 before the two of -1; never forgotten last.
    assert forgetting(signals(margins_NLT=margins), 6).indices_K.tolist() == [4, 3, 1, 0, 2, 5]


def test_a_single_learner_has_no_disagreement() -> None:
    with pytest.raises(SignalsError, match=r"at least 2 learners, and 1 took part.*num_learners"):
        disagreement(random_signals(5, num_learners=1), 2)


def test_smaller_budgets_prefer_easy_examples() -> None:
    # All kept: b = 15 x 0.6; half dropped with c = 1: half of it.
    assert beta_parameters(0.4, dropped=0.0, exponent=5.5) == pytest.approx((7.0, 9.0))
    assert beta_parameters(0.4, dropped=0.5, exponent=1.0) == pytest.approx((11.5, 4.5))
    modes = []
    for dropped in (0.0, 0.3, 0.6, 0.9):
        a, b = beta_parameters(0.4, dropped=dropped, exponent=2.0)
        modes.append((a - 1) / (a + b - 2))
    assert modes == sorted(modes)
    assert modes[0] == pytest.approx(6 / 14)
    means_N = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    ours_N = log_beta_density(means_N, 11.5, 4.5)
    theirs_N = torch.from_numpy(stats.beta.logpdf(means_N.numpy(), 11.5, 4.5))
    torch.testing.assert_close(ours_N - ours_N[0], theirs_N - theirs_N[0])


# Example 0 has a wrong label, and learner 0 has learned it by heart. Nobody was trained on 1, of
# which all are half sure, and learner 1 on 2, which is right.
LABELS_BY_HEART: list[Course] = [
    [[0, 4, 9], [0, -1, -1], [0, -1, -2]],
    [[0, 1, 1], [0, 1, 1], [0, 1, 1]],
    [[0, 2, 3], [0, 5, 6], [0, 2, 3]],
]


def test_a_wrong_label_is_found_by_learners_that_were_not_trained_on_it() -> None:
    by_heart, asked = LABELS_BY_HEART, [0, -1, 1]
    trusting, out_of_shard = signals(margins_NLT=by_heart), signals(margins_NLT=by_heart, own=asked)
    # Its mean margin is 8 / 7 of all, above the 6 / 7 of example 1, and -1 of the others.
    assert aum(trusting, 1).indices_K.tolist() == [1]
    assert aum(out_of_shard, 1).indices_K.tolist() == [0]
    assert mean_margins(Dynamics.of(trusting)).tolist() == pytest.approx([8 / 7, 6 / 7, 3])
    assert mean_margins(Dynamics.of(out_of_shard)).tolist() == pytest.approx([-1, 6 / 7, 2])
    # To the others it was never learned at all.
    assert forgetting(trusting, 1).indices_K.tolist() == [1]
    assert forgetting(out_of_shard, 1).indices_K.tolist() == [0]
    norms = [[0.0, 0.9, 0.9], [0.7, 0.7, 0.7], [0.3, 0.0, 0.3]]
    chosen = [
        el2n(signals(error_norms_NL=norms, own=own), 1, models="learners").indices_K.tolist()
        for own in (None, asked)
    ]
    assert chosen == [[1], [0]]


@pytest.mark.parametrize("window", [2, 3, 10, "all"])
def test_uncertainty_equals_a_loop_without_the_own_learner(window: Any) -> None:
    dynamics = Dynamics.of(random_signals(60))
    expected = []
    for chances_LT, own in zip(
        dynamics.probabilities_NLT.double(), dynamics.own_learner_N.tolist(), strict=True
    ):
        others = [chances_T for learner, chances_T in enumerate(chances_LT) if learner != own]
        if window == "all":
            parts = [torch.cat([others[0][:1], *(chances_T[1:] for chances_T in others)])]
        else:
            size = min(window, 4)
            parts = [chances_T[i : i + size] for chances_T in others for i in range(5 - size)]
        scores = [float((1 - part.mean()) * part.std(correction=0)) for part in parts]
        expected.append(sum(scores) / len(scores))
    scores_N = uncertain_and_hard(dynamics.probabilities_NLT, dynamics.counted_NL, window)
    assert scores_N.tolist() == pytest.approx(expected)
