import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from torch.utils import data as torch_data
from torchvision import transforms
from torchvision.datasets import ImageFolder, VisionDataset

from lipt.common.errors import DataError, SubsetError
from lipt.data.dataset import Dataset
from lipt.data.loading import load, open_data, open_dataset
from lipt.data.sources.user_data import FactoryRows
from lipt.trainer import files
from lipt.trainer.subsets.data import ChosenImage
from lipt.trainer.subsets.subset import Subset
from tests.trainer.made_up import made_up_subset


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


NUM_ROWS = 70  # more than the rows that a fingerprint samples


def subset_for(fingerprint: str, num_examples: int | None = NUM_ROWS) -> Subset:
    manifest: Any = {} if num_examples is None else {"data": {"num_examples": num_examples}}
    return made_up_subset([2, 5, 9], fingerprint=fingerprint, **manifest)


def images() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (NUM_ROWS, 3, 4, 4), dtype=torch.uint8, generator=generator)


class Pairs(torch_data.Dataset[tuple[torch.Tensor, int]]):
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


def test_a_set_of_ours_is_known_by_its_fingerprint_and_others_refused() -> None:
    train, test = open_dataset("digits-train"), open_dataset("digits-test")
    subset = subset_for(train.fingerprint, num_examples=None)
    with pytest.raises(SubsetError, match=f"{train.fingerprint}.*{test.fingerprint}.*check=False"):
        subset.apply(test)
    assert len(subset.apply(test, check=False)) == 3
    digits = open_dataset("digits")
    chosen = subset_for(digits.fingerprint, len(digits)).apply(digits)
    assert torch.equal(chosen[1]["image"], digits[5]["image"])  # type: ignore[arg-type]
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


def test_a_folder_is_recognized_as_files_and_as_pixels(pets: Path) -> None:
    mine = ImageFolder(str(pets), transform=transforms.ToTensor())
    as_files = open_dataset(f"imagefolder:{pets}").fingerprint
    for fingerprint in (as_files, served(ImageFolder(str(pets)))):
        assert len(subset_for(fingerprint, 12).apply(mine)) == 3


def test_data_without_images_is_used_unchecked_with_a_flag() -> None:
    columns = {"text": list(map(str, range(NUM_ROWS))), "label": [0] * NUM_ROWS}
    subset, table = subset_for("f" * 64), datasets.Dataset.from_dict(columns)
    with pytest.raises(SubsetError, match=r"but this Dataset has.*check=False"):
        subset.hf_select(table)
    assert subset.hf_select(table, check=False)["text"][:] == ["2", "5", "9"]
    with pytest.raises(SubsetError, match="from 70 examples and this data set has 3"):
        subset.hf_select(table.select(range(3)), check=False)


def test_a_hugging_face_data_set_equals_its_parquet_file(pets: Path, tmp_path: Path) -> None:
    files, labels = sorted(pets.glob("*/*")), [0] * 6 + [1] * 6
    records = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
    path = tmp_path / "train.parquet"
    parquet.write_table(pa.table({"image": records, "label": labels}), path)
    images = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    cache = str(tmp_path / "cache")
    table = datasets.Dataset.from_parquet(str(path), features=images, cache_dir=cache)
    by_path = datasets.Dataset.from_dict(
        {"image": list(map(str, files)), "label": labels}, features=images
    )
    fingerprint = open_dataset(f"parquet:{path}").fingerprint
    assert open_data(table).fingerprint == open_data(by_path).fingerprint == fingerprint
    subset = subset_for(fingerprint, 12)
    assert subset.hf_select(table)["label"][:] == [0, 0, 1]
    assert len(subset.apply(table)) == 3
    with pytest.raises(SubsetError, match="but this Dataset has"):
        subset.hf_select(table.select(list(reversed(range(12)))))


def test_tensors_above_memory_are_not_fingerprinted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lipt.trainer.subsets.data.MEMORY_BUDGET_BYTES", NUM_ROWS * 8 - 1)
    rows = [(torch.zeros(2), row % 2) for row in range(NUM_ROWS)]
    with pytest.raises(SubsetError, match=r"cannot be computed \(its tensors are too large"):
        subset_for("f" * 64).apply(rows)


SUFFIXES = {"cat": "JPEG", "dog": "PNG"}


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Twelve small images, of two classes and two kinds."""
    generator = np.random.default_rng(0)
    for name, kind in SUFFIXES.items():
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(6):
            pixels = generator.integers(256, size=(12, 12, 3), dtype=np.uint8)
            file = tmp_path / "pets" / name / f"{number}.{kind.lower()}"
            Image.fromarray(pixels).save(file, kind)
    return tmp_path / "pets"


def all_of(dataset: Dataset) -> Subset:
    weights = [1.0 + row / 4 for row in range(len(dataset))]
    return made_up_subset(range(len(dataset)), weights, fingerprint=dataset.fingerprint)


def some_of(dataset: Dataset, rows: list[int]) -> Subset:
    return made_up_subset(rows, fingerprint=dataset.fingerprint)


def members(shard: Path) -> dict[str, bytes]:
    with tarfile.open(shard) as archive:
        found = {}
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            found[member.name] = file.read()
        return found


def test_exported_files_are_unchanged_with_their_type(pets: Path, tmp_path: Path) -> None:
    data = open_dataset(f"imagefolder:{pets}")
    subset = made_up_subset([2, 7], [1.0, 2.5], fingerprint=data.fingerprint)
    (shard,) = subset.to_webdataset(data, tmp_path / "out")
    assert shard == tmp_path / "out" / "shard-000000.tar"
    assert members(shard) == {
        "000000000002.cls": b"0",
        "000000000002.jpg": (pets / "cat" / "2.jpeg").read_bytes(),
        "000000000002.json": b'{"id": 2, "weight": 1.0}',
        "000000000007.cls": b"1",
        "000000000007.png": (pets / "dog" / "1.png").read_bytes(),
        "000000000007.json": b'{"id": 7, "weight": 2.5}',
    }
    assert Subset.load(tmp_path / "out" / "subset.json") == subset
    subset.to_webdataset(data, tmp_path / "again")
    for file in (tmp_path / "out").iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()


def test_pixels_and_class_names_are_written_without_loss(pets: Path, tmp_path: Path) -> None:
    data = open_dataset("digits-test")
    some_of(data, [3, 30, 300]).to_webdataset(data, tmp_path / "digits")
    again = open_dataset(f"webdataset:{tmp_path / 'digits'}")
    chosen = torch.tensor([3, 30, 300])
    assert torch.equal(again.images(torch.arange(3)), data.images(chosen))
    assert torch.equal(again.labels_N, data.labels_N[chosen])
    (pets / "dog").rename(pets / "dog\nor wolf")
    data = open_dataset(f"imagefolder:{pets}")
    # Nothing of the last class is chosen.
    (shard,) = some_of(data, list(range(6))).to_webdataset(data, tmp_path / "out")
    assert (tmp_path / "out" / "classes.txt").read_text() == "cat\ndog or wolf\n"
    assert open_dataset(f"webdataset:{shard}").class_names == ("cat", "dog or wolf")


def test_repeated_exports_are_identical(pets: Path, tmp_path: Path) -> None:
    data = open_dataset(f"imagefolder:{pets}")
    all_of(data).to_webdataset(data, tmp_path / "once")
    once = open_dataset(f"webdataset:{tmp_path / 'once'}")
    assert once.class_names == ("cat", "dog")
    some_of(once, [1, 8]).to_webdataset(once, tmp_path / "again")
    again = open_dataset(f"webdataset:{tmp_path / 'again'}", memory_budget_bytes=0)
    assert [again.raw_bytes(row) for row in range(2)] == [
        (pets / "cat" / "1.jpeg").read_bytes(),
        (pets / "dog" / "2.png").read_bytes(),
    ]
    assert again.class_names == ("cat", "dog")


def test_exported_folder_is_durable(
    pets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, synced = open_dataset(f"imagefolder:{pets}"), list[tuple[str, bool]]()
    out = tmp_path / "out"
    monkeypatch.setattr(files, "sync", lambda path: synced.append((path.name, out.exists())))
    some_of(data, [1]).to_webdataset(data, out)
    *before, folder, parent = synced
    names = ["classes.txt", "shard-000000.tar", "subset.json"]
    assert sorted(before) == [(name, False) for name in names]
    assert folder[0].startswith(".out.")
    assert (folder[1], parent) == (False, (tmp_path.name, True))


def test_a_failed_export_leaves_nothing(pets: Path, tmp_path: Path) -> None:
    data = open_dataset(f"imagefolder:{pets}")
    with pytest.raises(SubsetError, match="the subset is empty"):
        some_of(data, []).to_webdataset(data, tmp_path / "out")
    (pets / "dog" / "2.png").write_bytes(b"no image")
    with pytest.raises(
        DataError, match=r"image 8 of .*2\.png\) cannot be used: .* none of the formats JPEG"
    ):
        some_of(data, [1, 8]).to_webdataset(data, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["pets"]


def test_exports_keep_few_images_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = open_data([(np.zeros((8, 8), np.uint8), row % 2) for row in range(1000)])
    read: list[int] = []
    pixels = type(data.source_rows).pixels  # type: ignore[attr-defined]
    monkeypatch.setattr(
        type(data.source_rows), "pixels", lambda rows, row: read.append(row) or pixels(rows, row)
    )
    ahead: list[int] = []

    def write(path: Path, images: Iterator[ChosenImage]) -> None:
        ahead.extend(len(read) - image.row for image in images)
        path.touch()

    monkeypatch.setattr("lipt.trainer.subsets.data._write_tar", write)
    monkeypatch.setattr("lipt.trainer.subsets.data.EXAMPLES_PER_SHARD", 100)
    all_of(data).to_webdataset(data, tmp_path / "out")
    assert len(ahead) == 1000
    assert max(ahead) <= 257


FRAME = {"x": [0.5 * row for row in range(NUM_ROWS)], "label": ["ab"[row % 2] for row in range(70)]}


def test_chosen_rows_are_written_with_weights_and_soft_labels(tmp_path: Path) -> None:
    subset = made_up_subset(
        [2, 5],
        [0.5, 2.0],
        fingerprint=open_data(FRAME).fingerprint,
        soft_labels=[[0.25, 0.75], [1, 0]],
    )
    path = subset.to_jsonl(FRAME, tmp_path / "chosen.jsonl")
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"x": 1.0, "label": "a", "weight": 0.5, "soft_label": [0.25, 0.75]},
        {"x": 2.5, "label": "b", "weight": 2.0, "soft_label": [1.0, 0.0]},
    ]


def test_rows_of_other_data_are_not_written(tmp_path: Path) -> None:
    path = tmp_path / "chosen.jsonl"
    subset = subset_for(open_data(FRAME).fingerprint)
    other = {**FRAME, "x": [0.0] * NUM_ROWS}
    with pytest.raises(SubsetError, match="belongs to data with fingerprint"):
        subset.to_jsonl(other, path)
    with pytest.raises(SubsetError, match="was chosen from one data set, not from north, south"):
        subset.to_jsonl({"north": FRAME, "south": FRAME}, path)
    assert not path.exists()
    subset.to_jsonl(other, path, check=False)
    assert len(path.read_text().splitlines()) == 3


def test_a_choice_from_a_named_file_applies_to_its_name_and_to_its_rows(tmp_path: Path) -> None:
    rows = [{"p": f"{row}=", "c": "a" * (1 + row % 3)} for row in range(NUM_ROWS)]
    file = tmp_path / "texts.jsonl"
    # Blank lines are no rows.
    file.write_text("\n\n".join(map(json.dumps, rows)))
    name = f"jsonl:{file}?prompt=p&completion=c&max_length=8"
    opened = open_data(name)
    subset = made_up_subset([2, 5], fingerprint=opened.fingerprint, data=opened.facts)
    assert [list(example) for example in subset.dataset(name)] == [["input", "label", "weight"]] * 2
    assert [subset.apply(rows)[place] for place in (0, 1)] == [rows[2], rows[5]]
    table = datasets.Dataset.from_list(rows)
    assert subset.hf_select(table)[:]["p"] == ["2=", "5="]
    for data in (name, rows, table):
        path = subset.to_jsonl(data, tmp_path / "chosen.jsonl")
        assert list(map(json.loads, path.read_text().splitlines())) == [rows[2], rows[5]]
    with pytest.raises(SubsetError, match="belongs to data with fingerprint"):
        subset.hf_select(datasets.Dataset.from_list([*rows[:2], {"p": "", "c": "b"}, *rows[3:]]))


@pytest.mark.parametrize("named", [str, "csv:{}.link?label=label".format])
def test_the_data_is_not_written_over(tmp_path: Path, named: Callable[[Path], str]) -> None:
    file = tmp_path / "table.csv"
    rows = zip(*FRAME.values(), strict=True)
    file.write_text("\n".join(["x,label", *(f"{x},{label}" for x, label in rows)]))
    (tmp_path / "table.csv.link").symlink_to(file)
    subset, before = subset_for(open_data(FRAME).fingerprint), file.read_text()
    for data in (named(file), {"north": named(file), "south": FRAME}):
        with pytest.raises(DataError, match=r"is the data itself, and would be lost\."):
            subset.to_jsonl(data, file, check=False)
    assert file.read_text() == before


def test_rows_of_several_sources_are_numbered_one_after_another(tmp_path: Path) -> None:
    subset = made_up_subset([1, 2, 4], data={"sources": {"north": 2, "south": 3}})
    sources = {"south": [{"s": row} for row in range(3)], "north": [{"n": 0}, {"n": 1}]}
    path = subset.to_jsonl(sources, tmp_path / "chosen.jsonl")
    assert path.read_text() == '{"n": 1}\n{"s": 0}\n{"s": 2}\n'
    with pytest.raises(SubsetError, match="was chosen from north, south, not from south"):
        subset.to_jsonl({"south": sources["south"]}, path)
    with pytest.raises(DataError, match="has 3 rows, and the examples were chosen from 2"):
        subset.to_jsonl({**sources, "north": sources["south"]}, path)
