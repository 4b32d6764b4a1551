"""Digits, settings that take a second, and subsets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from lipt.common.data import Dataset, input_format, open_dataset
from lipt.common.images.formats import ImageFormat
from lipt.trainer.distillation import Distillation
from lipt.trainer.distillation.network import Networks
from lipt.trainer.subsets.subset import Subset
from tests.trainer.made_up import made_up_subset

CPU = torch.device("cpu")


def small(**changes: Any) -> Distillation:
    settings = {
        "per_class": 2,
        "stages": 2,
        "networks": 2,
        "matches": 2,
        "steps_between": 1,
        "steps_before": 2,
        "real_batch": 8,
        "augmentation": "crop",
        "padding": 1,
    }
    return Distillation.model_validate(settings | changes)


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return open_dataset("digits-train")


@pytest.fixture(scope="session")
def networks_of(digits: Dataset) -> Callable[..., Networks]:
    """Networks for digits, by settings."""
    image = input_format(digits, torch.arange(len(digits)), 0)
    assert isinstance(image, ImageFormat)

    def make(settings: Distillation, model: str = "linear") -> Networks:
        return Networks(model, image, 10, settings, CPU)

    return make


@pytest.fixture
def subset_of() -> Callable[..., Subset]:
    def make(
        dataset: Dataset, indices: Sequence[int], weights: Sequence[float] | None = None
    ) -> Subset:
        return made_up_subset(indices, weights, fingerprint=dataset.fingerprint)

    return make
