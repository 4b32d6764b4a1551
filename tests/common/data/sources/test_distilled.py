"""Distilled sets: what is read, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lipt.common.data import open_dataset
from lipt.common.data.sources.image_files import FILE_NAME, read_distilled
from lipt.common.errors import DataError
from lipt.common.weights.files import pack


def write(folder: Path, metadata: dict[str, str] | None = None, **tensors: Any) -> None:
    contents = {
        "images_NCHW": torch.arange(12, dtype=torch.uint8).view(3, 1, 2, 2),
        "labels_N": torch.tensor([0, 1, 1]),
        "stages_N": torch.tensor([0, 0, 1]),
    } | tensors
    given = {"class_names": '["no", "yes"]', "manifest": "{}"} | (metadata or {})
    present = {name: tensor for name, tensor in contents.items() if tensor is not None}
    (folder / FILE_NAME).write_bytes(pack(present, given))


def test_a_folder_is_opened_by_its_name(tmp_path: Path) -> None:
    write(tmp_path, {"manifest": json.dumps({"source": "digits"})})
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
        ({}, {"labels_N": torch.tensor([0, 1])}, r"labels_N torch.int64 \[2\]"),
        ({}, {"stages_N": torch.zeros(3)}, r"stages_N torch.float32"),
        ({}, {"stages_N": torch.tensor([0, 0, 2])}, "its stages are not numbered from 0"),
        ({}, {"stages_N": torch.tensor([-1, 0, 1])}, "its stages are not numbered from 0"),
        ({"class_names": "{}"}, {}, "class_names is not a list of texts"),
        ({"class_names": "["}, {}, "its metadata is not JSON"),
        ({"manifest": "[]"}, {}, "manifest not an object"),
    ],
)
def test_another_file_is_refused(
    tmp_path: Path, metadata: dict[str, str], tensors: dict[str, Any], complaint: str
) -> None:
    write(tmp_path, metadata, **tensors)
    with pytest.raises(DataError, match=complaint) as caught:
        open_dataset(f"distilled:{tmp_path}")
    assert str(caught.value).endswith("Name a folder of 'lipt distill'.")
