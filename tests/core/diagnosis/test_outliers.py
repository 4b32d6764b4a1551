from __future__ import annotations

import math

import pytest
import torch

from lipt.core.diagnosis.outliers import find_outliers


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_scores_are_mean_distances_to_the_ten_nearest_others() -> None:
    points_ND = torch.randn(60, 3, generator=generator())
    scaled = (points_ND - points_ND.mean(dim=0)) / points_ND.std(dim=0, correction=0)
    expected = []
    for one in scaled.tolist():
        distances = sorted(math.dist(one, other) for other in scaled.tolist())
        expected.append(sum(distances[1:11]) / 10)
    median = sorted(expected)[29]
    found = find_outliers(points_ND, generator=generator())
    assert found.scores_N.tolist() == pytest.approx([one / median for one in expected], rel=1e-3)


@pytest.mark.parametrize("num_features", [5, 400])
def test_what_is_far_from_everything_comes_first(num_features: int) -> None:
    points_ND = torch.randn(300, num_features, generator=generator())
    points_ND[7] *= 8
    points_ND[3] *= 30
    assert find_outliers(points_ND, generator=generator()).ranked()[:2].tolist() == [3, 7]


def test_even_data_have_no_outliers() -> None:
    points_ND = torch.rand(400, 2, generator=generator())
    assert len(find_outliers(points_ND, generator=generator()).ranked()) < 4


def test_copies_alone_have_no_outliers() -> None:
    found = find_outliers(torch.ones(30, 4), generator=generator())
    assert found.scores_N.tolist() == [0.0] * 30
    assert found.ranked().tolist() == []


def test_one_example_is_no_outlier() -> None:
    assert find_outliers(torch.ones(1, 2), generator=generator()).ranked().tolist() == []


def test_two_examples_are_equally_far() -> None:
    found = find_outliers(torch.tensor([[0.0], [1.0]]), generator=generator())
    assert found.scores_N.tolist() == [1.0, 1.0]
