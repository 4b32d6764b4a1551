import warnings
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from lipt.common.errors import ConfigError, LiptError, MissingExtraError, UnreachableError
from lipt.trainer.resampling.reselection import ReselectingSampler
from lipt.trainer.resampling.samplers import SubsetSampler, Uneven
from tests.trainer.fake_client import FakeClient
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
    with pytest.raises(ConfigError, match=r"rank 2 is not one of 2\. Ranks count from 0"):
        SubsetSampler(TEN, rank=2, num_ranks=2)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 10, 12, 23])
@pytest.mark.parametrize("uneven", get_args(Uneven))
def test_ranks_share_the_order_as_torch_has_it(num_ranks: int, uneven: Uneven) -> None:
    places: Any = torch.arange(10)
    for rank in range(num_ranks):
        sampler = SubsetSampler(TEN, shuffle=False, rank=rank, num_ranks=num_ranks, uneven=uneven)
        by_torch: Any = DistributedSampler(
            places, num_ranks, rank, shuffle=False, drop_last=uneven == "drop"
        )
        mine = places[rank::num_ranks].tolist() if uneven == "keep" else list(by_torch)
        assert list(sampler) == TEN.indices[mine].tolist()
        assert len(sampler) == len(mine)


SUBSETS = [made_up_subset(range(8)), made_up_subset(range(50, 62))]


def reselecting() -> ReselectingSampler:
    """Draws from the other subset in every epoch."""
    client: Any = FakeClient(lambda number: SUBSETS[number % 2])
    return ReselectingSampler(client, nn.Linear(2, 2), "craig", every=1, fraction=0.1)


def test_a_samplers_state_is_its_order_and_its_subset() -> None:
    one, other = reselecting(), reselecting()
    one.set_epoch(3)
    other.load_state_dict(one.state_dict())
    assert list(other) == list(one)
    assert len(other) == 12


def test_persistent_workers_see_the_new_subset() -> None:
    sampler = reselecting()
    workers: Any = {"num_workers": 1, "persistent_workers": True}
    loader = DataLoader(TensorDataset(torch.arange(100)), batch_size=4, sampler=sampler, **workers)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        seen = sorted(int(value) for (batch_B,) in loader for value in batch_B)
        assert seen == SUBSETS[epoch % 2].indices.tolist()
        assert len(sampler) == len(seen)


def train(rank: int) -> dict[str, Any]:
    """One process: three epochs, with an outage in the second, and a fourth that is refused."""
    client: Any = FakeClient(lambda number: made_up_subset(range(10 * number, 10 * number + 9)))
    ranks: Any = {"rank": rank, "num_ranks": NUM_RANKS, "uneven": "drop"}
    sampler = ReselectingSampler(client, nn.Linear(2, 2), "craig", fraction=0.1, every=1, **ranks)
    seen, refusal = [], ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for epoch in range(3):
            client.refusals = [UnreachableError("away.")] if epoch == 1 else []
            sampler.set_epoch(epoch)
            seen.append(list(sampler))
    client.refusals = [MissingExtraError("numba", extra="fast", needed_for="That")]
    try:
        sampler.set_epoch(3)
    except LiptError as error:
        refusal = f"{type(error).__name__}: {error}"
    told = [str(item.message) for item in caught if "no new subset" in str(item.message)]
    return {"seen": seen, "warnings": told, "refusal": refusal, "asked": len(client.asked)}


@pytest.mark.slow
def test_all_ranks_train_on_what_rank_0_was_answered(tmp_path: Path) -> None:
    first, second = records_of_ranks(train, tmp_path)
    assert (first["asked"], second["asked"]) == (4, 0)
    for epoch, start in enumerate((0, 0, 20)):
        parts = set(first["seen"][epoch]), set(second["seen"][epoch])
        assert [len(part) for part in parts] == [4, 4]
        assert not parts[0] & parts[1]
        assert parts[0] | parts[1] < set(range(start, start + 9))
    for record in (first, second):
        (warning,) = record["warnings"]
        assert "epoch 1: no new subset (away.)" in warning
        assert record["refusal"].startswith("MissingExtraError: That needs the package 'numba'")
