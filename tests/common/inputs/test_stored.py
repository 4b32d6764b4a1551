"""Stored examples of both kinds; the same operation gives both the same rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lipt.common.inputs.model_input import (
    Stored,
    columns_in,
    images_in,
    num_stored,
    rows_of,
    split_evenly,
    split_stored,
    stored_on,
)

IMAGES = torch.arange(7 * 4, dtype=torch.uint8).view(7, 1, 2, 2)
COLUMNS = {"ids": torch.arange(14).view(7, 2), "size": torch.arange(7).float()}


def first_ids(stored: Stored) -> list[int]:
    """The numbers of the examples, which each one's first value tells."""
    if isinstance(stored, Tensor):
        return (stored[:, 0, 0, 0] // 4).tolist()
    numbers: list[int] = stored["size"].int().tolist()
    assert (stored["ids"][:, 0] // 2).tolist() == numbers
    return numbers


@pytest.fixture(params=["images", "columns"])
def stored(request: pytest.FixtureRequest) -> Stored:
    return IMAGES if request.param == "images" else COLUMNS


def test_rows_are_taken_by_number_and_by_slice(stored: Stored) -> None:
    assert num_stored(stored) == 7
    assert first_ids(rows_of(stored, torch.tensor([3, 0, 3]))) == [3, 0, 3]
    assert first_ids(rows_of(stored, slice(5, 9))) == [5, 6]


def test_parts_have_one_size_and_a_rest(stored: Stored) -> None:
    assert [first_ids(part) for part in split_stored(stored, 3)] == [[0, 1, 2], [3, 4, 5], [6]]


def test_even_parts_are_those_of_tensor_split(stored: Stored) -> None:
    expected = [part.tolist() for part in torch.arange(7).tensor_split(3)]
    assert [first_ids(part) for part in split_evenly(stored, 3)] == expected


def test_examples_move_to_a_device(stored: Stored) -> None:
    moved = stored_on(stored, "meta")
    tensors = [moved] if isinstance(moved, Tensor) else list(moved.values())
    assert all(tensor.is_meta for tensor in tensors)


def test_neither_kind_is_taken_for_the_other() -> None:
    assert images_in(IMAGES) is IMAGES
    assert columns_in(COLUMNS) is COLUMNS
    with pytest.raises(TypeError, match=r"columns .* in place of images"):
        images_in(COLUMNS)
    with pytest.raises(TypeError, match="images in place of columns"):
        columns_in(IMAGES)
