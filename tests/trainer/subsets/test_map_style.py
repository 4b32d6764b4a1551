from __future__ import annotations

from typing import Any

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import FakeData

from lipt.common.errors import DataError
from lipt.trainer.subsets.map_style import map_style, rows_of


def test_columns_become_pairs() -> None:
    images = np.arange(2 * 8 * 8, dtype=np.uint8).reshape(2, 8, 8)
    rows = map_style((images, np.array([1, 0])))
    assert len(rows) == 2
    assert np.array_equal(rows[1][0], images[1])
    assert (rows[0][1], rows[1][1]) == (1, 0)
    assert not hasattr(rows, "classes")


def test_columns_may_be_tensors_lists_frames_or_a_dictionary() -> None:
    features = torch.arange(6.0).reshape(3, 2)
    assert map_style((features, torch.tensor([0, 1, 1])))[2][0].tolist() == [4.0, 5.0]
    assert map_style(([[1, 2], [3, 4]], [0, 1]))[1] == ([3, 4], 1)
    table: Any = map_style((_Frame(np.eye(2)), _Frame(np.array([5, 6]))))
    assert table[1][0].tolist() == [0.0, 1.0]
    assert table.targets.tolist() == [5, 6]
    texts = {"input_ids": torch.tensor([[7, 8], [9, 0]]), "mask": torch.ones(2, 2)}
    example, label = map_style((texts, [0, 1]))[1]
    assert (example["input_ids"].tolist(), example["mask"].tolist(), label) == ([9, 0], [1, 1], 1)


class _Frame:
    """As pandas has it."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def to_numpy(self) -> np.ndarray:
        return self._values


def test_images_of_an_array_may_have_their_channels_first() -> None:
    images = np.zeros((2, 3, 8, 10), np.uint8)
    assert map_style((images, [0, 1]))[0][0].shape == (8, 10, 3)
    assert map_style((images.transpose(0, 2, 3, 1), [0, 1]))[0][0].shape == (8, 10, 3)


def test_names_of_labels_are_numbered_in_their_order_and_kept() -> None:
    rows = map_style((np.zeros((3, 8, 8), np.uint8), ["dog", "cat", "dog"]))
    assert rows.targets.tolist() == [1, 0, 1]
    assert rows.classes == ("cat", "dog")


def test_columns_of_two_lengths_are_refused() -> None:
    with pytest.raises(DataError, match="there are 3 examples and 2 labels"):
        map_style((np.zeros((3, 8, 8), np.uint8), [0, 1]))


def test_two_rows_are_no_columns() -> None:
    rows = ((torch.zeros(1, 8, 8), 0), (torch.ones(1, 8, 8), 1))
    assert map_style(rows) is rows
    assert rows_of([1, 2]) == [1, 2]


def test_a_table_gives_its_image_and_its_class() -> None:
    images = [Image.new("L", (8, 8), value) for value in (10, 20)]
    features = datasets.Features(
        {"id": datasets.Value("int64"), "image": datasets.Image(), "label": _classes()}
    )
    table = datasets.Dataset.from_dict(
        {"id": [7, 8], "image": images, "label": [1, 0]}, features=features
    )
    rows = map_style(table)
    assert (len(rows), rows.classes, rows.targets.tolist()) == (2, ("cat", "dog"), [1, 0])
    image, label = rows[1]
    assert (image.getpixel((0, 0)), label) == (20, 0)


def test_a_table_without_images_gives_what_is_not_the_label() -> None:
    table = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    assert map_style(table)[1] == ("b", 1)
    wide = datasets.Dataset.from_dict({"a": [1.0, 2.0], "b": [3.0, 4.0], "labels": [0, 1]})
    assert map_style(wide)[1] == ({"a": 2.0, "b": 4.0}, 1)


def test_a_table_without_labels_is_refused() -> None:
    table = datasets.Dataset.from_dict({"text": ["a"], "stars": [5]})
    with pytest.raises(DataError, match="the columns text, stars, and none of them is called"):
        map_style(table)


def test_transforms_are_left_out_and_the_data_stays_as_it_is() -> None:
    data = FakeData(2, (3, 8, 8), transform=lambda image: "augmented")
    assert isinstance(map_style(data)[0][0], Image.Image)
    assert data[0][0] == "augmented"


def _classes() -> Any:
    return datasets.ClassLabel(names=["cat", "dog"])
