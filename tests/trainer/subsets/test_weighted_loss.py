from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from lipt.trainer.subsets.weighted_loss import normalized_weights, weighted_cross_entropy


def test_equal_weights_are_the_plain_mean() -> None:
    logits_BC = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    labels_B = torch.tensor([0, 1, 2, 0, 1, 2])
    plain = functional.cross_entropy(logits_BC, labels_B)
    assert weighted_cross_entropy(logits_BC, labels_B, torch.ones(6)) == pytest.approx(plain.item())


def test_each_example_counts_by_its_weight() -> None:
    # Two classes at equal logits: every loss is log 2, so the mean is log 2 * (3 + 1) / 2.
    loss = weighted_cross_entropy(torch.zeros(2, 2), torch.tensor([0, 1]), torch.tensor([3.0, 1.0]))
    assert loss.item() == pytest.approx(2 * 0.693147, rel=1e-5)


def test_half_precision_logits_give_a_float32_loss() -> None:
    logits_BC = torch.zeros(2, 2, dtype=torch.bfloat16)
    assert (
        weighted_cross_entropy(logits_BC, torch.tensor([0, 1]), torch.ones(2)).dtype
        == torch.float32
    )


def test_normalized_weights_have_mean_one_and_keep_their_ratios() -> None:
    assert normalized_weights(torch.tensor([1.0, 2.0, 5.0])).tolist() == pytest.approx(
        [0.375, 0.75, 1.875]
    )


def test_weights_that_sum_to_nothing_count_the_same() -> None:
    assert normalized_weights(torch.zeros(3)).tolist() == [1, 1, 1]
