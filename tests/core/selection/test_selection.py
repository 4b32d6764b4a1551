from __future__ import annotations

from itertools import permutations

import pytest
import torch

from lipt.core.selection.selection import draw_by_weight, keep_largest


def test_the_largest_scores_come_first_and_ties_keep_data_set_order() -> None:
    chosen = keep_largest(torch.tensor([1.0, 5.0, 3.0, 5.0, 3.0]), budget=3)
    assert chosen.indices_K.tolist() == [1, 3, 2]
    assert chosen.weights_K.tolist() == [1.0] * 3


def draw(weights: list[float], budget: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    log_weights_N = torch.tensor(weights).log()
    return draw_by_weight(log_weights_N, budget, generator=generator).indices_K.tolist()


def test_is_a_draw_one_by_one_without_replacement() -> None:
    # The second is drawn by the weights of those that are left.
    weights = [1.0, 2.0, 5.0]
    expected = {
        (i, j): weights[i] / 8 * weights[j] / (8 - weights[i]) for i, j in permutations(range(3), 2)
    }
    drawn = [tuple(draw(weights, 2, seed)) for seed in range(4000)]
    for pair, probability in expected.items():
        # The deviation is 0.0077 at most.
        assert drawn.count(pair) / 4000 == pytest.approx(probability, abs=0.03)


def test_what_has_no_weight_comes_last_in_order() -> None:
    for seed in range(20):
        chosen = draw([0.0, 1.0, 0.0, 1.0], 4, seed)
        assert set(chosen[:2]) == {1, 3}
        assert chosen[2:] == [0, 2]
