from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lipt.common.config.run_config import LearnersConfig
from lipt.coordinator.pretraining.sharding import require_shards_fit
from lipt.defaults import default_model, fitting_run


@pytest.mark.parametrize(
    ("example", "model"),
    [
        (np.zeros((8, 8), np.uint8), "resnet8"),
        (torch.zeros(3, 64, 64, dtype=torch.uint8), "resnet8"),
        (Image.new("RGB", (64, 32)), "resnet8"),
        (torch.zeros(3, 65, 64, dtype=torch.uint8), "torchvision:resnet18"),
        (Image.new("L", (500, 375)), "torchvision:resnet18"),
        (np.zeros(30), "mlp"),
        (torch.zeros(512), "mlp"),
        (torch.zeros(20, dtype=torch.int64), "text:tiny"),
        ({"input_ids": torch.zeros(20, dtype=torch.int64)}, "text:tiny"),
        ({"age": torch.zeros(1), "height": torch.zeros(1)}, "mlp"),
    ],
)
def test_the_model_suits_the_kind_of_data(example: Any, model: str) -> None:
    assert default_model(example) == model


def test_settings_that_fit_stay_as_they_are() -> None:
    # 10 x 256 of 3,000, of which 10 x 20 are held out.
    assert fitting_run([300] * 10, {}) == {}


def test_small_data_gets_small_batches() -> None:
    # 1,797 less 200 are 1,597 for ten learners.
    counts = [180] * 9 + [177]
    assert fitting_run(counts, {}) == {"learners": {"num_learners": 10, "batch_size": 159}}


def test_smaller_data_gets_fewer_learners() -> None:
    # 240 less 10 x 12 are 120: three batches of 32 fit, and then they are of 40.
    assert fitting_run([24] * 10, {}) == {"learners": {"num_learners": 3, "batch_size": 40}}


def test_what_the_caller_has_said_stays() -> None:
    counts = [24] * 10
    assert fitting_run(counts, {"num_learners": 6}) == {
        "learners": {"num_learners": 6, "batch_size": 20}
    }
    assert fitting_run(counts, {"batch_size": 60}) == {"learners": {"num_learners": 2}}
    # Both are the caller's: the coordinator says what would fit.
    assert fitting_run(counts, {"num_learners": 6, "batch_size": 60}) == {}
    assert fitting_run(counts, {"num_minibatches": 2}) == {
        "learners": {"num_learners": 2, "batch_size": 30}
    }


@pytest.mark.parametrize("count", [1, 2, 3, 5, 10, 33, 100, 1000])
def test_what_is_made_to_fit_fits(count: int) -> None:
    made = fitting_run([count, count], {}).get("learners", {})
    num_train = 2 * (count - min(20, count // 2))
    if num_train >= 2:
        require_shards_fit(num_train, LearnersConfig(**made))
