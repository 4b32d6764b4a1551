import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lipt.common.errors import ConfigError
from lipt.trainer import InfoBatchSampler, RedrawingSampler, StaleLossSampler, with_ids
from lipt.trainer.resampling.samplers import EpochSampler, LossSampler
from tests.trainer.ranks import NUM_RANKS, records_of_ranks

NUM_EXAMPLES = 40
Make = Callable[..., EpochSampler]


MAKERS: list[Make] = [
    partial(RedrawingSampler, NUM_EXAMPLES, budget=10, seed=5),
    partial(StaleLossSampler, NUM_EXAMPLES, budget=10, seed=5),
    partial(InfoBatchSampler, NUM_EXAMPLES, num_epochs=16, seed=5),
]


def loss_of(ids_B: torch.Tensor, epoch: int) -> torch.Tensor:
    """Made up: every example's another one in every epoch."""
    return (ids_B * 7 + epoch * 11) % 13 * 1.0


def tell(sampler: EpochSampler, rows: list[int], epoch: int) -> None:
    if isinstance(sampler, LossSampler):
        for ids_B in torch.split(torch.tensor(rows), 4):
            sampler.update(ids_B, loss_of(ids_B, epoch))


def trained(sampler: EpochSampler, epoch: int) -> list[int]:
    """An epoch's order, after its losses were told batch by batch."""
    sampler.set_epoch(epoch)
    order = list(sampler)
    tell(sampler, order, epoch)
    return order


@pytest.mark.parametrize("make", MAKERS)
def test_training_that_stopped_within_an_epoch_goes_on_within_its_order(make: Make) -> None:
    whole, first, second = make(), make(), make()
    orders = [trained(whole, epoch) for epoch in range(6)]
    for epoch in range(3):
        trained(first, epoch)
    first.set_epoch(3)
    tell(first, orders[3][:4], 3)
    # As torch.save has it.
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    second.set_epoch(3)
    assert list(second) == orders[3]
    tell(second, orders[3][4:], 3)
    assert [trained(second, epoch) for epoch in (4, 5)] == orders[4:]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_share_one_epoch(make: Make, num_ranks: int) -> None:
    parts = [make(rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
    for epoch in range(3):
        for part in parts:
            part.set_epoch(epoch)
        whole = make()
        whole.set_epoch(epoch)
        assert [len(part) for part in parts] == [len(list(part)) for part in parts]
        together = [row for part in parts for row in part]
        assert sorted(together) == sorted(whole)
    short = [list(make(rank=r, num_ranks=3, uneven="drop")) for r in range(3)]
    assert len({len(part) for part in short}) == 1


@pytest.mark.parametrize("make", MAKERS)
def test_a_loader_gives_what_the_sampler_drew(make: Make) -> None:
    sampler, alone = make(), make()
    values = torch.arange(NUM_EXAMPLES) * 2.0
    data = with_ids(TensorDataset(values))
    workers: Any = {"num_workers": 1, "persistent_workers": True}
    loader: Any = DataLoader(data, batch_size=4, sampler=sampler, **workers)
    for epoch in range(3):
        expected = trained(alone, epoch)
        sampler.set_epoch(epoch)
        seen: list[int] = []
        for ids_B, (values_B,) in loader:
            assert values_B.tolist() == (ids_B * 2.0).tolist()
            seen.extend(ids_B.tolist())
            tell(sampler, ids_B.tolist(), epoch)
        assert seen == expected


def test_a_mean_in_place_of_losses_and_a_state_of_other_data_are_refused() -> None:
    sampler, other = StaleLossSampler(40, budget=10), StaleLossSampler(41, budget=10)
    with pytest.raises(ConfigError, match='reduction="none"'):
        sampler.update(torch.arange(3), torch.tensor(0.5))
    with pytest.raises(ConfigError, match="losses of 40 examples, but there are 41"):
        other.load_state_dict(sampler.state_dict())


def train(rank: int) -> dict[str, Any]:
    """One process: every example once, then the hardest ones, and what a checkpoint holds."""
    # A pool of everything: the first three epochs have everybody, then the hardest eight.
    sampler = StaleLossSampler(24, budget=8, pool=3, rank=rank, num_ranks=NUM_RANKS, uneven="drop")
    seen = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        seen.append(list(sampler))
        ids = torch.tensor(seen[-1])
        sampler.update(ids, ids.float() + epoch)
    sampler.gather()
    known = sampler.state_dict()["losses"]["noted_ids"].tolist()
    return {"seen": seen, "noted": sorted(known)}


@pytest.mark.slow
def test_all_ranks_draw_by_the_losses_of_all(tmp_path: Path) -> None:
    first, second = records_of_ranks(train, tmp_path)
    pairs = zip(first["seen"], second["seen"], strict=True)
    epochs = [sorted(one + other) for one, other in pairs]
    assert sorted(row for epoch in epochs[:3] for row in epoch) == list(range(24))
    # A loss is the row number and the epoch; those of both ranks decide.
    losses = {row: row + epoch for epoch in range(3) for row in epochs[epoch]}
    hardest = sorted(losses.values())[-8:]
    assert sorted(losses[row] for row in epochs[3]) == hardest
    # What a checkpoint of one rank holds after `gather` is everybody's.
    assert first["noted"] == second["noted"] == epochs[3]
