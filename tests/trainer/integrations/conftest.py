"""A small data set, a model, and subsets that say when they were chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lipt.trainer import ReselectingSampler, Subset
from tests.trainer.fake_client import FakeClient
from tests.trainer.made_up import made_up_subset

NUM_EXAMPLES = 40


def subset_of(number: int) -> Subset:
    """The `number`-th answer: eight examples from 4 x `number` on."""
    return made_up_subset(range(4 * number, 4 * number + 8), [0.1] * 8, number=number)


@pytest.fixture
def fake_client() -> FakeClient:
    return FakeClient(subset_of)


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
