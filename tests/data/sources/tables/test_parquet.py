import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet as pq

from lipt.common.errors import DataError
from lipt.data.images.formats import decode_image
from lipt.data.inputs.specs import ImageSpec
from lipt.data.loading import open_dataset
from lipt.data.sources.cells import Notation
from lipt.data.sources.tables.parquet import ParquetTable, RowGroups
from lipt.data.sources.tables.reading import read_numbers
from tests.data.columns import cells_of

Encode = Callable[..., bytes]


def test_parquet_files_are_concatenated_and_name_their_classes(tmp_path: Path) -> None:
    features = {"label": {"_type": "ClassLabel", "names": ["neg", "pos"]}}
    for name, text in (("train-0", "a"), ("train-1", None), ("test-0", "no")):
        table = pa.table(
            {"text": pa.array([text], pa.string()), "x": [float("nan")], "label": [1], "b": [True]}
        )
        pq.write_table(described(table, features), tmp_path / f"{name}.parquet")
    table = ParquetTable("parquet", str(tmp_path))
    assert table.columns == ("text", "x", "label", "b")
    assert table.class_names["label"] == ("neg", "pos")
    assert cells_of(table, "label", "text", "x", "b")[:2] == [[1, 1], ["a", None]]


def test_files_of_other_columns_and_cells_of_other_types_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [[1]]}), tmp_path / "0.parquet")
    table = ParquetTable("parquet", str(tmp_path))
    with pytest.raises(DataError, match=r"the column a holds a list.*drop=a"):
        table.read(["a"])
    pq.write_table(pa.table({"b": [1]}), tmp_path / "1.parquet")
    with pytest.raises(DataError, match="has the columns b, not those of the first file: a"):
        ParquetTable("parquet", str(tmp_path))


def described(made: Any, features: Any) -> Any:
    """The table with Hugging Face's description of its columns."""
    return made.replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )


def parquet_table(
    images: list[bytes | None],
    labels: list[int | None],
    columns: tuple[str, str] = ("img", "label"),
    names: Any = None,
) -> Any:
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [{"bytes": image, "path": f"{i}.png"} for i, image in enumerate(images)]
    made = pa.table([pa.array(rows, struct), pa.array(labels, pa.int64())], columns)
    if names is None:
        return made
    return described(made, {columns[1]: {"names": names, "_type": "ClassLabel"}})


def write_parquet(path: Path, made: Any, *, row_group_size: int = 2) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(made, path, row_group_size=row_group_size)
    return path


@pytest.mark.parametrize("columns", [("image", "fine_label"), ("picture", "labels")])
def test_reads_the_hugging_face_convention(
    tmp_path: Path, encode: Encode, columns: tuple[str, str]
) -> None:
    images = [encode(i) for i in range(5)]
    made = parquet_table([*images], [0, 1, 2, 1, 0], columns, ["ant", "bee", "cow", "dog"])
    data = open_dataset(f"parquet:{write_parquet(tmp_path / 'x.parquet', made)}")
    assert data.class_names == ("ant", "bee", "cow", "dog")
    assert data.labels_N.tolist() == [0, 1, 2, 1, 0]
    assert data.inputs == ImageSpec(3, 12, 10)
    for row, image in enumerate(images):
        assert torch.equal(data.images(torch.tensor([row]))[0], decode_image(image, (3, 12, 10)))


def test_classes_without_usable_names_are_numbered(tmp_path: Path, encode: Encode) -> None:
    for names in (None, [1, 2], {"0": "a"}):
        made = parquet_table([encode()] * 2, [0, 3], names=names)
        data = open_dataset(f"parquet:{write_parquet(tmp_path / 'x.parquet', made)}")
        assert data.class_names == ("0", "1", "2", "3")


def labelled(directory: Path, name: str, encode: Encode, labels: list[int]) -> None:
    write_parquet(directory / name, parquet_table([encode(label) for label in labels], [*labels]))


def test_a_directory_gives_its_one_training_split_in_order(tmp_path: Path, encode: Encode) -> None:
    labelled(tmp_path / "data", "train-00001-of-00002.parquet", encode, [2, 3])
    labelled(tmp_path / "data", "train-00000-of-00002.parquet", encode, [0, 1, 1])
    labelled(tmp_path / "data", "test-00000-of-00001.parquet", encode, [4])
    assert open_dataset(f"parquet:{tmp_path}").labels_N.tolist() == [0, 1, 1, 2, 3]
    labelled(tmp_path / "small", "train.parquet", encode, [0, 1])
    with pytest.raises(DataError, match=r"in 2 directories: .*data, .*small\. Name the one"):
        open_dataset(f"parquet:{tmp_path}")


@pytest.mark.parametrize("budget", [2**30, 0])
def test_a_corrupt_image_is_named_by_row(tmp_path: Path, encode: Encode, budget: int) -> None:
    labelled(tmp_path, "train-0.parquet", encode, [0, 1, 1])
    bad = parquet_table([encode(1), encode(2)[:-30]], [0, 1])
    path = write_parquet(tmp_path / "train-1.parquet", bad)
    sentence = rf"1 of 5 images of parquet:.*\nimage 4 \({path}, row 1\): it is not a whole image"
    with pytest.raises(DataError, match=sentence):
        open_dataset(f"parquet:{tmp_path}", memory_budget_bytes=budget)
    path = write_parquet(tmp_path / "x" / "x.parquet", parquet_table([encode(), None], [0, 1]))
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
def test_labels_outside_the_classes_are_refused(
    tmp_path: Path, encode: Encode, label: int | None, sentence: str
) -> None:
    made = parquet_table([encode()] * 3, [0, 1, 1], names=["a", "b", "c"])
    kind = pa.uint64() if label == 2**63 else pa.int64()
    made = made.set_column(1, "label", pa.array([0, label, 1], kind))
    path = write_parquet(tmp_path / "x.parquet", made)
    with pytest.raises(DataError, match=sentence):
        open_dataset(f"parquet:{path}")


def test_lists_the_columns_when_none_fits(tmp_path: Path, encode: Encode) -> None:
    made = parquet_table([encode()], [0]).rename_columns(["img", "target"])
    path = write_parquet(tmp_path / "x.parquet", made)
    with pytest.raises(DataError, match=r"integer column called label, .*target \(int64\)\. Call"):
        open_dataset(f"parquet:{path}")
    path = write_parquet(tmp_path / "y.parquet", pa.table({"text": ["a"], "label": [0]}))
    with pytest.raises(DataError, match=r"has 0 columns .*text \(string\), label \(int64\)"):
        open_dataset(f"parquet:{path}")


def test_missing_empty_and_broken_files_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(DataError, match=r"no file, and there is no \*\.parquet below it"):
            open_dataset(f"parquet:{path}")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no parquet")
    with pytest.raises(DataError, match=r"x\.parquet cannot be read as .*Fetch it again"):
        open_dataset(f"parquet:{tmp_path}")
    write_parquet(tmp_path / "x.parquet", parquet_table([], []))
    with pytest.raises(DataError, match="has no rows"):
        open_dataset(f"parquet:{tmp_path}")


def test_row_groups_are_dropped_least_recently_used_first(tmp_path: Path) -> None:
    images: list[bytes | None] = [bytes([i]) * 10 for i in range(6)]
    file = pq.ParquetFile(write_parquet(tmp_path / "x.parquet", parquet_table(images, [0] * 6)))
    read: list[int] = []

    def read_row_group(group: int, columns: list[str]) -> Any:
        read.append(group)
        return file.read_row_group(group, columns=columns)

    reader = SimpleNamespace(metadata=file.metadata, read_row_group=read_row_group)
    largest = max(file.metadata.row_group(group).total_byte_size for group in range(3))
    # Two of three groups are kept.
    groups = RowGroups({"x": reader}, "img", max_bytes=2 * largest)
    assert [groups.read(row) for row in range(6)] == images
    assert read == [0, 1, 2]
    for row in (2, 0, 3, 5):
        groups.read(row)
    assert read == [0, 1, 2, 0, 2]


@pytest.mark.parametrize(
    ("kind", "number", "seconds", "notation"),
    [
        (pa.date32(), 2**30, 86_400.0 * 2**30, Notation.DATE),
        (pa.timestamp("s"), 2**40, 2.0**40, Notation.DATE),
        (pa.timestamp("us", "UTC"), 2**62, 2**62 / 10**6, Notation.DATE),
        (pa.time32("ms"), 2**30, 2**30 / 10**3, Notation.TIME),
        (pa.duration("ns"), -(2**62), -(2**62) / 10**9, Notation.POINT),
    ],
    ids=str,
)
def test_dates_and_times_that_python_cannot_hold_are_seconds(
    tmp_path: Path, kind: Any, number: int, seconds: float, notation: Notation
) -> None:
    wide = pa.int32() if kind.bit_width == 32 else pa.int64()
    column = pa.array([number, None], wide).view(kind)
    pq.write_table(pa.table({"t": column}), tmp_path / "t.parquet")
    table = ParquetTable("parquet", str(tmp_path / "t.parquet"))
    found = read_numbers(table, "t", table.read(["t"])["t"])
    assert found is not None
    assert found.values_N.tolist() == pytest.approx([seconds, math.nan], rel=0, nan_ok=True)
    assert found.notation is notation


def test_metadata_of_endless_depth_names_no_classes(tmp_path: Path) -> None:
    metadata = {b"huggingface": b'{"info":' + b"[" * 200_000}
    table = pa.table({"a": [1, 2], "label": [0, 1]}).replace_schema_metadata(metadata)
    pq.write_table(table, tmp_path / "t.parquet")
    data = open_dataset(f"parquet:{tmp_path / 't.parquet'}?label=label")
    assert data.class_names == ("0", "1")
