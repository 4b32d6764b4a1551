"""Digits, settings that take a second, and subsets."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lipt.common.data import Dataset, input_format
from lipt.common.images.formats import ImageFormat
from lipt.trainer.distillation import Distillation
from lipt.trainer.distillation.distillation import Networks

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


def dropping_model(num_classes: int) -> nn.Module:
    """A user's model with a layer that draws."""
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, num_classes))


@pytest.fixture(scope="session")
def networks_of(digits: Dataset) -> Callable[..., Networks]:
    """Networks for digits, by settings."""
    image = input_format(digits, torch.arange(len(digits)), 0)
    assert isinstance(image, ImageFormat)

    def make(settings: Distillation, model: str = "linear") -> Networks:
        return Networks(model, image, 10, settings, CPU)

    return make
