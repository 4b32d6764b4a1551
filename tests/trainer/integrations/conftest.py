"""A small data set, a model, and subsets that say when they were chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lipt.trainer import InfoBatchSampler, RedrawingSampler, ReselectingSampler, StaleLossSampler
from lipt.trainer.subsets.subset import Subset
from tests.trainer.fake_client import FakeClient
from tests.trainer.made_up import made_up_subset

NUM_EXAMPLES = 40


def subset_of(number: int) -> Subset:
    """The `number`-th answer: eight examples from 4 x `number` on."""
    return made_up_subset(range(4 * number, 4 * number + 8), [0.1] * 8, number=number)


def numbers(number: int) -> list[int]:
    return [int(index) for index in subset_of(number).indices]


def random() -> RedrawingSampler:
    return RedrawingSampler(NUM_EXAMPLES, budget=8)


def stale() -> StaleLossSampler:
    return StaleLossSampler(NUM_EXAMPLES, budget=8)


def infobatch() -> InfoBatchSampler:
    return InfoBatchSampler(NUM_EXAMPLES, num_epochs=8)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


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
