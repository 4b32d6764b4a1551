import gzip
import json
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import save_file

from lipt.common.errors import ConfigError, DataError
from lipt.data.images.formats import decode_image
from lipt.data.inputs.specs import Column, ColumnType, ImageSpec
from lipt.data.loading import open_dataset
from lipt.data.sources import table_files
from lipt.data.sources.rows import ColumnRows
from lipt.data.sources.storage import split_query
from lipt.data.sources.table_files import (
    CHUNK_ROWS,
    CsvOptions,
    CsvTable,
    JsonlTable,
    ParquetTable,
    RowGroups,
)
from lipt.data.sources.tables import read_categories, read_labels, read_numbers, table_rows
from lipt.data.sources.texts import bucket_of

Write = Callable[..., Path]
PEOPLE = "name,age,city,label\nann,30,x,yes\nbob,,y,no\ncid,50,x,yes\n"


def opened(path: Path, query: str) -> ColumnRows:
    return table_rows(f"csv:{path}?{query}", f"{path}?{query}")


def test_numbers_and_categories_are_two_tensors_by_name(write: Write) -> None:
    rows = opened(write(PEOPLE), "drop=name")
    numbers = Column("numbers", ColumnType.FLOAT32, (2,), standardized=True)
    assert rows.columns == (numbers, Column("categories", ColumnType.INT64, (1,), num_values=4096))
    assert rows.tensors["numbers"].tolist() == [[30, 0], [40, 1], [50, 0]]
    first, second, third = rows.tensors["categories"].flatten().tolist()
    assert first == third != second
    assert rows.class_names == ("no", "yes")
    assert rows.labels_N.tolist() == [1, 0, 1]
    assert rows.stamp is not None
    assert rows.stamp.holds()
    # One tensor alone has no name.
    rows = opened(write(PEOPLE), "drop=name,city")
    assert rows.columns == (replace(numbers, name=""),)
    assert rows.tensors[""].tolist() == [[30, 0], [40, 1], [50, 0]]
    rows = opened(write(PEOPLE), "drop=name&categories=age&buckets=50")
    assert rows.columns == (Column("", ColumnType.INT64, (2,), num_values=50),)


def test_missing_columns_are_refused_with_the_existing_ones(write: Write) -> None:
    for query, words in (
        ("label=lable", r"'lable'\. Did you mean label\? Write label=COLUMN with one of name, age"),
        ("drop=Name", r"has no column 'Name'\. Did you mean name\?"),
        ("text=nam", "Write text=COLUMN with one of"),
        ("drop=name,age,city", "has no column besides age, city, label, name"),
    ):
        with pytest.raises(DataError, match=words):
            opened(write(PEOPLE), query)


def test_texts_are_tokens_padded_with_zeros(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    path = write('title,body,label\nA cat,"sat, still",x\nA cat,,y\n')
    rows = opened(path, "text=title,body&max_length=6&vocabulary=1000")
    assert rows.columns == (Column("", ColumnType.INT64, (6,), num_values=1000),)
    first, second = rows.tensors[""].tolist()
    assert 0 not in first[:5]
    assert second == [*first[:2], 0, 0, 0, 0]
    assert first[5] == 0
    assert rows.raw(1) == torch.tensor(second).numpy().tobytes()
    # What is cut is told.
    with caplog.at_level(logging.WARNING):
        opened(write('text,label\na b c,x\n"",y\na,y\na,y\n'), "text=text&max_length=2")
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "1 of 4 texts (25.0%) are longer than 2 tokens and cut there; max_length=4 would cut fewer",
    ]


def test_json_lines_and_parquet_are_read_alike(write: Write, tmp_path: Path) -> None:
    expected = opened(write(PEOPLE), "drop=name")
    path = write(
        '{"city": "x", "age": 30, "label": "yes"}\n{"city": "y", "label": "no"}\n'
        '{"city": "x", "age": 50.0, "label": "yes"}\n',
        "t.jsonl",
    )
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table(
        {"city": ["x", "y", "x"], "age": [30, None, 50], "label": ["yes", "no", "yes"]}
    )
    pq.write_table(table, tmp_path / "t.parquet")
    for rows in (
        table_rows("jsonl:x", f"{path}?label=label"),
        table_rows("parquet:x", f"{tmp_path / 't.parquet'}?label=label"),
    ):
        assert rows.columns == expected.columns
        assert rows.class_names == expected.class_names
        assert [rows.raw(row) for row in range(3)] == [expected.raw(row) for row in range(3)]


def test_columns_of_numbers_may_have_missing_cells(write: Write) -> None:
    table = CsvTable(write("a,b,c,d\n1,x,,NA\n 2e1 ,3,n/a,?\n,4,5,\n"))
    numbers = read_numbers(table, ["a", "b", "c", "d"], required=[])
    assert list(numbers) == ["a", "c"]
    np.testing.assert_array_equal(numbers["a"].values_N, [1, 20, np.nan])
    np.testing.assert_array_equal(numbers["c"].values_N, [np.nan, np.nan, 5])
    table = CsvTable(write("a,b\n1,2\nNA,-Infinity\nlow,3\n"))
    with pytest.raises(DataError, match=r"a is to be of numbers, but holds 'low' in row 2\."):
        read_numbers(table, ["a"], required=["a"])
    with pytest.raises(DataError, match="column b holds '-Infinity' in row 1, no finite number"):
        read_numbers(table, ["b"], required=[])


def test_a_category_has_one_code_in_all_files(write: Write) -> None:
    train_NC, _ = read_categories(CsvTable(write("a,b\nx,y\n z ,x\n")), ["a", "b"], 4096)
    test_NC, _ = read_categories(CsvTable(write("b,a\nx,z\nNA,\n")), ["a", "b"], 4096)
    assert train_NC[1].tolist() == test_NC[0].tolist()
    # The same text in another column is another category, and so is what is missing.
    assert len({*train_NC.flatten().tolist(), *test_NC.flatten().tolist()}) == 6
    # Those of the first version: others would be other inputs to models trained before.
    found = [int(train_NC[0, 0]), bucket_of("b", "x", 4096), bucket_of("a", "", 2)]
    assert found == [1746, 410, 1]


def table(write: Write, *labels: object) -> CsvTable:
    return CsvTable(write("y,z\n" + "".join(f"{label},1\n" for label in labels)))


@pytest.mark.parametrize(
    ("labels", "given", "names", "numbers"),
    [
        (("dog", " cat", "dog", "ant"), (), ("ant", "cat", "dog"), [2, 1, 2, 0]),
        ((10, 9, -1, 9), (), ("-1", "9", "10"), [2, 1, 0, 1]),
        (("b", "a"), ("b", "c", "a"), ("b", "c", "a"), [0, 2]),
    ],
)
def test_classes_are_sorted_by_name_or_number_unless_given(
    write: Write,
    labels: tuple[object, ...],
    given: tuple[str, ...],
    names: tuple[str, ...],
    numbers: list[int],
) -> None:
    labels_N, found = read_labels(table(write, *labels), "y", given)
    assert (labels_N.tolist(), found) == (numbers, names)


def test_class_numbers_index_the_names_of_the_file(write: Write) -> None:
    named = table(write, 1, 0, 1)
    named.class_names = {"y": ("neg", "pos", "none")}
    labels_N, names = read_labels(named, "y")
    assert (labels_N.tolist(), names) == ([1, 0, 1], ("neg", "pos", "none"))
    named = table(write, 1, -1, 1)
    named.class_names = {"y": ("neg", "pos")}
    with pytest.raises(DataError, match=r"row 1 has the label '-1', .* none of its 2 classes"):
        read_labels(named, "y")
    with pytest.raises(DataError, match=r"row 0 has the label 'b', which is none of its 1 classes"):
        read_labels(table(write, "b", "a"), "y", ["a"])
    fractions = "1000 different labels .* 1000 of them fractions.* write target=y"
    cases: list[tuple[list[object], str]] = [
        (["a", "", "b", " "], r"2 of 4 rows have no label in the column y: rows 1, 3\."),
        ([], "has no rows"),
        ([f"id{number}" for number in range(150)], "150 different labels in 150 rows"),
        ([0.5 + number for number in range(1000)], fractions),
    ]
    for labels, words in cases:
        with pytest.raises(DataError, match=words):
            read_labels(table(write, *labels), "y")


pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def test_only_requested_columns_are_read(write: Write) -> None:
    unnamed = CsvTable(write(",a\n0,5\n" + "1,6\n" * CHUNK_ROWS))
    assert unnamed.columns == ("a",)
    assert [len(cells) for (cells,) in unnamed.chunks(["a"])] == [CHUNK_ROWS, 1]
    table = CsvTable(write('\ufeffa,b,c\n1,"x, y",3\n\n4,"l1\nl2",6\n'))
    assert table.columns == ("a", "b", "c")
    assert list(table.chunks(["c", "b"])) == [[["3", "6"], ["x, y", "l1\nl2"]]]


def test_other_delimiters_and_gzip_are_read_but_only_utf_8(tmp_path: Path, write: Write) -> None:
    semicolons = CsvTable(write("a;b\n1,5;2\n"), CsvOptions(";"))
    assert list(semicolons.chunks(["a"])) == [[["1,5"]]]
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"a\n7\n"))
    assert list(CsvTable(path).chunks(["a"])) == [[["7"]]]
    path.write_bytes(b"a,b\n")
    with pytest.raises(DataError, match="Not a gzipped file"):
        CsvTable(path)
    path = tmp_path / "t.csv"
    path.write_bytes("a\ncaf\xe9\n".encode("latin1"))
    with pytest.raises(DataError, match=r"is not UTF-8: .*0xe9 .* encoding=latin-1 \(--enc"):
        list(CsvTable(path).chunks(["a"]))
    with pytest.raises(DataError, match="No such file"):
        CsvTable(tmp_path / "none.csv")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_the_number_of_columns_is_limited(
    write: Write, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(table_files, "MOST_COLUMNS", 3)
    content = {"csv": "a,b,c,d\n", "jsonl": '{"a": 1, "b": 2}\n{"c": 1, "d": 2}\n'}[kind]
    with pytest.raises(DataError, match="more than 3 columns, 'a' is the first"):
        open_dataset(f"{kind}:{write(content)}")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_pipes_and_devices_are_not_tables(tmp_path: Path, kind: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(DataError, match="is no regular file, but a directory, a pipe or"):
            open_dataset(f"{kind}:{path}")


def test_a_cell_of_half_a_million_characters_is_cut(write: Write) -> None:
    path = write(f"text,label\n{'so long ' * 62_500},a\nshort,b\n")
    assert opened(path, "text=text&max_length=4").tensors[""].shape == (2, 4)


def test_lines_of_wrong_length_are_counted_and_the_first_20_named(write: Write) -> None:
    table = CsvTable(write("a,b\n1,2\n" + "1\n" * 25))
    lines = ", ".join(map(str, range(3, 23)))
    words = f"25 lines do not have the 2 cells that the first line has names for: lines {lines} and"
    with pytest.raises(DataError, match=f"{words} 5 more"):
        list(table.chunks(["a"]))
    table = CsvTable(write('a,b\n1,"2\n3,4\n'))
    with pytest.raises(DataError, match="cannot be read as CSV: unexpected end of data"):
        list(table.chunks(["a"]))
    for text, words in (
        ("1,2\n3,4\n", r"the first line is \['1', '2'\], but it has to name the columns"),
        ("a,b,a\n", "has the column 'a' more than once"),
        ("", r"the first line is \[\]"),
    ):
        with pytest.raises(DataError, match=words):
            CsvTable(write(text))


def test_json_columns_are_those_of_all_lines_with_missing_cells(write: Write) -> None:
    table = JsonlTable(write('{"a": 1, "b": "x"}\n\n{"c": true, "a": null}\n'))
    assert table.columns == ("a", "b", "c")
    assert list(table.chunks(["a", "b", "c"])) == [[[1, None], ["x", None], [None, "true"]]]
    with pytest.raises(DataError, match="line 2 is no JSON object"):
        JsonlTable(write('{"a": 1}\n{"a": \n'))
    with pytest.raises(DataError, match=r"line 1 is no JSON object: \[1\]"):
        JsonlTable(write("[1]\n"))
    table = JsonlTable(write('{"a": 1, "b": [1]}\n'))
    assert list(table.chunks(["a"])) == [[[1]]]
    with pytest.raises(DataError, match=r"object 1: the column b holds a list.*drop=b"):
        list(table.chunks(["b"]))


def test_parquet_files_are_concatenated_and_name_their_classes(tmp_path: Path) -> None:
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


def test_text_features_are_the_means_of_their_token_vectors(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("text,label\nred blue,a\nblue blue,b\n,a\n")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="pip install --no-deps wordllama"):
        opened(path, "text=text&embedding=wordllama")
    folder = tmp_path / "wordllama"
    for part in ("weights", "tokenizers"):
        (folder / part).mkdir(parents=True)
    vectors_VD = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 4.0]]).half()
    save_file({"vectors": vectors_VD}, folder / "weights/l2_supercat_256.safetensors")
    words = tokenizers.models.WordLevel({"?": 0, "red": 1, "blue": 2}, unk_token="?")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizers/l2_supercat_tokenizer_config.json"))
    found = SimpleNamespace(origin=str(folder / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: found)
    rows = opened(path, "text=text&embedding=wordllama")
    assert rows.tensors[""].tolist() == [[1, 2], [0, 4], [0, 0]]
    assert rows.columns[0].standardized
