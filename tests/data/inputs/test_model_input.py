import pytest
import torch
from torch import Tensor

from lipt.common.errors import DataError
from lipt.data.inputs.model_input import (
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
from lipt.data.inputs.specs import Column, ColumnFormat, ColumnsFormat, ColumnType, ImageFormat

GRAY = ImageFormat(1, 1, 3, mean=(0.5,), std=(0.25,))
TOKENS = ColumnFormat(Column("tokens", ColumnType.INT64, (2,), num_values=9))
SIZES = ColumnFormat(
    Column("sizes", ColumnType.FLOAT32, (2,), standardized=True), (1.0, 10.0), (2.0, 5.0)
)
FORMAT = ColumnsFormat((TOKENS, SIZES))
STORED = {"tokens": torch.tensor([[1, 2]]), "sizes": torch.tensor([[3.0, 20.0]])}


def test_images_are_scaled_to_one_then_normalized() -> None:
    # 0 -> (0 - 0.5) / 0.25 = -2, 255 -> (1 - 0.5) / 0.25 = 2, 51 -> (0.2 - 0.5) / 0.25 = -1.2
    images = torch.tensor([[[[0, 255, 51]]]], dtype=torch.uint8)
    inputs = to_model_input(images, GRAY, "cpu")
    assert isinstance(inputs, Tensor)
    assert inputs.dtype == torch.float32
    torch.testing.assert_close(inputs, torch.tensor([[[[-2.0, 2.0, -1.2]]]]))


def test_columns_are_passed_by_name_and_only_standardized_columns_change() -> None:
    inputs = to_model_input(STORED, FORMAT, "cpu")
    assert isinstance(inputs, dict)
    assert inputs["tokens"].tolist() == [[1, 2]]
    # 3 is one deviation of 2 above the mean of 1, and 20 two deviations of 5 above 10.
    assert inputs["sizes"].tolist() == [[1.0, 2.0]]
    assert STORED["sizes"].tolist() == [[3.0, 20.0]]
    alone = ColumnsFormat((ColumnFormat(Column("", ColumnType.BOOL, (2,))),))
    values = torch.tensor([[True, False]])
    assert to_model_input({"": values}, alone, "cpu") is values
    for kind in (ColumnType.FLOAT16, ColumnType.BFLOAT16, ColumnType.FLOAT64):
        number = ColumnFormat(Column("x", kind, (), standardized=True), (2.0,), (4.0,))
        stored = {"x": torch.tensor([6.0, 2.0], dtype=kind.dtype)}
        inputs = to_model_input(stored, ColumnsFormat((number,)), "cpu")
        assert isinstance(inputs, dict)
        assert (inputs["x"].dtype, inputs["x"].tolist()) == (torch.float32, [1.0, 0.0])


@pytest.mark.parametrize(
    ("stored", "inputs", "words"),
    [
        (torch.zeros(2, 1, 1, 3), GRAY, r"not uint8 \[B, 1, 1, 3\]"),
        (torch.zeros(1, 1, 3, dtype=torch.uint8), GRAY, "not uint8"),
        (torch.zeros(2, 3, 1, 3, dtype=torch.uint8), GRAY, "not uint8"),
        (STORED, GRAY, "the columns tokens, sizes are not images"),
        ({**STORED, "tokens": STORED["tokens"].int()}, FORMAT, "does not fit"),
        ({**STORED, "tokens": torch.zeros(1, 3, dtype=torch.int64)}, FORMAT, "does not fit"),
        ({"tokens": STORED["tokens"]}, FORMAT, "are not those of the run"),
        ({**STORED, "more": STORED["sizes"]}, FORMAT, "are not those of the run"),
        (torch.zeros(1, 1, 2, 2, dtype=torch.uint8), FORMAT, "are not those of the run"),
    ],
)
def test_examples_of_another_format_are_refused(
    stored: Stored, inputs: ImageFormat | ColumnsFormat, words: str
) -> None:
    with pytest.raises(DataError, match=f"{words}.*the data set that the run was made with"):
        to_model_input(stored, inputs, "cpu")


def test_images_and_columns_are_told_apart() -> None:
    images = in_layout(torch.zeros(2, 3, 4, 4), torch.channels_last)
    assert isinstance(images, Tensor)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert in_layout(STORED, torch.channels_last) is STORED
    assert images_in(images) is images
    assert columns_in(STORED) is STORED
    with pytest.raises(TypeError, match="dict in place of images"):
        images_in(STORED)
    with pytest.raises(TypeError, match="images in place of columns"):
        columns_in(images)


IMAGES = torch.arange(7 * 4, dtype=torch.uint8).view(7, 1, 2, 2)
COLUMNS = {"ids": torch.arange(14).view(7, 2), "size": torch.arange(7).float()}


def first_ids(stored: Stored) -> list[int]:
    """The numbers of the examples, by each one's first value."""
    if isinstance(stored, Tensor):
        return (stored[:, 0, 0, 0] // 4).tolist()
    numbers: list[int] = stored["size"].int().tolist()
    assert (stored["ids"][:, 0] // 2).tolist() == numbers
    return numbers


@pytest.mark.parametrize("stored", [IMAGES, COLUMNS], ids=["images", "columns"])
def test_rows_and_slices_work_for_images_and_columns(stored: Stored) -> None:
    assert num_stored(stored) == 7
    assert first_ids(rows_of(stored, torch.tensor([3, 0, 3]))) == [3, 0, 3]
    assert first_ids(rows_of(stored, slice(5, 9))) == [5, 6]
    assert [first_ids(part) for part in split_stored(stored, 3)] == [[0, 1, 2], [3, 4, 5], [6]]
    expected = [part.tolist() for part in torch.arange(7).tensor_split(3)]
    assert [first_ids(part) for part in split_evenly(stored, 3)] == expected
    moved = stored_on(stored, "meta")
    tensors = [moved] if isinstance(moved, Tensor) else list(moved.values())
    assert all(tensor.is_meta for tensor in tensors)
