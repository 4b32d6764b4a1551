from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lipt.common.errors import ConfigError
from lipt.core.learner.pruning import masks_of_largest

shapes = st.lists(st.lists(st.integers(0, 5), min_size=0, max_size=3), min_size=1, max_size=4)


def drawn_scores(sizes: list[list[int]], seed: int, num_values: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        f"tensor{index}": torch.randint(num_values, size, generator=generator).float()
        for index, size in enumerate(sizes)
    }


def test_one_threshold_is_shared_by_all_tensors() -> None:
    scores = {"a": torch.tensor([[1.0, 5.0], [2.0, 6.0]]), "b": torch.tensor([3.0, 4.0])}
    masks = masks_of_largest(scores, 0.5)
    # 3 of 6 are kept: 5, 6 and 4.
    assert masks["a"].tolist() == [[False, True], [False, True]]
    assert masks["b"].tolist() == [False, True]


def test_of_equal_scores_the_first_are_kept() -> None:
    scores = {"a": torch.tensor([2.0, 1.0, 1.0]), "b": torch.tensor([[1.0, 2.0, 1.0]])}
    masks = masks_of_largest(scores, 0.5)
    assert masks["a"].tolist() == [True, True, False]
    assert masks["b"].tolist() == [[False, True, False]]


@pytest.mark.parametrize(("density", "kept"), [(0.25, 2), (0.35, 4), (0.04, 0), (1.0, 10)])
def test_number_kept_is_rounded_with_halves_to_even(density: float, kept: int) -> None:
    # 2.5 -> 2, 3.5 -> 4, 0.4 -> 0.
    masks = masks_of_largest({"a": torch.arange(10.0)}, density)
    assert masks["a"].tolist() == [False] * (10 - kept) + [True] * kept


@given(
    sizes=shapes,
    density=st.floats(0.0, 1.0, exclude_min=True),
    seed=st.integers(0, 2**32),
    num_values=st.sampled_from([1, 2, 5, 1000]),
)
def test_exactly_the_rounded_share_is_kept_and_it_is_the_stable_sorts(
    sizes: list[list[int]], density: float, seed: int, num_values: int
) -> None:
    scores = drawn_scores(sizes, seed, num_values)
    masks = masks_of_largest(scores, density)
    assert {name: mask.shape for name, mask in masks.items()} == {
        name: score.shape for name, score in scores.items()
    }
    flat_T = torch.cat([score.flatten() for score in scores.values()])
    kept_T = torch.cat([mask.flatten() for mask in masks.values()])
    count = round(density * len(flat_T))
    best = flat_T.argsort(descending=True, stable=True)[:count]
    assert kept_T.nonzero().flatten().tolist() == sorted(best.tolist())


def test_non_contiguous_scores_are_ranked_by_element() -> None:
    scores = torch.arange(6.0).view(2, 3).t()
    assert masks_of_largest({"a": scores}, 0.5)["a"].tolist() == (scores >= 3).tolist()


def test_nothing_prunable_gives_nothing() -> None:
    assert masks_of_largest({}, 0.5) == {}


@pytest.mark.parametrize("density", [0.0, -0.1, 1.0001, 85.0, math.nan, math.inf])
def test_density_outside_the_unit_interval_is_refused(density: float) -> None:
    with pytest.raises(ConfigError) as raised:
        masks_of_largest({"a": torch.ones(3)}, density)
    assert f"density {density} is outside (0, 1]" in str(raised.value)
    assert "KEEPS" in str(raised.value)
