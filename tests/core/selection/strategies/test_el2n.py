"""EL2N on vectors whose norms are known."""

from __future__ import annotations

from lipt.core.selection.strategies.el2n import el2n
from tests.core.selection.builders import of_probabilities, of_right


def test_el2n_keeps_worst_examples_first() -> None:
    # Error norm is sqrt(2) * (1 - p): the order is p ascending.
    assert el2n(of_right(0.9, 0.2, 0.5), budget=2).indices_K.tolist() == [1, 2]


def test_the_norm_is_euclidean() -> None:
    # |(-0.65, 0.325, 0.325)| = 0.80 is less than |(-0.6, 0.6, 0)| = 0.85; its sum is larger.
    signals = of_probabilities([[0.35, 0.325, 0.325], [0.4, 0.6, 0.0]])
    assert el2n(signals, budget=1).indices_K.tolist() == [1]
