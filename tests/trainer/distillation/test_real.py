from __future__ import annotations

from typing import Any

import pytest
import torch

from lipt.common.data import Dataset, open_dataset
from lipt.common.data.dataset import in_memory
from lipt.common.errors import DataError, SubsetError
from lipt.trainer.distillation.real import RealExamples


def made_up(labels: list[int]) -> Dataset:
    """Images of one pixel, as bright as their row's number."""
    images = torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1)
    return in_memory("made up", ("no", "yes"), torch.tensor(labels), "f" * 64, images)


def test_examples_are_grouped_by_class() -> None:
    real = RealExamples.of(made_up([1, 0, 1, 0, 0]), None, at_least=2)
    assert [ids_M.tolist() for ids_M in real.ids] == [[1, 3, 4], [0, 2]]
    assert real.pixels(torch.tensor([4, 0])).flatten().tolist() == pytest.approx([4 / 255, 0])


def test_a_subset_gives_its_examples_and_their_weights(subset_of: Any) -> None:
    data = made_up([1, 0, 1, 0, 0])
    real = RealExamples.of(data, subset_of(data, [0, 3, 4], [1.0, 0.5, 0.0]), at_least=1)
    # What has no weight gives no gradient.
    assert [ids_M.tolist() for ids_M in real.ids] == [[3], [0]]
    assert real.weights_N.tolist() == [1, 0, 0, 0.5, 0]


def test_a_draw_has_all_of_a_small_class_once() -> None:
    real = RealExamples.of(made_up([1, 0, 1, 0, 0]), None, at_least=1)
    assert sorted(real.draw(0, 10, torch.Generator()).tolist()) == [1, 3, 4]
    assert len(set(real.draw(0, 2, torch.Generator()).tolist())) == 2


def test_the_easiest_of_each_class_are_left_out() -> None:
    real = RealExamples.of(made_up([1, 0, 1, 0, 0, 0]), None, at_least=1)
    losses_N = torch.tensor([0.1, 0.5, 9.0, 0.2, 0.7, 0.2])
    kept = real.without_easiest(losses_N, 0.5, at_least=1)
    assert [ids_M.tolist() for ids_M in kept.ids] == [[1, 4], [2]]
    kept = real.without_easiest(losses_N, 0.9, at_least=2)
    assert [ids_M.tolist() for ids_M in kept.ids] == [[1, 4], [0, 2]]
    # Of equal losses the first rows stay, and a share is rounded in the examples' favour.
    kept = real.without_easiest(torch.zeros(6), 0.3, at_least=1)
    assert [ids_M.tolist() for ids_M in kept.ids] == [[1, 3, 4], [0, 2]]


def test_more_than_a_class_has_is_refused() -> None:
    with pytest.raises(DataError) as caught:
        RealExamples.of(made_up([1, 0, 1, 0, 0]), None, at_least=3)
    assert str(caught.value) == (
        "the class 'yes' of made up has 2 images to distil 3 from. Ask for fewer per class, or "
        "give more images."
    )


def test_what_is_no_image_or_no_class_is_refused() -> None:
    with pytest.raises(DataError, match="only images with one class each are distilled"):
        RealExamples.of(open_dataset("wine"), None, at_least=1)


def test_another_data_sets_subset_is_refused(subset_of: Any, digits: Dataset) -> None:
    with pytest.raises(SubsetError, match="the subset belongs to data with fingerprint"):
        RealExamples.of(digits, subset_of(made_up([0, 1]), [0]), at_least=1)
