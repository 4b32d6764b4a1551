"""A subset's images in files: what lies at the source, whole, and read back as it was."""

import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lipt.common.data import Dataset, open_dataset
from lipt.common.data.loading import dataset_of
from lipt.common.errors import DataError, SubsetError
from lipt.trainer import files
from lipt.trainer.subsets.export import ChosenImage
from lipt.trainer.subsets.subset import Subset
from tests.trainer.made_up import made_up_subset

SUFFIXES = {"cat": "JPEG", "dog": "PNG"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


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


def test_pixels_are_written_without_loss(tmp_path: Path) -> None:
    data = open_dataset("digits-test")
    some_of(data, [3, 30, 300]).to_webdataset(data, tmp_path / "out")
    again = open_dataset(f"webdataset:{tmp_path / 'out'}")
    chosen = torch.tensor([3, 30, 300])
    assert torch.equal(again.images(torch.arange(3)), data.images(chosen))
    assert torch.equal(again.labels_N, data.labels_N[chosen])


def test_classes_keep_their_names_in_tar_shards(pets: Path, tmp_path: Path) -> None:
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


def test_equal_subsets_give_equal_bytes(pets: Path, tmp_path: Path) -> None:
    data, written = open_dataset(f"imagefolder:{pets}"), []
    for number in range(2):
        folder = tmp_path / f"out-{number}"
        some_of(data, [1, 8]).to_webdataset(data, folder)
        written.append({file.name: file.read_bytes() for file in folder.iterdir()})
    assert written[0] == written[1]


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
    with pytest.raises(SubsetError, match="examples_per_shard = 0"):
        some_of(data, [1]).to_webdataset(data, tmp_path / "out", examples_per_shard=0)
    (pets / "dog" / "2.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"image 8 of .*2\.png\) is none of JPEG"):
        some_of(data, [1, 8]).to_webdataset(data, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} - {"cache"} == {"pets"}


def test_exports_keep_few_images_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = dataset_of([(np.zeros((8, 8), np.uint8), row % 2) for row in range(1000)])
    read: list[int] = []
    pixels = type(data.source_rows).pixels  # type: ignore[attr-defined]
    monkeypatch.setattr(
        type(data.source_rows), "pixels", lambda rows, row: read.append(row) or pixels(rows, row)
    )
    ahead: list[int] = []

    def write(path: Path, images: Iterator[ChosenImage]) -> None:
        ahead.extend(len(read) - image.row for image in images)
        path.touch()

    monkeypatch.setattr("lipt.trainer.subsets.export._write_tar", write)
    all_of(data).to_webdataset(data, tmp_path / "out", examples_per_shard=100)
    assert len(ahead) == 1000
    assert max(ahead) <= 257
