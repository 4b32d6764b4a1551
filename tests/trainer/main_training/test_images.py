from __future__ import annotations

import pytest
import torch

from lipt.common.data import Dataset
from lipt.common.inputs.stored import images_in
from lipt.trainer.main_training.images import TrainingImages

CPU = torch.device("cpu")


@pytest.mark.parametrize("resident", [True, False])
def test_batches_are_the_positions_images_in_order(digits: Dataset, *, resident: bool) -> None:
    ids_N = torch.tensor([40, 3, 7, 900, 12])
    images = TrainingImages(digits, ids_N, CPU, resident=resident)
    positions = [torch.tensor([4, 0]), torch.tensor([1]), torch.tensor([2, 3, 1])]
    found = list(images.batches(positions))
    assert images.resident is resident
    for batch_BCHW, positions_B in zip(found, positions, strict=True):
        assert torch.equal(images_in(batch_BCHW), digits.images(ids_N[positions_B]))


def test_a_small_set_is_resident_unasked(digits: Dataset) -> None:
    assert TrainingImages(digits, torch.arange(10), CPU).resident


def test_leaving_early_ends_the_decoding(digits: Dataset) -> None:
    images = TrainingImages(digits, torch.arange(100), CPU, resident=False)
    batches = images.batches(list(torch.arange(100).split(5)))
    next(batches)
    batches.close()  # type: ignore[attr-defined]  # waits for the thread, which has to end
