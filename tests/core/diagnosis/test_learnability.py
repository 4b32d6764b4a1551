from __future__ import annotations

import pytest
import torch

from lipt.core.diagnosis.learnability import (
    judge,
    learning_curve,
    sample_sizes,
    stratified_order,
)


def test_sizes_are_halves_that_are_neither_tiny_nor_huge() -> None:
    assert sample_sizes(1000) == [125, 250, 500]
    assert sample_sizes(50_000) == [1562, 3125, 6250, 12_500]
    assert sample_sizes(150) == []


def test_every_sample_has_the_classes_in_their_shares() -> None:
    labels_N = torch.tensor([0] * 80 + [1] * 40 + [3] * 8)
    order_N = stratified_order(labels_N, torch.Generator().manual_seed(0))
    assert sorted(order_N.tolist()) == list(range(128))
    for size in (16, 32, 64):
        counts = labels_N[order_N[:size]].bincount(minlength=4).tolist()
        assert counts == [size * 10 // 16, size * 5 // 16, 0, size // 16]


def test_worth_asking_for_is_the_least_size_from_which_doublings_gain_little() -> None:
    found = judge((100, 200, 400, 800), (0.5, 0.6, 0.605, 0.61))
    assert found.suggested_fraction == 0.25
    assert "from 200 examples on a doubling gains less than 1 point of" in found.why
    assert "at most 0.5" in found.why


def test_a_plateau_that_ends_is_none() -> None:
    found = judge((100, 200, 400, 800), (0.5, 0.505, 0.6, 0.605))
    assert found.suggested_fraction == 0.5


def test_where_the_last_doubling_pays_all_are_asked_for_and_more_foretold() -> None:
    # Gains of 8 and 4 points: 2 are next.
    found = judge((100, 200, 400), (0.5, 0.58, 0.62))
    assert found.suggested_fraction == 1.0
    assert "still gained 4.0 points" in found.why
    assert "about 2.0 more" in found.why


def test_gains_are_of_a_doubling_where_sizes_are_farther_apart() -> None:
    # 1.8 points in two doublings.
    found = judge((100, 400), (0.5, 0.518))
    assert found.suggested_fraction == 0.25


def test_too_few_examples_have_no_curve() -> None:
    found = judge((40,), (0.7,))
    assert (found.sizes, found.suggested_fraction) == ((40,), 1.0)
    assert found.why == "40 examples are too few to draw samples of."


@pytest.mark.parametrize(("distance", "fraction"), [(20.0, 1 / 8), (1.0, 1.0)])
def test_easy_data_need_few_and_hard_ones_all(distance: float, fraction: float) -> None:
    generator = torch.Generator().manual_seed(0)
    labels_N = torch.arange(800) % 4
    features_ND = torch.randn(800, 60, generator=generator)
    features_ND[torch.arange(800), labels_N] += distance
    accuracy = 1.0 if distance > 1 else 0.9
    found = learning_curve(features_ND, labels_N, 4, accuracy, generator=generator)
    assert found.sizes == (100, 200, 400, 800)
    assert found.accuracies[-1] == accuracy
    assert found.suggested_fraction == fraction
