"""Digits to train on, subsets of them, and a small model."""

import pytest
import torch
from torch import nn

from lipt.data.dataset import Dataset
from lipt.data.loading import open_dataset
from lipt.trainer.main_training import Recipe, Schedule, Trained

RECIPE = Recipe(steps=12, batch_size=16, augmentation="none", learning_rate=0.05)


EVERY_EPOCH = Schedule(checkpoint_seconds=0.0)


class StoppedError(Exception):
    """The process is gone."""


class Net(nn.Module):
    """A model with everything that a checkpoint has to carry: statistics and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3)
        )
        self.head = nn.Linear(32, 10)

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        logits_BC: torch.Tensor = self.head(self.layers(images_BCHW))
        return logits_BC


def net(seed: int = 0) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Net()


def equal(one: Trained, other: Trained) -> bool:
    return all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)


@pytest.fixture(scope="session")
def digits_test() -> Dataset:
    return open_dataset("digits-test")
