from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse
import torch
from PIL import Image
from pyarrow import parquet

from lipt.common.errors import ConfigError, DataError
from lipt.data.loading import open_data, open_dataset, open_set
from lipt.data.sources.frames import map_style
from lipt.data.sources.rows import ColumnRows
from lipt.data.targets.kinds import TargetKind

datasets = pytest.importorskip("datasets")
pd = pytest.importorskip("pandas")

FRAME = pd.DataFrame(
    {
        "age": [30, 41, 52, 63],
        "income": [1000.5, float("nan"), 2000.0, 1.0],
        "city": ["Rome", None, "Oslo", "Rome"],
        "since": pd.to_datetime(["2024-01-01", "2024-01-02", None, "2024-01-01"]),
        "kind": pd.Categorical(["a", "b", "a", "b"]),
        "grade": ["low", "high", "low", "high"],
    }
)


def columns_of(data: Any, target: str | None = None) -> ColumnRows:
    rows = open_data(data, target=target).rows
    assert isinstance(rows, ColumnRows)
    return rows


def test_a_data_frame_equals_its_csv_file(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "t.csv", index=False)
    file = open_dataset(f"csv:{tmp_path / 't.csv'}?label=grade")
    found = open_data(FRAME, target="grade")
    assert found.fingerprint == file.fingerprint
    assert (found.inputs, found.class_names, found.note) == (
        *(file.inputs, file.class_names),
        "2 missing numbers in 2 columns are flagged and replaced by their column's mean",
    )
    assert found.reading == file.reading
    # An index that is not in order, as after a random split.
    mixed = FRAME.iloc[[2, 0, 3, 1]]
    mixed.to_csv(tmp_path / "m.csv", index=False)
    file = open_dataset(f"csv:{tmp_path / 'm.csv'}?label=grade")
    assert open_data((mixed[mixed.columns[:-1]], mixed["grade"])).fingerprint == file.fingerprint


def test_booleans_nullable_numbers_and_dates_equal_those_of_a_parquet_file(tmp_path: Path) -> None:
    frame = FRAME.assign(
        ok=[True, False, True, True],
        num=pd.array([1, None, 3, 4], dtype="Int64"),
        at=pd.date_range("2024-01-01", periods=4, freq="h"),
    )
    table = pa.Table.from_pandas(frame)
    parquet.write_table(table, tmp_path / "t.parquet")
    file = open_dataset(f"parquet:{tmp_path / 't.parquet'}?label=grade")
    for data in (frame, table, _Polars(table)):
        assert open_data(data, target="grade").fingerprint == file.fingerprint
    # Pandas writes True, Arrow and JSON true.
    frame[["ok", "grade"]].to_csv(tmp_path / "t.csv", index=False)
    file = open_dataset(f"csv:{tmp_path / 't.csv'}?label=grade")
    assert open_data(frame[["ok", "grade"]], target="grade").fingerprint == file.fingerprint


class _Polars:
    """A frame with no more than polars' have in common with pandas'."""

    def __init__(self, table: Any) -> None:
        self.columns, self.__arrow_c_stream__ = table.column_names, table.__arrow_c_stream__


COLUMNS = {"a": [1, 2, 3], "b": ["x", "y", "x"], "label": [0, 1, 1]}
SMALL = pd.DataFrame(COLUMNS)


@pytest.mark.parametrize(
    "data",
    [
        COLUMNS,
        SMALL.to_dict("records"),
        np.array([*zip(*COLUMNS.values(), strict=True)], [("a", int), ("b", "U1"), ("label", int)]),
        (SMALL[["a", "b"]], np.array([0, 1, 1])),
        (SMALL[["a", "b"]], pd.DataFrame({"why": [0, 1, 1]})),
        datasets.Dataset.from_dict(COLUMNS),
    ],
    ids=["columns", "rows", "structured array", "X and y", "y as a frame", "Hugging Face"],
)
def test_all_formats_of_one_table_are_the_same_data(data: Any) -> None:
    assert open_data(data).fingerprint == open_data(SMALL).fingerprint


def test_objects_and_sparse_matrices_are_columns_in_their_order() -> None:
    cells = np.array([list(range(11)), ["x"] * 11], dtype=object)
    rows = columns_of((cells.T, [0, 1] * 5 + [0]))
    assert rows.tensors["numbers"].flatten().tolist() == list(range(11))
    sparse = scipy.sparse.csr_matrix(np.array([[0.0, 2.0], [3.0, 0.0]]))
    assert columns_of((sparse, [0, 1])).tensors[""].tolist() == [[0, 2], [3, 0]]
    huge = scipy.sparse.csr_matrix((10**5, 10**5))
    with pytest.raises(DataError, match=r"100000 x 100000 is too large.*TruncatedSVD"):
        open_data((huge, [0] * 10**5))


def test_texts_of_a_frame_equal_those_of_its_csv_file(tmp_path: Path) -> None:
    texts, labels = ["so very good", "bad", "quite good"], ["yes", "no", "yes"]
    frame = pd.DataFrame({"text": texts, "label": labels})
    frame.to_csv(tmp_path / "t.csv", index=False)
    file = open_dataset(f"csv:{tmp_path / 't.csv'}?text=text")
    for data in (
        list(zip(texts, labels, strict=True)),
        (texts, labels),
        (frame["text"].iloc[:], frame["label"]),
        frame,
        datasets.Dataset.from_pandas(frame),
    ):
        found = open_data(data)
        assert (found.inputs, found.fingerprint) == (file.inputs, file.fingerprint)


def test_text_columns_are_recognized_by_their_name_and_words() -> None:
    frame = pd.DataFrame({"sentence": ["one two three"] * 2, "id": [1, 2], "label": [0, 1]})
    rows = columns_of(frame)
    assert rows.columns[0].shape == (128,)
    assert rows.note == "only the texts of sentence are used, not id"
    # Single words are categories, and so are sentences of another name.
    for other in (frame.replace("one two three", "one"), frame.rename(columns={"sentence": "at"})):
        assert [one.name for one in columns_of(other).columns] == ["numbers", "categories"]


def test_a_target_with_fractions_or_many_values_is_a_number_else_a_class() -> None:
    grades = open_data(pd.DataFrame({"x": [1.5, 2, 3, 4], "y": [1.0, 5.0, 1.0, 5.0]}))
    assert (grades.class_names, grades.target.kind) == (("1", "5"), TargetKind.CLASS)
    for prices in ([1.5, 2, 3, 4] * 50, range(200)):
        frame = pd.DataFrame({"x": range(200), "price": prices})
        assert open_data(frame, target="price").target.kind is TargetKind.NUMBER
    frame = pd.DataFrame({"x": range(40), "y": [1, 2] * 20})
    for data in (frame, (frame[["x"]], frame["y"])):
        assert open_data(data, target="number").target.kind is TargetKind.NUMBER
    labels = open_data((pd.DataFrame({"x": [1, 2]}), [["a"], ["a", "b"]]))
    assert labels.target.kind is TargetKind.CLASSES


@pytest.mark.parametrize(
    ("data", "target", "error", "words"),
    [
        (FRAME, "grate", DataError, r"no column 'grate'\. Did you mean grade\? Name one of age"),
        (FRAME, None, DataError, r"none of them is called label\. Name.*target='grade'"),
        (FRAME, "income", DataError, r"1 of 4 rows have no label in the column income: rows 1"),
        ((FRAME, [0, 1]), None, DataError, "columns age and label have 4 and 2 cells"),
        ((FRAME, [0, 1] * 2), "grade", ConfigError, "together with the labels of .X, y."),
        ([([1.0], 0)], "grade", ConfigError, "names a column, and a list has none. Give a table"),
        (pd.concat([FRAME, FRAME], axis=1), "grade", DataError, "'age' more than once"),
        (([[1, "a"], [2]], [0, 1]), None, DataError, "rows of X differ in length"),
    ],
)
def test_errors_describe_the_problem_of_a_table(
    data: Any, target: str | None, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        open_data(data, target=target)


def test_columns_may_be_arrays_tensors_lists_frames_or_a_dictionary() -> None:
    features = torch.arange(6.0).reshape(3, 2)
    assert map_style((features, torch.tensor([0, 1, 1])))[2][0].tolist() == [4.0, 5.0]
    assert map_style(([[1, 2], [3, 4]], [0, 1]))[1] == ([3, 4], 1)
    counts: Any = map_style((np.array([[1, 2]]), pd.Series([5])))
    assert (counts[0][0].dtype, counts.targets.tolist()) == (np.float32, [5])
    texts = {"input_ids": torch.tensor([[7, 8], [9, 0]]), "mask": torch.ones(2, 2)}
    example, label = map_style((texts, [0, 1]))[1]
    assert (example["input_ids"].tolist(), example["mask"].tolist(), label) == ([9, 0], [1, 1], 1)


def test_a_column_names_the_sources_of_a_table_of_images_or_cells() -> None:
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "site": datasets.ClassLabel(names=["north", "south"]),
        }
    )
    images = [Image.new("L", (8, 8), value) for value in range(4)]
    columns = {"image": images, "label": [0, 1, 0, 1], "site": [1, 0, None, 1]}
    table = datasets.Dataset.from_dict(columns, features=features)
    assert open_set("pool", table, None, None).rows.sources is None
    sources = open_set("pool", table, None, None, options={"source": "site"}).rows.sources
    assert sources is not None
    assert sources.names == ("missing", "north", "south")
    assert sources.places_N.tolist() == [2, 1, 0, 2]
    cells = table.remove_columns("image").add_column("number", [1, 2, 3, 4])
    found = open_set("pool", cells, None, None, options={"source": "site"}).rows.sources
    assert found is not None
    assert found.names == sources.names
    with pytest.raises(DataError, match=r"no column 'sit'.* Did you mean"):
        open_set("pool", table, None, None, options={"source": "sit"})


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
    holed = {**columns, "image": [images[0], None]}
    with pytest.raises(
        DataError, match=r"image 1 \(row 1 of the column image\): the cell is empty"
    ):
        open_data(datasets.Dataset.from_dict(holed, features=features))
    stars = datasets.Dataset.from_dict({"vector": [[1.0]], "stars": [5]})
    with pytest.raises(DataError, match="the columns vector, stars, and none of them is called"):
        map_style(stars)
    assert map_style(stars, "stars")[0] == ([1.0], 5)
