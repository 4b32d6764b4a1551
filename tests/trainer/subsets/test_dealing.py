from __future__ import annotations

from typing import get_args

import pytest
import torch

from lipt.trainer.subsets.dealing import Uneven, deal, num_dealt


@pytest.mark.parametrize("uneven", get_args(Uneven))
def test_how_many_are_dealt_is_known_without_an_order(uneven: Uneven) -> None:
    for num_examples in range(1, 12):
        for num_ranks in range(1, 15):
            for rank in range(num_ranks):
                dealt_N = deal(torch.arange(num_examples), rank, num_ranks, uneven)
                assert num_dealt(num_examples, rank, num_ranks, uneven) == len(dealt_N)
