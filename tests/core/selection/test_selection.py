from __future__ import annotations

import torch

from lipt.core.selection.selection import keep_largest


def test_the_largest_scores_come_first_and_ties_keep_data_set_order() -> None:
    chosen = keep_largest(torch.tensor([1.0, 5.0, 3.0, 5.0, 3.0]), budget=3)
    assert chosen.indices_K.tolist() == [1, 3, 2]
    assert chosen.weights_K.tolist() == [1.0] * 3
