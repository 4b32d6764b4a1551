"""Columns as models are given them; images are in tests/common/images."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lipt.common.errors import DataError
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.model_input import (
    Stored,
    columns_in,
    images_in,
    in_layout,
    num_stored,
    rows_of,
    split_evenly,
    split_stored,
    stored_on,
    to_model_input,
)
from lipt.common.inputs.specs import Column, ColumnFormat, ColumnsFormat, ColumnType

TOKENS = ColumnFormat(Column("tokens", ColumnType.INT64, (2,), num_values=9))
SIZES = ColumnFormat(
    Column("sizes", ColumnType.FLOAT32, (2,), standardized=True), (1.0, 10.0), (2.0, 5.0)
)
STORED = {"tokens": torch.tensor([[1, 2]]), "sizes": torch.tensor([[3.0, 20.0]])}


def test_columns_are_given_by_name_and_only_standardized_ones_change() -> None:
    inputs = to_model_input(STORED, ColumnsFormat((TOKENS, SIZES)), "cpu")
    assert isinstance(inputs, dict)
    assert inputs["tokens"].tolist() == [[1, 2]]
    # 3 is one deviation of 2 above the mean of 1, and 20 two deviations of 5 above 10.
    assert inputs["sizes"].tolist() == [[1.0, 2.0]]
    assert STORED["sizes"].tolist() == [[3.0, 20.0]]


def test_one_tensor_without_a_name_is_given_alone() -> None:
    alone = ColumnsFormat((ColumnFormat(Column("", ColumnType.BOOL, (2,))),))
    inputs = to_model_input({"": torch.tensor([[True, False]])}, alone, "cpu")
    assert isinstance(inputs, torch.Tensor)
    assert inputs.tolist() == [[True, False]]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (ColumnType.FLOAT16, torch.float32),
        (ColumnType.BFLOAT16, torch.float32),
        (ColumnType.FLOAT32, torch.float32),
        (ColumnType.FLOAT64, torch.float64),
    ],
)
def test_standardized_numbers_are_at_least_single_precision(
    kind: ColumnType, given: torch.dtype
) -> None:
    number = ColumnFormat(Column("x", kind, (), standardized=True), (2.0,), (4.0,))
    stored = {"x": torch.tensor([6.0, 2.0], dtype=kind.dtype)}
    inputs = to_model_input(stored, ColumnsFormat((number,)), "cpu")
    assert isinstance(inputs, dict)
    assert (inputs["x"].dtype, inputs["x"].tolist()) == (given, [1.0, 0.0])


@pytest.mark.parametrize(
    "stored",
    [
        {**STORED, "tokens": STORED["tokens"].int()},
        {**STORED, "tokens": torch.zeros(1, 3, dtype=torch.int64)},
        {"tokens": STORED["tokens"]},
        {**STORED, "more": STORED["sizes"]},
        torch.zeros(1, 1, 2, 2, dtype=torch.uint8),
    ],
)
def test_other_examples_than_the_runs_are_refused(stored: dict[str, torch.Tensor]) -> None:
    with pytest.raises(DataError, match="the data set that the run was made with"):
        to_model_input(stored, ColumnsFormat((TOKENS, SIZES)), "cpu")


def test_columns_are_no_images() -> None:
    image = ImageFormat(1, 2, 2, mean=(0.5,), std=(0.5,))
    with pytest.raises(DataError, match="the columns tokens, sizes are not images"):
        to_model_input(STORED, image, "cpu")


def test_only_images_have_a_layout() -> None:
    images = in_layout(torch.zeros(2, 3, 4, 4), torch.channels_last)
    assert isinstance(images, torch.Tensor)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert in_layout(STORED, torch.channels_last) is STORED


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
