"""EL2N and GraNd on vectors whose norms are known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lipt.common.errors import SignalsError
from lipt.coordinator.selection.selection import keep_largest
from lipt.coordinator.selection.strategies.el2n import el2n
from lipt.coordinator.selection.strategies.grand import grand, last_layer_norms
from lipt.coordinator.signals.signals import Signals


def signals(
    *probabilities: float, features: Tensor | None = None, norms: Tensor | None = None
) -> Signals:
    """Two classes, all labels 0: p of the right class gives e = (p - 1, 1 - p)."""
    right_N = torch.tensor(probabilities)
    return Signals(
        errors_NC=torch.stack([right_N - 1, 1 - right_N], dim=1),
        features_ND=torch.zeros(len(right_N), 1) if features is None else features,
        labels_N=torch.zeros(len(right_N), dtype=torch.int64),
        gradient_norms_N=norms,
    )


def test_el2n_keeps_worst_examples_first() -> None:
    # Error norm is sqrt(2) * (1 - p): the order is p ascending.
    chosen = el2n(signals(0.9, 0.2, 0.5), budget=2)
    assert chosen.indices_K.tolist() == [1, 2]
    assert chosen.weights_K.tolist() == [1.0, 1.0]


def test_grand_multiplies_error_and_feature() -> None:
    # |e| = sqrt(2) (1 - p) for p = 0.9, 0.2, 0.5; sqrt(|h|^2 + 1) = 13, 1, 2.
    features = torch.tensor([[168.0], [0.0], [3.0]]).sqrt()
    given = signals(0.9, 0.2, 0.5, features=features)
    expected = [2**0.5 * value for value in (1.3, 0.8, 1.0)]
    assert last_layer_norms(given).tolist() == pytest.approx(expected, rel=1e-5)
    assert grand(given, budget=2).indices_K.tolist() == [0, 2]


def test_grand_without_a_bias_has_no_one_to_add() -> None:
    given = signals(0.5, features=torch.tensor([[3.0, 4.0]]))
    without = Signals(given.errors_NC, given.features_ND, given.labels_N, has_bias=False)
    assert last_layer_norms(without).tolist() == pytest.approx([0.5 * 2**0.5 * 5])


def test_grand_by_all_parameters_ranks_their_norms() -> None:
    given = signals(0.1, 0.2, 0.3, norms=torch.tensor([1.0, 3.0, 2.0]))
    assert grand(given, budget=2, parameters="all").indices_K.tolist() == [1, 2]


def test_grand_by_all_parameters_needs_their_norms() -> None:
    with pytest.raises(SignalsError, match="no gradient norms: compute them first"):
        grand(signals(0.1), budget=1, parameters="all")


@pytest.mark.parametrize("num_examples", [1, 2, 17, 1000, 4097])
def test_equal_scores_keep_the_lowest_ids(num_examples: int) -> None:
    # Rows that are equal must have equal norms wherever they stand, or ties are not ties.
    torch.manual_seed(0)
    same = Signals(
        errors_NC=torch.randn(1, 10).expand(num_examples, 10).contiguous(),
        features_ND=torch.randn(1, 67).expand(num_examples, 67).contiguous(),
        labels_N=torch.zeros(num_examples, dtype=torch.int64),
    )
    budget = max(1, num_examples // 3)
    for strategy in (el2n, grand):
        assert strategy(same, budget).indices_K.tolist() == list(range(budget))


def test_ties_among_other_scores() -> None:
    chosen = keep_largest(torch.tensor([1.0, 5.0, 3.0, 5.0, 3.0]), budget=3)
    assert chosen.indices_K.tolist() == [1, 3, 2]
