from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lipt.common.data import Dataset, open_dataset
from lipt.common.data.loading import load
from lipt.common.data.sources.user_data import FactoryRows
from lipt.common.errors import ConfigError, DataError, FactoryNotAllowedError, LiptError
from lipt.common.inputs.specs import ImageSpec

Write = Callable[[str, str], None]
PIXELS = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)


class Pairs:
    """A map-style data set of pairs, with what else a test gives it."""

    def __init__(self, items: list[tuple[object, object]], **attributes: object) -> None:
        self.items = items
        self.reads: list[int] = []
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> tuple[object, object]:
        self.reads.append(row)
        return self.items[row]


def opened(data: object, *, image_size: int | None = None, budget: int = 2**30) -> Dataset:
    rows = FactoryRows("mine:data", data)
    return load(rows, image_size=image_size, memory_budget_bytes=budget, progress=None)


def test_a_users_data_set_works_from_a_short_file(write_module: Write) -> None:
    write_module(
        "my_data",
        "from PIL import Image\n"
        "def train():\n"
        "    return [(Image.new('RGB', (9, 7), (i, 0, 0)), i % 3) for i in range(6)]\n",
    )
    data = open_dataset("my_data:train", allowed_modules=["my_data"])
    assert data.source == "my_data:train"
    assert data.inputs == ImageSpec(3, 7, 9)
    assert data.class_names == ("0", "1", "2")
    assert data.labels_N.tolist() == [0, 1, 2, 0, 1, 2]
    assert data.images(torch.tensor([4]))[0, :, 0, 0].tolist() == [4, 0, 0]


def test_refuses_a_factory_that_is_not_allowed() -> None:
    with pytest.raises(FactoryNotAllowedError, match="--allow-module my_data"):
        open_dataset("my_data:train")


@pytest.mark.parametrize(
    "image", [PIXELS, torch.from_numpy(PIXELS).permute(2, 0, 1), Image.fromarray(PIXELS)]
)
def test_takes_arrays_tensors_and_pil_images(image: object) -> None:
    data = opened([(image, 0), (image, 1)])
    expected = torch.from_numpy(PIXELS).permute(2, 0, 1)
    assert torch.equal(data.images(torch.tensor([1]))[0], expected)
    # The fingerprint is that of the pixels, whatever holds them.
    assert data.fingerprint == opened([(PIXELS, 0), (PIXELS, 1)]).fingerprint


@pytest.mark.parametrize(
    "image", [PIXELS[:, :, 0], PIXELS[:, :, :1], torch.from_numpy(PIXELS[:, :, 0])]
)
def test_takes_gray_images_with_and_without_channel(image: object) -> None:
    data = opened([(image, 0), (image, 1)])
    assert data.inputs == ImageSpec(1, 2, 3)
    assert data.images(torch.tensor([0]))[0, 0].tolist() == PIXELS[:, :, 0].tolist()


def test_gray_among_colour_becomes_three_channels() -> None:
    data = opened([(PIXELS[:, :, 0], 0), (PIXELS, 1)])
    assert data.inputs == ImageSpec(3, 2, 3)
    assert data.images(torch.tensor([0]))[0].tolist() == [PIXELS[:, :, 0].tolist()] * 3


@pytest.mark.parametrize("label", [1, np.int32(1), torch.tensor(1), True, 1.0])
def test_takes_labels_that_equal_an_integer(label: object) -> None:
    assert opened([(PIXELS, 0), (PIXELS, label)]).labels_N.tolist() == [0, 1]


@pytest.mark.parametrize(
    "targets", [[2, 0, 1], (2, 0, 1), np.array([2, 0, 1], np.uint8), torch.tensor([2, 0, 1])]
)
def test_targets_supply_the_labels(targets: object) -> None:
    # What the rows say of their labels is not looked at.
    data = opened(Pairs([(PIXELS, "x")] * 3, targets=targets, classes=["a", "b", "c"]))
    assert data.labels_N.tolist() == [2, 0, 1]
    assert data.class_names == ("a", "b", "c")


def test_rows_are_read_in_one_pass_and_for_the_fingerprint() -> None:
    pairs = Pairs([(PIXELS, i) for i in range(3)])
    opened(pairs)
    # Row 0: for what its label is, twice for the comparison, once for its size; then the pass, then
    # the fingerprint.
    assert pairs.reads == [0, 0, 0, 0, 0, 1, 2, 0, 1, 2]


def test_a_large_set_is_read_when_asked_for() -> None:
    pairs = Pairs([(PIXELS + i, i) for i in range(3)])
    data = opened(pairs, budget=0)
    assert not data.encoded
    pairs.reads.clear()
    images = data.images(torch.tensor([2, 0, 2]))
    assert pairs.reads == [0, 2, 2]
    assert images[:, 0, 0, 0].tolist() == [2, 0, 2]
    assert data.raw_bytes(1) == (PIXELS + 1).transpose(2, 0, 1).tobytes()
    assert torch.equal(torch.as_tensor(data[1]["image"]), data.images(torch.tensor([1]))[0])
    assert data.labels_N.tolist() == [0, 1, 2]


@pytest.mark.parametrize("data", [42, iter([(PIXELS, 0)]), {1, 2}])
def test_refuses_what_is_not_map_style(data: object) -> None:
    with pytest.raises(ConfigError, match=r"not a map-style data set.*a list of pairs"):
        opened(data)


def test_refuses_an_empty_set() -> None:
    with pytest.raises(DataError, match=r"mine:data holds no images"):
        opened([])


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        (PIXELS, r"row 1 is a ndarray, not a pair of image and label\. Return \(image, label\)"),
        ((PIXELS,), r"row 1 is a tuple, not a pair"),
        ((PIXELS, "dog"), r"row 1 has the label 'dog', a str\. Return the number of its class"),
        ((PIXELS, 0.5), r"row 1 has the label 0\.5, a float"),
        ((PIXELS, float("inf")), r"row 1 has the label inf"),
        ((PIXELS, 2**70), r"row 1 has the label 1180591620717411303424"),
        ((PIXELS, None), r"row 1 has the label None"),
        ((PIXELS, -1), r"row 1 has the label -1, which is not the number of a class"),
        (("a.png", 0), r"the image of row 1 is a str\. Return a PIL image"),
        ((PIXELS / 255.0, 0), r"is float64 of shape \(2, 3, 3\)\. .*without ToTensor or Normalize"),
        ((torch.zeros(3, 2, 3), 0), r"is torch\.float32 of shape \(3, 2, 3\)"),
        ((torch.zeros(2, 3, 3, dtype=torch.uint8), 0), r"of shape \(2, 3, 3\).*C x H x W"),
        ((np.zeros((0, 3, 3), np.uint8), 0), r"of shape \(0, 3, 3\)"),
        ((Image.new("F", (3, 2)), 0), r"the image of row 1 cannot be used: it has floating-point"),
    ],
)
def test_names_the_row_that_cannot_be_used(item: object, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        opened([(PIXELS, 0), item])


def test_names_the_row_that_raises(tmp_path: Path) -> None:
    class Broken(Pairs):
        def __getitem__(self, row: int) -> tuple[object, object]:
            if row == 1:
                raise KeyError("lost")
            return super().__getitem__(row)

    with pytest.raises(DataError, match=r"reading row 1 failed with KeyError: 'lost'"):
        opened(Broken([(PIXELS, 0)] * 2))


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        ([0], "its targets are 1 for 2 rows. Let `targets` be a list of one target per row"),
        (["a", 1], "row 0 is a str. Targets are single-label, multi-label or regression"),
        (["a"], "its targets are 1 for 2 rows"),
        (3, "its targets are not a list"),
    ],
)
def test_refuses_targets_that_are_not_one_of_a_kind_per_row(targets: object, words: str) -> None:
    with pytest.raises(DataError, match=words):
        opened(Pairs([(PIXELS, 0), (PIXELS, 1)], targets=targets))


def test_refuses_more_labels_than_classes() -> None:
    pairs = Pairs([(PIXELS, 0), (PIXELS, 2)], classes=["a", "b"])
    with pytest.raises(DataError, match=r"row 1 has the label 2, .* its 2 classes"):
        opened(pairs)


def test_refuses_random_transforms() -> None:
    class Flickering(Pairs):
        def __getitem__(self, row: int) -> tuple[object, object]:
            self.reads.append(row)
            return PIXELS + len(self.reads), 0

    with pytest.raises(DataError, match=r"row 0 differs between two reads\. Leave random"):
        opened(Flickering([(PIXELS, 0)] * 2))


@pytest.mark.parametrize("body", ["raise ValueError('no disk')", "return needed"])
def test_shows_what_the_factory_raised(write_module: Write, body: str) -> None:
    write_module("my_data", f"def train():\n    {body}\n")
    with pytest.raises(
        LiptError, match=r"failed with (ValueError: no disk|NameError).*def factory\(\)"
    ):
        open_dataset("my_data:train", allowed_modules=["my_data"])
