from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lipt.common.data.sources.rows import ColumnRows
from lipt.common.data.sources.user_data import FactoryRows, column_rows, rows_of_data
from lipt.common.errors import DataError
from lipt.common.inputs.specs import Column, ColumnType


class Pairs(list[Any]):
    """A list of rows, with what else a test gives it."""

    def __init__(self, rows: list[Any], **attributes: object) -> None:
        super().__init__(rows)
        self.__dict__.update(attributes)


def of(*examples: Any, **attributes: object) -> ColumnRows:
    """Rows of these examples, of alternating classes."""
    rows = [(example, row % 2) for row, example in enumerate(examples)]
    return column_rows("mine:data", Pairs(rows, **attributes))


@pytest.mark.parametrize(
    ("example", "column"),
    [
        (torch.zeros(3), Column("", ColumnType.FLOAT32, (3,))),
        (torch.zeros(3, 8, 8), Column("", ColumnType.FLOAT32, (3, 8, 8))),
        (np.zeros((2, 2)), Column("", ColumnType.FLOAT64, (2, 2))),
        (np.int32(4), Column("", ColumnType.INT32, ())),
        ([1, 2, 3], Column("", ColumnType.INT64, (3,))),
        (0.5, Column("", ColumnType.FLOAT32, ())),
        (torch.zeros(4, 5, 5, dtype=torch.uint8), Column("", ColumnType.UINT8, (4, 5, 5))),
        (torch.tensor([True]), Column("", ColumnType.BOOL, (1,))),
    ],
)
def test_a_tensor_array_or_number_is_one_column_without_a_name(
    example: object, column: Column
) -> None:
    rows = rows_of_data("mine:data", [(example, 0), (example, 1)])
    assert isinstance(rows, ColumnRows)
    assert rows.columns == (column,)
    assert rows.labels_N.tolist() == [0, 1]


@pytest.mark.parametrize(
    "example",
    [
        torch.zeros(3, 8, 8, dtype=torch.uint8),
        torch.zeros(8, 8, dtype=torch.uint8),
        np.zeros((8, 8, 1), np.uint8),
        Image.new("RGB", (8, 8)),
        {"image": Image.new("L", (8, 8))},
    ],
)
def test_pictures_stay_images(example: Any) -> None:
    rows = [{**example, "label": 0}] * 2 if isinstance(example, dict) else [(example, 0)] * 2
    assert isinstance(rows_of_data("mine:data", rows), FactoryRows)


def test_bytes_with_channels_at_the_wrong_end_are_no_column_by_accident() -> None:
    rows = [(torch.zeros(8, 8, 3, dtype=torch.uint8), 0)]
    with pytest.raises(DataError, match=r"shape \(8, 8, 3\)\. .*C x H x W"):
        rows_of_data("mine:data", rows)


def test_shorter_examples_are_padded_and_the_lengths_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    examples = [
        {"ids": torch.tensor([7, 8, 9]), "one": 1.0},
        {"ids": torch.tensor([5]), "one": 2.0},
    ]
    rows = of(*examples)
    assert rows.tensors["ids"].tolist() == [[7, 8, 9], [5, 0, 0]]
    assert rows.tensors["one"].tolist() == [1.0, 2.0]
    assert "the tensor 'ids' is 1 to 3 long; shorter ones are padded" in caplog.text


def test_a_collate_of_the_users_own_makes_the_tensors() -> None:
    def collate(examples: list[str]) -> dict[str, torch.Tensor]:
        return {"letters": torch.tensor([[ord(letter) for letter in text] for text in examples])}

    rows = of("ab", "c", collate=collate)
    assert rows.tensors["letters"].tolist() == [[97, 98], [99, 0]]


def test_attributes_say_what_is_standardized_and_how_many_values_there_are() -> None:
    example = {"size": torch.zeros(2), "ids": torch.tensor([3])}
    size, ids = of(example, example, standardize=True, num_values={"ids": 9}).columns
    assert (size.standardized, ids.standardized, size.num_values, ids.num_values) == (1, 0, 0, 9)
    assert of(example, standardize=["size"]).columns[0].standardized
    with pytest.raises(DataError, match="no column 'sizes' to standardize or to number"):
        of(example, standardize=["sizes"])


def test_names_become_numbers_in_sorted_order_and_stay_names() -> None:
    rows = column_rows("mine:data", [([1.0], "dog"), ([2.0], "cat"), ([3.0], "dog")])
    assert rows.class_names == ("cat", "dog")
    assert rows.labels_N.tolist() == [1, 0, 1]


def test_classes_of_the_data_set_number_the_names() -> None:
    data = Pairs([([1.0], "dog"), ([2.0], "cat")], classes=["dog", "cat", "bird"])
    rows = column_rows("mine:data", data)
    assert (rows.class_names, rows.labels_N.tolist()) == (("dog", "cat", "bird"), [0, 1])
    with pytest.raises(DataError, match="row 1 has the label 'cow', which is none of its classes"):
        column_rows("mine:data", Pairs([([1.0], "dog"), ([2.0], "cow")], classes=["dog"]))


def test_images_take_names_as_labels_too() -> None:
    picture = np.zeros((4, 4), np.uint8)
    rows = FactoryRows("mine:data", [(picture, "b"), (picture, "a")])
    assert (rows.class_names, rows.labels_N.tolist()) == (("a", "b"), [1, 0])


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([([1.0], 0.5)], "the target 0 is the same number for all 1 examples"),
        ([([1.0], torch.tensor([1, 2]))], "row 0 has 2.0 for label 1, which is neither 0 nor 1"),
        (
            [([1.0], {"boxes": []})],
            "row 0 is a dict. Targets are single-label, multi-label or reg",
        ),
        ([("text", 0)], "the tensor of row 0 is text, 'text'.*numbers of its tokens"),
        ([({"x": None}, 0)], "the tensor 'x' of row 0 is a NoneType"),
        ([([1.0], 0), ([1, 2], 1)], "row 1 is torch.int64, and torch.float32 in row 0"),
        (
            [(torch.zeros(2, 2), 0), (torch.zeros(2, 3), 1)],
            r"row 1 has the shape \(2, 3\), and \(2, 2\) in row 0\. Only lengths along the first",
        ),
        ([({"x": 1.0}, 0), ({"y": 1.0}, 1)], "row 1 has the tensors 'y', row 0 'x'"),
        ([(torch.zeros(2, dtype=torch.complex64), 0)], "is torch.complex64 of 1 dimensions"),
        ([({"x": 1.0},)], "row 0 is a tuple, not a pair"),
        ([{"x": 1.0}], 'row 0 is a dictionary of x.*its class as "label"'),
        ([([], 0), ([], 1)], "the tensor is empty in all rows"),
    ],
)
def test_names_the_row_that_cannot_be_used(rows: list[Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        column_rows("mine:data", rows)


def test_refuses_random_transforms() -> None:
    class Noisy(Pairs):
        reads = 0

        def __getitem__(self, row: Any) -> Any:
            self.reads += 1
            return torch.tensor([float(self.reads)]), row

    with pytest.raises(DataError, match=r"row 0 differs between two reads\. Leave random"):
        column_rows("mine:data", Noisy([0, 1]))


@pytest.mark.parametrize(
    ("collate", "sentence"),
    [
        (lambda _: 1 / 0, "its collate failed on row 0 with ZeroDivisionError"),
        (lambda _: torch.zeros(3), r"its collate makes the tensor of shape \(3,\) of one example"),
    ],
)
def test_says_what_is_wrong_with_a_collate(collate: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        of([1.0], collate=collate)
