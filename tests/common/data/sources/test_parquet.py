from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lipt.common.data import decode_image, open_dataset
from lipt.common.data.sources.parquet import RowGroups
from lipt.common.errors import DataError
from lipt.common.inputs.specs import ImageSpec

Encode = Callable[..., bytes]
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def table(
    images: list[bytes | None],
    labels: list[int | None],
    *,
    image_column: str = "img",
    label_column: str = "label",
    names: Any = None,
) -> Any:
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [{"bytes": image, "path": f"{i}.png"} for i, image in enumerate(images)]
    made = pa.table(
        {image_column: pa.array(rows, struct), label_column: pa.array(labels, pa.int64())}
    )
    if names is not None:
        features = {label_column: {"names": names, "_type": "ClassLabel"}}
        described = json.dumps({"info": {"features": features}})
        made = made.replace_schema_metadata({"huggingface": described})
    return made


def write(path: Path, made: Any, *, row_group_size: int = 2) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(made, path, row_group_size=row_group_size)
    return path


@pytest.mark.parametrize(
    ("image_column", "label_column"), [("image", "fine_label"), ("picture", "labels")]
)
def test_reads_the_hugging_face_convention(
    tmp_path: Path, encode: Encode, image_column: str, label_column: str
) -> None:
    images = [encode(i) for i in range(5)]
    made = table(
        [*images],
        [0, 1, 2, 1, 0],
        image_column=image_column,
        label_column=label_column,
        names=["ant", "bee", "cow", "dog"],
    )
    data = open_dataset(f"parquet:{write(tmp_path / 'x.parquet', made)}")
    assert data.class_names == ("ant", "bee", "cow", "dog")
    assert data.labels_N.tolist() == [0, 1, 2, 1, 0]
    assert data.inputs == ImageSpec(3, 12, 10)
    for row, image in enumerate(images):
        assert torch.equal(data.images(torch.tensor([row]))[0], decode_image(image, (3, 12, 10)))


@pytest.mark.parametrize("names", [None, [1, 2], {"0": "a"}])
def test_classes_without_usable_names_are_numbered(
    tmp_path: Path, encode: Encode, names: Any
) -> None:
    made = table([encode()] * 2, [0, 3], names=names)
    data = open_dataset(f"parquet:{write(tmp_path / 'x.parquet', made)}")
    assert data.class_names == ("0", "1", "2", "3")


def labelled(directory: Path, name: str, encode: Encode, labels: list[int]) -> None:
    write(directory / name, table([encode(label) for label in labels], [*labels]))


def test_a_directory_gives_its_one_training_split_in_order(tmp_path: Path, encode: Encode) -> None:
    labelled(tmp_path / "data", "train-00001-of-00002.parquet", encode, [2, 3])
    labelled(tmp_path / "data", "train-00000-of-00002.parquet", encode, [0, 1, 1])
    labelled(tmp_path / "data", "test-00000-of-00001.parquet", encode, [4])
    assert open_dataset(f"parquet:{tmp_path}").labels_N.tolist() == [0, 1, 1, 2, 3]
    labelled(tmp_path / "small", "train.parquet", encode, [0, 1])
    with pytest.raises(DataError, match=r"in 2 directories: .*data, .*small\. Name the one"):
        open_dataset(f"parquet:{tmp_path}")


@pytest.mark.parametrize("budget", [2**30, 0])
def test_a_corrupt_image_is_named_by_file_and_row(
    tmp_path: Path, encode: Encode, budget: int
) -> None:
    labelled(tmp_path, "train-0.parquet", encode, [0, 1, 1])
    bad = table([encode(1), encode(2)[:-30]], [0, 1])
    path = write(tmp_path / "train-1.parquet", bad)
    sentence = rf"1 of 5 images of parquet:.*\nimage 4 \({path}, row 1\): it is not a whole image"
    with pytest.raises(DataError, match=sentence):
        open_dataset(f"parquet:{tmp_path}", memory_budget_bytes=budget)
    path = write(tmp_path / "x" / "x.parquet", table([encode(), None], [0, 1]))
    with pytest.raises(DataError, match=r"row 1\).*img\.bytes is null; images have to be inside"):
        open_dataset(f"parquet:{path}")


@pytest.mark.parametrize(
    ("label", "sentence"),
    [
        (-1, r"row 1 has the label -1, which is not the number of a class: its 3 classes"),
        (3, r"row 1 has the label 3, .* its 3 classes are numbered from 0"),
        (None, r"x\.parquet, row 1: the label is None\. Give it a class number"),
        (2**63, rf"x\.parquet, row 1: the label is {2**63}\."),
    ],
)
def test_refuses_labels_of_no_class(
    tmp_path: Path, encode: Encode, label: int | None, sentence: str
) -> None:
    made = table([encode()] * 3, [0, 1, 1], names=["a", "b", "c"])
    kind = pa.uint64() if label == 2**63 else pa.int64()
    made = made.set_column(1, "label", pa.array([0, label, 1], kind))
    path = write(tmp_path / "x.parquet", made)
    with pytest.raises(DataError, match=sentence):
        open_dataset(f"parquet:{path}")


def test_lists_the_columns_when_none_fits(tmp_path: Path, encode: Encode) -> None:
    made = table([encode()], [0])
    path = write(tmp_path / "x.parquet", made.rename_columns(["img", "target"]))
    with pytest.raises(
        DataError, match=r"no integer column called label, .*target \(int64\)\. Call"
    ):
        open_dataset(f"parquet:{path}")
    path = write(tmp_path / "y.parquet", pa.table({"text": ["a"], "label": [0]}))
    with pytest.raises(DataError, match=r"has 0 columns .*text \(string\), label \(int64\)"):
        open_dataset(f"parquet:{path}")


def test_refuses_files_of_different_data_sets(tmp_path: Path, encode: Encode) -> None:
    labelled(tmp_path, "a.parquet", encode, [0, 1])
    write(tmp_path / "b.parquet", table([encode()], [0], label_column="labels"))
    with pytest.raises(
        DataError, match=r"b\.parquet has the columns .*of the first file: img, label"
    ):
        open_dataset(f"parquet:{tmp_path}")


def test_missing_empty_and_broken_files(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(DataError, match=r"no file, and there is no \*\.parquet below it"):
            open_dataset(f"parquet:{path}")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no parquet")
    with pytest.raises(DataError, match=r"x\.parquet cannot be read as .*Fetch it again"):
        open_dataset(f"parquet:{tmp_path}")
    write(tmp_path / "x.parquet", table([], []))
    with pytest.raises(DataError, match="has no rows"):
        open_dataset(f"parquet:{tmp_path}")


class CountingReader:
    """A reader that remembers which row groups were read."""

    def __init__(self, path: Path) -> None:
        self._file = pq.ParquetFile(path)
        self.metadata = self._file.metadata
        self.reads: list[int] = []

    def read_row_group(self, group: int, columns: list[str]) -> Any:
        self.reads.append(group)
        return self._file.read_row_group(group, columns=columns)


def test_row_groups_are_dropped_least_recently_used_first(tmp_path: Path) -> None:
    # The budget holds two of three groups.
    images: list[bytes | None] = [bytes([i]) * 10 for i in range(6)]
    reader = CountingReader(write(tmp_path / "x.parquet", table(images, [0] * 6)))
    largest = max(reader.metadata.row_group(group).total_byte_size for group in range(3))
    groups = RowGroups({"x": reader}, "img", max_bytes=2 * largest)
    assert [groups.read(row) for row in range(6)] == images
    assert reader.reads == [0, 1, 2]
    groups.read(2)
    groups.read(0)
    assert reader.reads == [0, 1, 2, 0]
    groups.read(3)
    groups.read(5)
    assert reader.reads == [0, 1, 2, 0, 2]
