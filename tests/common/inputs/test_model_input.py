"""Columns as models are given them; images are in tests/common/images."""

from __future__ import annotations

import pytest
import torch

from lipt.common.errors import DataError
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.model_input import in_layout, to_model_input
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
    with pytest.raises(DataError, match="the columns tokens, sizes are no images"):
        to_model_input(STORED, image, "cpu")


def test_only_images_have_a_layout() -> None:
    images = in_layout(torch.zeros(2, 3, 4, 4), torch.channels_last)
    assert isinstance(images, torch.Tensor)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert in_layout(STORED, torch.channels_last) is STORED
