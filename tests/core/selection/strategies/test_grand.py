"""GraNd on vectors whose norms are known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lipt.common.errors import SignalsError
from lipt.core.selection.registry import find_strategy
from lipt.core.selection.strategies.grand import grand, last_layer_norms
from lipt.core.selection.strategy import Need
from tests.core.selection.builders import of_right


def test_grand_multiplies_error_and_feature() -> None:
    # |e| = sqrt(2) (1 - p) for p = 0.9, 0.2, 0.5; sqrt(|h|^2 + 1) = 13, 1, 2.
    features = torch.tensor([[168.0], [0.0], [3.0]]).sqrt()
    given = of_right(0.9, 0.2, 0.5, features_ND=features)
    expected = [2**0.5 * value for value in (1.3, 0.8, 1.0)]
    assert last_layer_norms(given).tolist() == pytest.approx(expected, rel=1e-5)
    assert grand(given, budget=2).indices_K.tolist() == [0, 2]


def test_grand_without_a_bias_has_no_one_to_add() -> None:
    given = replace(of_right(0.5, features_ND=torch.tensor([[3.0, 4.0]])), has_bias=False)
    assert last_layer_norms(given).tolist() == pytest.approx([0.5 * 2**0.5 * 5])


def test_grand_by_all_parameters_ranks_their_norms() -> None:
    given = replace(of_right(0.1, 0.2, 0.3), gradient_norms_N=torch.tensor([1.0, 3.0, 2.0]))
    assert grand(given, budget=2, parameters="all").indices_K.tolist() == [1, 2]
    strategy = find_strategy("grand")
    assert strategy.default_needs() == {Need.SIGNALS}
    assert strategy.needs_for({"parameters": "all"}) == {Need.GRADIENT_NORMS}
    with pytest.raises(SignalsError, match="no gradient norms: compute them first"):
        grand(of_right(0.1), budget=1, parameters="all")
