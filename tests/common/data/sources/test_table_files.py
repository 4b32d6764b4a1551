import gzip
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lipt.common.data import decode_image, open_dataset
from lipt.common.data.sources.storage import did_you_mean, split_query
from lipt.common.data.sources.table_files import (
    CHUNK_ROWS,
    CsvTable,
    JsonlTable,
    ParquetTable,
    RowGroups,
)
from lipt.common.errors import ConfigError, DataError
from lipt.common.inputs.specs import ImageSpec

Write = Callable[..., Path]
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def test_cells_come_by_the_columns_that_are_asked_for(write: Write) -> None:
    unnamed = CsvTable(write(",a\n0,5\n" + "1,6\n" * CHUNK_ROWS))
    assert unnamed.columns == ("a",)
    assert [len(cells) for (cells,) in unnamed.chunks(["a"])] == [CHUNK_ROWS, 1]
    table = CsvTable(write('\ufeffa,b,c\n1,"x, y",3\n\n4,"l1\nl2",6\n'))
    assert table.columns == ("a", "b", "c")
    assert list(table.chunks(["c", "b"])) == [[["3", "6"], ["x, y", "l1\nl2"]]]


def test_other_delimiters_gzip_and_utf_8_alone_are_read(tmp_path: Path, write: Write) -> None:
    assert list(CsvTable(write("a;b\n1,5;2\n"), ";").chunks(["a"])) == [[["1,5"]]]
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"a\n7\n"))
    assert list(CsvTable(path).chunks(["a"])) == [[["7"]]]
    path.write_bytes(b"a,b\n")
    with pytest.raises(DataError, match="Not a gzipped file"):
        CsvTable(path)
    path = tmp_path / "t.csv"
    path.write_bytes("a\ncaf\xe9\n".encode("latin1"))
    with pytest.raises(DataError, match=r"is not UTF-8: byte 0xe9 .* iconv -f latin1 -t utf-8 t"):
        list(CsvTable(path).chunks(["a"]))
    with pytest.raises(DataError, match="No such file"):
        CsvTable(tmp_path / "none.csv")
    with pytest.raises(ConfigError, match=r"the delimiter '\|\|' is not one character"):
        CsvTable(tmp_path / "none.csv", "||")


def test_lines_of_other_lengths_are_named_the_first_20_and_how_many(write: Write) -> None:
    table = CsvTable(write("a,b\n1,2\n" + "1\n" * 25))
    lines = ", ".join(map(str, range(3, 23)))
    words = f"25 lines do not have the 2 cells that the first line has names for: lines {lines} and"
    with pytest.raises(DataError, match=f"{words} 5 more"):
        list(table.chunks(["a"]))
    table = CsvTable(write('a,b\n1,"2\n3,4\n'))
    with pytest.raises(DataError, match="cannot be read as CSV: unexpected end of data"):
        list(table.chunks(["a"]))


def test_a_first_line_without_names_is_refused(write: Write) -> None:
    for text, words in (
        ("1,2\n3,4\n", r"the first line is \['1', '2'\], but it has to name the columns"),
        ("a,b,a\n", "the first line names a twice"),
        ("", r"the first line is \[\]"),
    ):
        with pytest.raises(DataError, match=words):
            CsvTable(write(text))


def test_columns_are_those_of_all_lines_and_what_a_line_lacks_is_missing(write: Write) -> None:
    table = JsonlTable(write('{"a": 1, "b": "x"}\n\n{"c": true, "a": null}\n'))
    assert table.columns == ("a", "b", "c")
    assert list(table.chunks(["a", "b", "c"])) == [[[1, None], ["x", None], [None, "true"]]]


def test_lines_that_are_no_objects_and_values_that_are_no_cells_are_named(write: Write) -> None:
    with pytest.raises(DataError, match="line 2 is no JSON object"):
        JsonlTable(write('{"a": 1}\n{"a": \n'))
    with pytest.raises(DataError, match=r"line 1 is no JSON object: \[1\]"):
        JsonlTable(write("[1]\n"))
    table = JsonlTable(write('{"a": 1, "b": [1]}\n'))
    assert list(table.chunks(["a"])) == [[[1]]]
    with pytest.raises(DataError, match=r"object 1: the column b holds a list.*drop=b"):
        list(table.chunks(["b"]))


def test_files_follow_each_other_and_name_the_numbers_of_their_classes(tmp_path: Path) -> None:
    features = {"label": {"_type": "ClassLabel", "names": ["neg", "pos"]}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    for name, text in (("train-0", "a"), ("train-1", None), ("test-0", "no")):
        table = pa.table(
            {"text": pa.array([text], pa.string()), "x": [float("nan")], "label": [1], "b": [True]}
        )
        pq.write_table(table.replace_schema_metadata(metadata), tmp_path / f"{name}.parquet")
    table = ParquetTable("parquet", str(tmp_path))
    assert table.columns == ("text", "x", "label", "b")
    assert table.class_names["label"] == ("neg", "pos")
    assert list(table.chunks(["label", "text", "x", "b"])) == [
        [[1, 1], ["a", None], [None, None], ["true", "true"]]
    ]


def test_files_of_other_columns_and_cells_of_other_types_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [[1]]}), tmp_path / "0.parquet")
    table = ParquetTable("parquet", str(tmp_path))
    with pytest.raises(DataError, match=r"the column a holds a list.*drop=a"):
        list(table.chunks(["a"]))
    pq.write_table(pa.table({"b": [1]}), tmp_path / "1.parquet")
    with pytest.raises(DataError, match="has the columns b, not those of the first file: a"):
        ParquetTable("parquet", str(tmp_path))


OPTIONS = ("label", "drop", "buckets", "names")


def test_options_follow_a_question_mark_and_are_decoded() -> None:
    path, query = split_query("s", "/a b/t.csv?label=the%20grade&drop=x,y%2Cz", OPTIONS)
    assert path == "/a b/t.csv"
    assert query.text("label", "label") == "the grade"
    assert query.names("drop") == ("x", "y,z")
    assert "names" not in query
    assert query.one_of("names", ("none", "huggingface")) == "none"
    assert query.number("buckets", 7, minimum=2, maximum=9) == 7


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("lable=x", r"there is no option 'lable'\. Did you mean label\? There are: label, drop"),
        ("label=", "the option label needs one value"),
        ("label=a&label=b", "the option label needs one value"),
        ("buckets=1", r"buckets=1 is not a whole number in 2\.\.9"),
        ("buckets=x", r"buckets=x is not a whole number in 2\.\.9"),
    ],
)
def test_options_that_cannot_be_used_are_refused(query: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        split_query("s", f"t.csv?{query}", OPTIONS)[1].number("buckets", 7, minimum=2, maximum=9)


def test_close_names_are_suggested_whatever_their_case() -> None:
    assert did_you_mean("quality", ["Quality", "qualities", "id"]) == (
        " Did you mean Quality or qualities?"
    )
    assert not did_you_mean("x", ["Quality"])


Encode = Callable[..., bytes]


def parquet_table(
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


def write_parquet(path: Path, made: Any, *, row_group_size: int = 2) -> Path:
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
    columns = {"image_column": image_column, "label_column": label_column}
    made = parquet_table([*images], [0, 1, 2, 1, 0], names=["ant", "bee", "cow", "dog"], **columns)
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
def test_a_corrupt_image_is_named_by_file_and_row(
    tmp_path: Path, encode: Encode, budget: int
) -> None:
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
def test_refuses_labels_of_no_class(
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
    with pytest.raises(DataError, match=r"y\.parquet has the columns .*of the first file: img, ta"):
        open_dataset(f"parquet:{tmp_path}")


def test_missing_empty_and_broken_files(tmp_path: Path) -> None:
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
