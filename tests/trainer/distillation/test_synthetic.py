import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lipt.common.data import Dataset, open_dataset
from lipt.common.errors import DataError
from lipt.trainer.distillation import SyntheticSet
from lipt.trainer.distillation.synthetic import RealExamples
from tests.in_memory import in_memory


def made_up(labels: list[int]) -> Dataset:
    """Images of one pixel, as bright as their row's number."""
    images = torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1)
    return in_memory("made up", ("no", "yes"), torch.tensor(labels), "f" * 64, images)


def test_a_subset_gives_its_examples_and_their_weights(subset_of: Any) -> None:
    data = made_up([1, 0, 1, 0, 0])
    real = RealExamples.of(data, subset_of(data, [0, 3, 4], [1.0, 0.5, 0.0]), at_least=1)
    # What has no weight gives no gradient.
    assert [ids_M.tolist() for ids_M in real.ids] == [[3], [0]]
    assert real.weights_N.tolist() == [1, 0, 0, 0.5, 0]


def test_a_draw_has_all_of_a_small_class_once() -> None:
    real = RealExamples.of(made_up([1, 0, 1, 0, 0]), None, at_least=1)
    assert sorted(real.draw(0, 10, torch.Generator()).tolist()) == [1, 3, 4]
    assert len(set(real.draw(0, 2, torch.Generator()).tolist())) == 2


def test_what_cannot_be_distilled_is_refused() -> None:
    with pytest.raises(DataError, match=r"'yes' of made up has 2 images to distil 3 from"):
        RealExamples.of(made_up([1, 0, 1, 0, 0]), None, at_least=3)
    with pytest.raises(DataError, match="only images with one class each are distilled"):
        RealExamples.of(open_dataset("wine"), None, at_least=1)


def two_stages() -> SyntheticSet:
    """Two classes with an image of one pixel in each of two stages: 1 and 2, then 3 and 4."""
    synthetic = SyntheticSet.empty((1, 1, 1), ("no", "yes"))
    for brightness in (1, 3):
        images = torch.tensor([brightness, brightness + 1], dtype=torch.uint8).view(2, 1, 1, 1)
        synthetic = synthetic.extended(images, torch.tensor([0, 1]))
    return synthetic


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
