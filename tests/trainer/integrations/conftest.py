"""A small data set, a model, and subsets that say when they were chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lipt.trainer import ReselectingSampler, StrategyView, Subset
from tests.trainer.made_up import made_up_subset

NUM_EXAMPLES = 40


def subset_of(number: int) -> Subset:
    """The `number`-th answer: eight examples from 4 x `number` on."""
    return made_up_subset(range(4 * number, 4 * number + 8), [0.1] * 8, number=number)


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
