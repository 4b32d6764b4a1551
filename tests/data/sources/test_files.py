import inspect
import json
import logging
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lipt.common.errors import DataError
from lipt.common.tensor_files import pack
from lipt.data.inputs.specs import Column, ColumnType
from lipt.data.loading import open_dataset
from lipt.data.sources.address import Address
from lipt.data.sources.files import FILE_NAME, bundled_rows, features_rows, read_distilled
from lipt.data.sources.rows import ColumnRows
from lipt.data.sources.tables.texts import hashing_tokenizer

X = torch.arange(6, dtype=torch.float16).view(3, 2)
Y = torch.tensor([0, 2, 0], dtype=torch.uint8)


def opened(path: Path, query: str = "") -> ColumnRows:
    return features_rows(Address.parse(f"features:{path}{query}", ("standardize",)))


def write(path: Path, metadata: dict[str, str] | None = None, **tensors: Tensor) -> Path:
    path.write_bytes(pack({"X": X, "y": Y} | tensors, metadata))
    return path


def test_feature_file_has_floats_to_standardize_labels_and_names(tmp_path: Path) -> None:
    names = json.dumps(["cat", "ant", "dog"])
    rows = opened(write(tmp_path / "f.safetensors", {"class_names": names}))
    assert rows.columns == (Column("", ColumnType.FLOAT32, (2,), standardized=True),)
    assert rows.tensors[""].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert rows.tensors[""].dtype == torch.float32
    assert rows.labels_N.tolist() == [0, 2, 0]
    assert rows.class_names == ("cat", "ant", "dog")
    assert rows.paired_NP is None
    # Others, of any shape and type, are taken as they are where asked.
    path = write(tmp_path / "f", X=torch.ones(3, 2, 4, 5, dtype=torch.int16))
    rows = opened(path, "?standardize=no")
    assert rows.columns == (Column("", ColumnType.FLOAT32, (2, 4, 5)),)


def test_paired_features_are_not_a_model_input(tmp_path: Path) -> None:
    rows = opened(write(tmp_path / "f", paired_features=torch.ones(3, 7)))
    assert rows.paired_NP is not None
    assert rows.paired_NP.shape == (3, 7)
    assert len(rows.columns) == 1
    # A subset depends on them, so the fingerprint does.
    assert rows.raw(1) == torch.tensor([2.0, 3.0, *[1.0] * 7]).numpy().tobytes()


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"X": torch.ones(2, 2)}, r"X has the shape \[2, 2\], but y has 3 labels"),
        ({"X": torch.ones(3, 0)}, r"X has the shape \[3, 0\]"),
        (
            {"X": torch.full((3, 2), torch.inf, dtype=torch.float64)},
            "row 0 has a value .* not finite",
        ),
        ({"y": torch.ones(3, 2, 2)}, r"y is torch.float32 of the shape \[3, 2, 2\]\. Give a class"),
        ({"y": torch.tensor([0, -1, 1])}, "row 1 has the label -1, which is not the number of a"),
        ({"paired_features": torch.ones(3, 1, 1)}, "paired_features has 3 dimensions"),
        ({"paired_features": torch.full((3, 1), torch.inf)}, "or values that are not finite"),
        ({"z": torch.ones(3)}, r"holds 'X', 'y', 'z'\. Write safetensors"),
    ],
)
def test_other_tensors_are_refused(tmp_path: Path, tensors: dict[str, Tensor], words: str) -> None:
    path = write(tmp_path / "f", None, **tensors)
    with pytest.raises(DataError, match=words):
        open_dataset(f"features:{path}")


def test_unknown_names_and_wrong_sizes_are_refused(tmp_path: Path) -> None:
    for names in ("cat", '"cat"', "[1]"):
        with pytest.raises(DataError, match="class_names in its metadata is not a JSON list"):
            opened(write(tmp_path / "f", {"class_names": names}))
    whole = write(tmp_path / "f")
    whole.write_bytes(whole.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"15 bytes, 14 are there\. Write"):
        opened(whole)


def write_distilled(folder: Path, metadata: dict[str, str] | None = None, **tensors: Any) -> None:
    contents = {
        "images_NCHW": torch.arange(12, dtype=torch.uint8).view(3, 1, 2, 2),
        "labels_N": torch.tensor([0, 1, 1]),
        "stages_N": torch.tensor([0, 0, 1]),
    } | tensors
    given = {"class_names": '["no", "yes"]', "manifest": "{}"} | (metadata or {})
    present = {name: tensor for name, tensor in contents.items() if tensor is not None}
    (folder / FILE_NAME).write_bytes(pack(present, given))


def test_a_folder_is_opened_by_its_name(tmp_path: Path) -> None:
    write_distilled(tmp_path, {"manifest": json.dumps({"source": "digits"})})
    found = read_distilled(tmp_path)
    assert found.stages_N.tolist() == [0, 0, 1]
    assert found.manifest == {"source": "digits"}
    data = open_dataset(f"distilled:{tmp_path}")
    assert data.class_names == ("no", "yes")
    assert data.labels_N.tolist() == [0, 1, 1]
    assert data.images(torch.tensor([1])).flatten().tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("metadata", "tensors", "complaint"),
    [
        ({}, {"stages_N": None}, "it lacks a part, .*'stages_N'"),
        ({}, {"images_NCHW": torch.zeros(3, 1, 2, 2)}, r"images_NCHW is torch.float32 \[3, 1"),
        ({}, {"images_NCHW": torch.zeros(0, 1, 2, 2).byte()}, r"uint8 \[0, 1, 2, 2\]"),
        ({}, {"images_NCHW": torch.zeros(3, 4).byte()}, r"uint8 \[3, 4\]"),
        ({}, {"images_NCHW": torch.zeros(3, 5, 2, 2).byte()}, r"uint8 \[3, 5, 2, 2\]"),
        ({}, {"images_NCHW": torch.zeros(3, 1, 0, 2).byte()}, r"uint8 \[3, 1, 0, 2\]"),
        ({}, {"labels_N": torch.tensor([0, 1])}, r"labels_N torch.int64 \[2\]"),
        ({}, {"stages_N": torch.zeros(3)}, r"stages_N torch.float32"),
        ({}, {"stages_N": torch.tensor([0, 0, 2])}, "its stages are not numbered from 0"),
        ({}, {"stages_N": torch.tensor([-1, 0, 1])}, "its stages are not numbered from 0"),
        ({"class_names": "{}"}, {}, "class_names is not a list of texts"),
        ({"class_names": "["}, {}, "its metadata is not JSON"),
        ({"manifest": "[]"}, {}, "manifest not an object"),
    ],
)
def test_a_folder_without_distilled_data_is_refused(
    tmp_path: Path, metadata: dict[str, str], tensors: dict[str, Any], complaint: str
) -> None:
    write_distilled(tmp_path, metadata, **tensors)
    with pytest.raises(DataError, match=complaint) as caught:
        open_dataset(f"distilled:{tmp_path}")
    assert str(caught.value).endswith("Name a folder of 'lipt distill'.")


def bundled(name: str) -> ColumnRows:
    rows = bundled_rows(Address.parse(name))
    assert isinstance(rows, ColumnRows)
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("name", ["breast_cancer", "wine"])
def test_bundled_tables_equal_scikit_learn_s_with_disjoint_splits(name: str) -> None:
    loaded, rows = getattr(pytest.importorskip("sklearn.datasets"), f"load_{name}")(), bundled(name)
    assert np.array_equal(rows.tensors[""].numpy(), loaded.data.astype(np.float32))
    assert np.array_equal(rows.labels_N.numpy(), loaded.target)
    assert rows.class_names == tuple(loaded.target_names)
    assert rows.columns[0].shape == loaded.data.shape[1:]
    whole, train, test = (bundled(name + part) for part in ("", "-train", "-test"))
    assert set(test.labels_N.tolist()) == set(train.labels_N.tolist())
    parts = sorted(part.raw(row) for part in (train, test) for row in range(len(part)))
    assert parts == sorted(whole.raw(row) for row in range(len(whole)))
    assert len(test) in range(len(whole) // 5 - 3, len(whole) // 5 + 1)


@pytest.mark.slow
def test_standard_library_paragraphs_are_labelled_with_their_package() -> None:
    rows = bundled("pydocs")
    assert len(rows) > 2000
    assert rows.labels_N.bincount().min() > 200
    text = inspect.getdoc(logging.Logger)
    assert text is not None
    paragraph = text.split("\n\n")[0]
    ((numbers, _),) = hashing_tokenizer(32, 2**13).encode([paragraph])
    (row,) = [
        row
        for row, tokens in enumerate(rows.tensors[""].tolist())
        if tokens == numbers + [0] * (32 - len(numbers))
    ]
    assert rows.class_names[rows.labels_N[row]] == "logging"


@pytest.mark.slow
def test_missing_python_sources_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(DataError, match="there are no sources of asyncio"):
        bundled("pydocs")
