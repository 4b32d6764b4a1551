from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.datasets import FakeData, ImageFolder, VisionDataset

from lipt.common.data import open_dataset
from lipt.common.data.loading import load
from lipt.common.data.sources.user_data import FactoryRows
from lipt.common.errors import DataError, SubsetError
from lipt.trainer.subsets.data import map_style, row_numbers
from lipt.trainer.subsets.subset import Subset
from tests.trainer.made_up import made_up_subset


def test_columns_may_be_arrays_tensors_lists_frames_or_a_dictionary() -> None:
    images = np.arange(2 * 8 * 8, dtype=np.uint8).reshape(2, 8, 8)
    rows = map_style((images, np.array([1, 0])))
    assert (len(rows), rows[0][1]) == (2, 1)
    assert np.array_equal(rows[1][0], images[1])
    assert not hasattr(rows, "classes")
    features = torch.arange(6.0).reshape(3, 2)
    assert map_style((features, torch.tensor([0, 1, 1])))[2][0].tolist() == [4.0, 5.0]
    assert map_style(([[1, 2], [3, 4]], [0, 1]))[1] == ([3, 4], 1)
    counts: Any = map_style((np.array([[1, 2]]), _Series(np.array([5]))))
    assert (counts[0][0].dtype, counts.targets.tolist()) == (np.float32, [5])
    texts = {"input_ids": torch.tensor([[7, 8], [9, 0]]), "mask": torch.ones(2, 2)}
    example, label = map_style((texts, [0, 1]))[1]
    assert (example["input_ids"].tolist(), example["mask"].tolist(), label) == ([9, 0], [1, 1], 1)


class _Series:
    """As pandas has it."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def to_numpy(self) -> np.ndarray:
        return self._values


def test_a_table_gives_its_image_or_all_columns_and_its_label() -> None:
    images = [Image.new("L", (8, 8), value) for value in (10, 20)]
    classes = datasets.ClassLabel(names=["cat", "dog"])
    features = datasets.Features(
        {"id": datasets.Value("int64"), "image": datasets.Image(), "label": classes}
    )
    columns = {"id": [7, 8], "image": images, "label": [1, 0]}
    rows = map_style(datasets.Dataset.from_dict(columns, features=features))
    assert (len(rows), rows.classes, rows.targets.tolist()) == (2, ("cat", "dog"), [1, 0])
    image, label = rows[1]
    assert (image.getpixel((0, 0)), label) == (20, 0)
    vectors = {"a": [[1.0], [2.0]], "b": [[3.0], [4.0]], "labels": [0, 1]}
    assert map_style(datasets.Dataset.from_dict(vectors))[1] == ({"a": [2.0], "b": [4.0]}, 1)
    table = datasets.Dataset.from_dict({"vector": [[1.0]], "stars": [5]})
    with pytest.raises(DataError, match="the columns vector, stars, and none of them is called"):
        map_style(table)


def test_transforms_are_skipped_and_the_data_unchanged() -> None:
    data = FakeData(2, (3, 8, 8), transform=lambda image: "augmented")
    assert isinstance(map_style(data)[0][0], Image.Image)
    assert data[0][0] == "augmented"


def test_row_numbers_are_python_ints() -> None:
    rows = row_numbers(np.array([2, 5, 2**40]))
    assert [type(rows[0]), rows[0], rows[-1]] == [int, 2, 2**40]
    with pytest.raises(IndexError):
        rows[3]


NUM_ROWS = 70  # more than the rows that a fingerprint samples


def subset_for(fingerprint: str, num_examples: int | None = NUM_ROWS) -> Subset:
    manifest: Any = {} if num_examples is None else {"data": {"num_examples": num_examples}}
    return made_up_subset([2, 5, 9], fingerprint=fingerprint, **manifest)


def images() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (NUM_ROWS, 3, 4, 4), dtype=torch.uint8, generator=generator)


class Pairs(Dataset[tuple[torch.Tensor, int]]):
    """A user's own data set, without `targets`."""

    def __init__(self) -> None:
        self.images_NCHW = images()

    def __len__(self) -> int:
        return NUM_ROWS

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return self.images_NCHW[row], row % 3


class Vision(VisionDataset):
    """As torchvision's CIFAR: PIL images, `targets`, `classes`, a transform."""

    def __init__(self, transform: Callable[[Any], Any] | None = None) -> None:
        super().__init__("", transform=transform)
        self.images_NHWC = images().permute(0, 2, 3, 1).numpy()
        self.targets = [row % 3 for row in range(NUM_ROWS)]
        self.classes = ["a", "b", "c"]

    def __len__(self) -> int:
        return NUM_ROWS

    def __getitem__(self, row: int) -> tuple[Any, int]:
        image: Any = Image.fromarray(self.images_NHWC[row])
        return self.transform(image) if self.transform else image, self.targets[row]


def served(data: Any) -> str:
    """The fingerprint that a coordinator has that was given `module:factory`."""
    return load(FactoryRows("m:f", data), memory_budget_bytes=2**20).fingerprint


def test_a_lipt_data_set_is_identified_by_its_fingerprint() -> None:
    digits = open_dataset("digits")
    chosen = subset_for(digits.fingerprint, len(digits)).apply(digits)
    assert len(chosen) == 3
    assert torch.equal(chosen[1]["image"], digits[5]["image"])  # type: ignore[arg-type]


def test_other_data_and_lengths_are_refused() -> None:
    train, test = open_dataset("digits-train"), open_dataset("digits-test")
    subset = subset_for(train.fingerprint, num_examples=None)
    with pytest.raises(SubsetError, match=f"{train.fingerprint}.*{test.fingerprint}.*check=False"):
        subset.apply(test)
    assert len(subset.apply(test, check=False)) == 3
    digits = open_dataset("digits")
    for check in (True, False):
        with pytest.raises(SubsetError, match="from 1796 examples and this data set has 1797"):
            subset_for(digits.fingerprint, 1796).apply(digits, check=check)


@pytest.mark.parametrize(
    "transform",
    [None, transforms.ToTensor(), transforms.Compose([transforms.RandomCrop(3)])],
    ids=["none", "tensor", "random"],
)
def test_a_torchvision_set_is_recognized_under_its_transform(transform: Any) -> None:
    mine = Vision(transform)
    chosen = subset_for(served(Vision())).apply(mine)
    assert [label for _, label in chosen] == [2, 2, 0]
    assert mine.transform is transform


def test_pairs_without_targets_are_read_for_their_labels() -> None:
    assert len(subset_for(served(Pairs())).apply(Pairs())) == 3
    other = Pairs()
    other.images_NCHW = other.images_NCHW.flip(0)
    with pytest.raises(SubsetError, match=f"{served(Pairs())}.*{served(other)}"):
        subset_for(served(Pairs())).apply(other)

    class Stubborn(Pairs):
        def __init__(self) -> None:
            super().__init__()
            self.transform = torch.clone

        def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
            return self.transform(self.images_NCHW[row]), row % 3

    assert len(subset_for(served(Pairs())).apply(Stubborn())) == 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for number in range(5):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / label / f"{number}.png")
    return tmp_path


def test_a_folder_is_recognized_as_files_and_as_pixels(folder: Path) -> None:
    mine = ImageFolder(str(folder), transform=transforms.ToTensor())
    as_files = open_dataset(f"imagefolder:{folder}").fingerprint
    for fingerprint in (as_files, served(ImageFolder(str(folder)))):
        assert len(subset_for(fingerprint, 10).apply(mine)) == 3


def test_data_without_images_is_used_unchecked_with_a_flag() -> None:
    columns = {"text": list(map(str, range(NUM_ROWS))), "label": [0] * NUM_ROWS}
    subset, table = subset_for("f" * 64), datasets.Dataset.from_dict(columns)
    with pytest.raises(SubsetError, match=r"but this Dataset has.*check=False"):
        subset.hf_select(table)
    assert subset.hf_select(table, check=False)["text"][:] == ["2", "5", "9"]
    with pytest.raises(SubsetError, match="from 70 examples and this data set has 3"):
        subset.hf_select(table.select(range(3)), check=False)


@pytest.fixture
def parquet_file(folder: Path) -> Path:
    files = sorted(folder.glob("*/*.png"))
    records = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
    table = pa.table({"image": records, "label": [0] * 5 + [1] * 5})
    path = folder / "train.parquet"
    parquet.write_table(table, path)
    return path


def test_a_hugging_face_data_set_equals_its_parquet_file(parquet_file: Path) -> None:
    images = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    table = datasets.Dataset.from_parquet(
        str(parquet_file), features=images, cache_dir=str(parquet_file.parent / "cache")
    )
    served = open_dataset(f"parquet:{parquet_file}")
    subset = subset_for(served.fingerprint, 10)
    assert subset.hf_select(table)["label"][:] == [0, 1, 1]
    assert len(subset.apply(table)) == 3
    with pytest.raises(SubsetError, match="but this Dataset has"):
        subset.hf_select(table.select(list(reversed(range(10)))))


def test_tensors_above_memory_are_not_fingerprinted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lipt.common.data.loading.MEMORY_BUDGET_BYTES", NUM_ROWS * 8 - 1)
    rows = [(torch.zeros(2), row % 2) for row in range(NUM_ROWS)]
    with pytest.raises(SubsetError, match=r"cannot be computed \(its tensors are too large"):
        subset_for("f" * 64).apply(rows)
