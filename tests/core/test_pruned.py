"""Pruned: of a state and a result, whether pruning alone lies between them."""

from __future__ import annotations

import pytest
import torch

from lipt.core.learner.pruning import is_pruned_from

STATE = {"w": torch.tensor([[1.0, -2.0], [3.0, 0.0]]), "steps": torch.tensor(7)}


@pytest.mark.parametrize(
    ("kept", "steps", "expected"),
    [
        ([[1.0, -2.0], [3.0, 0.0]], 7, True),
        ([[0.0, -2.0], [3.0, 0.0]], 7, True),
        ([[0.0, 0.0], [0.0, 0.0]], 7, True),
        # A weight has moved, one has grown from nothing, a batch more was seen.
        ([[1.0, -2.0], [3.5, 0.0]], 7, False),
        ([[1.0, -2.0], [3.0, 0.5]], 7, False),
        ([[1.0, -2.0], [3.0, 0.0]], 8, False),
    ],
)
def test_what_is_kept_has_to_be_what_it_was(
    kept: list[list[float]], steps: int, *, expected: bool
) -> None:
    result = {"w": torch.tensor(kept), "steps": torch.tensor(steps)}
    assert is_pruned_from(result, STATE) is expected
