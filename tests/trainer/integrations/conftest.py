"""A small data set, a model, and subsets that say when they were chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lipt.common.subset_digest import subset_digest
from lipt.trainer import ReselectingSampler, StrategyView, Subset

NUM_EXAMPLES = 40


def subset_of(number: int) -> Subset:
    """The `number`-th answer: eight examples from 4 x `number` on."""
    indices_K = np.arange(8) + 4 * number
    weights_K = np.full(8, 0.1, np.float32)
    digest = subset_digest(indices_K, weights_K)
    return Subset(indices_K, weights_K, "f" * 64, digest, "made-up", {"number": number})


class FakeClient:
    """Answers with subset 0, 1, 2, ..., and keeps what was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def strategies(self) -> list[StrategyView]:
        return []

    def subset(self, run: str, strategy: str, **options: Any) -> Subset:
        self.asked.append(options)
        return subset_of(len(self.asked) - 1)


@pytest.fixture
def fake_client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def make_sampler(fake_client: FakeClient) -> Callable[..., ReselectingSampler]:
    def make(model: nn.Module, every: int = 2, **options: Any) -> ReselectingSampler:
        return ReselectingSampler(
            fake_client,  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
            model,
            "made-up",
            fraction=0.2,
            every=every,
            **options,
        )

    return make


@pytest.fixture
def images_ND() -> torch.Tensor:
    """Each example's features are its own number."""
    return torch.arange(NUM_EXAMPLES, dtype=torch.float32).repeat(3, 1).T.contiguous()
