import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lipt.common.data import open_dataset
from lipt.common.data.sources.feature_file import features_rows
from lipt.common.data.sources.rows import ColumnRows
from lipt.common.errors import DataError
from lipt.common.inputs.specs import Column, ColumnType
from lipt.common.weights.files import pack

X = torch.arange(6, dtype=torch.float16).view(3, 2)
Y = torch.tensor([0, 2, 0], dtype=torch.uint8)


def opened(path: Path, query: str = "") -> ColumnRows:
    return features_rows(f"features:{path}{query}", f"{path}{query}")


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
        ({"X": torch.full((3, 2), 1e39, dtype=torch.float64)}, "row 0 has a value .* not finite"),
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
