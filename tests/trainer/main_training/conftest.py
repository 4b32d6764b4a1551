"""Digits to train on, and subsets of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from lipt.common.data import Dataset, open_dataset
from lipt.common.subset_digest import subset_digest
from lipt.trainer.subset import Subset


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
