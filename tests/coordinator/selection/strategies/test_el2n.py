"""EL2N on vectors whose norms are known."""

from __future__ import annotations

from lipt.coordinator.selection.strategies.el2n import el2n
from tests.coordinator.selection.builders import of_right


def test_el2n_keeps_worst_examples_first() -> None:
    # Error norm is sqrt(2) * (1 - p): the order is p ascending.
    assert el2n(of_right(0.9, 0.2, 0.5), budget=2).indices_K.tolist() == [1, 2]
