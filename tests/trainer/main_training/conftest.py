"""Digits to train on, subsets of them, and a small model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import nn

from lipt.common.data import Dataset, open_dataset
from lipt.common.subset_digest import subset_digest
from lipt.trainer.main_training import Recipe, Trained
from lipt.trainer.subset import Subset

RECIPE = Recipe(steps=12, batch_size=16, augmentation="none", learning_rate=0.05)


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
def digits() -> Dataset:
    return open_dataset("digits-train")


@pytest.fixture(scope="session")
def digits_test() -> Dataset:
    return open_dataset("digits-test")


@pytest.fixture
def subset_of() -> Callable[..., Subset]:
    def make(
        dataset: Dataset, indices: Sequence[int], weights: Sequence[float] | None = None
    ) -> Subset:
        indices_N = np.array(indices, np.int64)
        weights_N = np.ones(len(indices), np.float32)
        if weights is not None:
            weights_N = np.array(weights, np.float32)
        digest = subset_digest(indices_N, weights_N)
        return Subset(indices_N, weights_N, dataset.fingerprint, digest, "made-up")

    return make
