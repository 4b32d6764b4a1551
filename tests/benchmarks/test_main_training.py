from pathlib import Path

import pytest
import torch

from benchmarks import main_training
from benchmarks.main_training import Files, images, with_fit, with_loader

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LIPT_DATA", str(tmp_path))
    monkeypatch.setattr(main_training, "BATCH_SIZE", 4)


def test_both_sides_take_their_steps(made_up: None) -> None:
    dataset, files = images(8)
    assert with_fit(dataset, "resnet8", 3, CPU) > 0
    assert with_loader(Files(files, dataset.labels_N.tolist()), 0, "resnet8", 3, CPU) > 0
