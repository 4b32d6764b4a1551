from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from lipt.common.data import open_dataset
from lipt.trainer.distillation import SyntheticSet


def two_stages() -> SyntheticSet:
    """Two classes with an image of one pixel in each of two stages: 1 and 2, then 3 and 4."""
    synthetic = SyntheticSet.empty((1, 1, 1), ("no", "yes"))
    for brightness in (1, 3):
        images = torch.tensor([brightness, brightness + 1], dtype=torch.uint8).view(2, 1, 1, 1)
        synthetic = synthetic.extended(images, torch.tensor([0, 1]))
    return synthetic


def test_a_stage_is_put_behind_those_before() -> None:
    synthetic = two_stages()
    assert synthetic.images_NCHW.flatten().tolist() == [1, 2, 3, 4]
    assert synthetic.labels_N.tolist() == [0, 1, 0, 1]
    assert synthetic.stages_N.tolist() == [0, 0, 1, 1]
    assert synthetic.num_stages == 2
    assert SyntheticSet.empty((1, 1, 1), ("no", "yes")).num_stages == 0
    assert synthetic.until(0)[0].flatten().tolist() == [1, 2]
    assert synthetic.until(1)[1].tolist() == [0, 1, 0, 1]


def test_the_digest_is_of_images_labels_and_stages() -> None:
    numbers = b"".join(int(n).to_bytes(8, "little") for n in (0, 1, 0, 1, 0, 0, 1, 1))
    assert two_stages().digest == hashlib.sha256(bytes([1, 2, 3, 4]) + numbers).hexdigest()


def test_a_folder_holds_the_set_a_manifest_and_a_picture(tmp_path: Path) -> None:
    synthetic = two_stages()
    synthetic.save(tmp_path)
    found = SyntheticSet.load(tmp_path)
    assert found.digest == synthetic.digest
    assert found.class_names == ("no", "yes")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest == {"images": 4, "digest": synthetic.digest}
    # A row for each class, by stage from left to right.
    with Image.open(io.BytesIO((tmp_path / "sheet.png").read_bytes())) as sheet:
        assert np.asarray(sheet).tolist() == [[1, 3], [2, 4]]


def test_a_folder_is_a_data_set(tmp_path: Path) -> None:
    two_stages().save(tmp_path)
    data = open_dataset(f"distilled:{tmp_path}")
    assert data.images(torch.tensor([3, 0])).flatten().tolist() == [4, 1]
    assert data.labels_N.tolist() == [0, 1, 0, 1]
    assert data.class_names == ("no", "yes")
