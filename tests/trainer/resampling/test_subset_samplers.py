from __future__ import annotations

import itertools
import math
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lipt.common.errors import (
    ConfigError,
    LiptError,
    MissingExtraError,
    UnreachableError,
)
from lipt.trainer.resampling.reselection import ReselectingSampler
from lipt.trainer.resampling.samplers import SubsetSampler, Uneven
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import StrategyView
from tests.trainer.made_up import made_up_subset
from tests.trainer.ranks import NUM_RANKS, records_of_ranks

TEN = made_up_subset(range(5, 105, 10))


def test_an_epoch_is_the_subset_in_another_order_each_time() -> None:
    sampler = SubsetSampler(TEN)
    first = list(sampler)
    assert sorted(first) == TEN.indices.tolist()
    assert list(sampler) == first  # until the epoch changes
    sampler.set_epoch(1)
    assert list(sampler) != first
    assert sorted(sampler) == TEN.indices.tolist()


def test_an_order_is_the_one_of_earlier_versions() -> None:
    # Written down before the order came in blocks.
    assert list(SubsetSampler(TEN, seed=1)) == [45, 85, 5, 25, 75, 55, 15, 95, 35, 65]


def test_weights_follow_the_order() -> None:
    weighted = made_up_subset(range(4), [1.0, 2.0, 3.0, 2.0])
    sampler = SubsetSampler(weighted, seed=3)
    indices = list(sampler)
    expected = torch.tensor([0.5, 1.0, 1.5, 1.0])[indices]  # of mean 1
    assert torch.equal(torch.cat([sampler.weights(0, 3), sampler.weights(1, 3)]), expected)
    assert sampler.is_weighted


def test_soft_labels_follow_the_order_and_have_to_be_there() -> None:
    soft = [[place / 10, 1 - place / 10] for place in range(10)]
    subset = made_up_subset(range(5, 105, 10), soft_labels=soft)
    sampler = SubsetSampler(subset, rank=1, num_ranks=2, alpha=0.5)
    places = [(index - 5) // 10 for index in sampler]
    second = sampler.soft_labels(1, 3)
    assert second is not None
    torch.testing.assert_close(
        second[:, 0].float(), torch.tensor(places[3:]) / 10, atol=1e-3, rtol=0
    )
    plain = SubsetSampler(subset)
    list(plain)
    assert plain.soft_labels(0, 3) is None
    with pytest.raises(ConfigError, match=r"alpha is 0\.5, and the subset has no soft labels"):
        SubsetSampler(TEN, alpha=0.5)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 10, 12, 23])
@pytest.mark.parametrize("uneven", get_args(Uneven))
def test_ranks_are_disjoint_and_cover_the_subset(num_ranks: int, uneven: Uneven) -> None:
    samplers = [
        SubsetSampler(TEN, rank=rank, num_ranks=num_ranks, uneven=uneven)
        for rank in range(num_ranks)
    ]
    parts = [list(sampler) for sampler in samplers]
    assert [len(sampler) for sampler in samplers] == [len(part) for part in parts]
    together = [index for part in parts for index in part]
    if uneven == "keep":
        assert sorted(together) == TEN.indices.tolist()
    else:
        assert len({len(part) for part in parts}) == 1
        each = Counter(together)
        rounds = 10 / num_ranks
        low, high = math.floor(rounds), math.ceil(rounds)
        assert len(parts[0]) == (low if uneven == "drop" else high)
        assert uneven == "drop" or set(each) == set(TEN.indices.tolist())
        assert uneven == "repeat" or set(each.values()) <= {1}


class _Alternating:
    """A client without a coordinator: a question has the next answer, over and over."""

    def __init__(self, subsets: Sequence[Subset]) -> None:
        self._answers = itertools.cycle(subsets)

    def strategies(self) -> list[StrategyView]:
        return []

    def subset(self, run: str, strategy: str, **options: object) -> Subset:
        return next(self._answers)


def reselecting(subsets: Sequence[Subset]) -> ReselectingSampler:
    """Draws from another subset in every epoch."""
    client: Any = _Alternating(subsets)
    return ReselectingSampler(client, torch.nn.Linear(2, 2), every=1, fraction=0.1)


def test_a_samplers_state_is_its_order_and_its_subset() -> None:
    subsets = [made_up_subset(range(8)), made_up_subset(range(50, 62))]
    one = reselecting(subsets)
    one.set_epoch(3)
    other = reselecting(subsets)
    other.load_state_dict(one.state_dict())
    assert list(other) == list(one)
    assert len(other) == 12


def test_persistent_workers_see_the_new_subset() -> None:
    subsets = [made_up_subset(range(8)), made_up_subset(range(50, 62))]
    sampler = reselecting(subsets)
    loader = DataLoader(
        TensorDataset(torch.arange(100)),
        batch_size=4,
        sampler=sampler,
        num_workers=1,
        persistent_workers=True,
    )
    for epoch in range(3):
        sampler.set_epoch(epoch)
        seen = sorted(int(value) for (batch_B,) in loader for value in batch_B)
        assert seen == subsets[epoch % 2].indices.tolist()
        assert len(sampler) == len(seen)


class ScriptedClient:
    """Rank 0's: subset 0, an outage, subset 1, ..., and a refusal in the end."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._answers: list[int | LiptError] = [
            0,
            UnreachableError("away."),
            1,
            MissingExtraError("numba", extra="fast", needed_for="That"),
        ]

    def strategies(self) -> list[StrategyView]:
        assert self._rank == 0, "another rank than 0 asks"
        return []

    def subset(self, run: str, strategy: str, **options: Any) -> Subset:
        assert self._rank == 0, "another rank than 0 asks"
        answer = self._answers.pop(0)
        if isinstance(answer, LiptError):
            raise answer
        first = 10 * answer
        return made_up_subset(range(first, first + 9), strategy=strategy, number=answer)


def train(rank: int) -> dict[str, Any]:
    """One process: three epochs, and a fourth that is refused."""
    client: Any = ScriptedClient(rank)
    sampler = ReselectingSampler(
        client,
        nn.Linear(2, 2),
        "made-up",
        fraction=0.1,
        every=1,
        rank=rank,
        num_ranks=NUM_RANKS,
        uneven="drop",
    )
    seen = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for epoch in range(3):
            sampler.set_epoch(epoch)
            seen.append(list(sampler))
    refusal = ""
    try:
        sampler.set_epoch(3)
    except LiptError as error:
        refusal = f"{type(error).__name__}: {error}"
    told = [str(item.message) for item in caught if "no new subset" in str(item.message)]
    return {"seen": seen, "warnings": told, "refusal": refusal}


@pytest.mark.slow
def test_all_ranks_train_on_what_rank_0_was_answered(tmp_path: Path) -> None:
    first, second = records_of_ranks(train, tmp_path)
    for epoch, start in enumerate((0, 0, 10)):
        parts = set(first["seen"][epoch]), set(second["seen"][epoch])
        assert [len(part) for part in parts] == [4, 4]
        assert not parts[0] & parts[1]
        assert parts[0] | parts[1] < set(range(start, start + 9))
    for record in (first, second):
        assert len(record["warnings"]) == 1
        assert "epoch 1: no new subset (away.)" in record["warnings"][0]
        assert record["refusal"].startswith("MissingExtraError: That needs the package 'numba'")
