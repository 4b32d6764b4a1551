import json
import multiprocessing
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributed, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from lipt import RepeatedRandomSampler
from lipt.common.determinism import derive_generator
from lipt.common.errors import (
    BudgetError,
    ConfigError,
    LiptError,
    MissingExtraError,
    UnreachableError,
)
from lipt.trainer.resampling.reselection import ReselectingSampler
from lipt.trainer.resampling.samplers import Cycles, SubsetSampler, Uneven
from tests.properties import at_most
from tests.trainer.made_up import FakeClient, made_up_subset

NUM_RANKS = 2
# Of a rank; at the top of its module, since it is sent to another process.
Train = Callable[[int], dict[str, Any]]


def _join_and_train(train: Train, rank: int, folder: Path) -> None:
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=NUM_RANKS
    )
    (folder / f"{rank}.json").write_text(json.dumps(train(rank)))
    distributed.destroy_process_group()


def records_of_ranks(train: Train, folder: Path) -> list[dict[str, Any]]:
    """What `train` returns on each rank, in their order; every process has to end well."""
    spawning = multiprocessing.get_context("spawn")
    processes = [
        spawning.Process(target=_join_and_train, args=(train, rank, folder))
        for rank in range(NUM_RANKS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * NUM_RANKS
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(NUM_RANKS)]


NUM_EXAMPLES = 40


def repeated(**ranks: Any) -> RepeatedRandomSampler:
    return RepeatedRandomSampler(NUM_EXAMPLES, budget=10, seed=5, **ranks)


def drawn_by(sampler: RepeatedRandomSampler, epoch: int) -> list[int]:
    sampler.set_epoch(epoch)
    return list(sampler)


def test_a_sampler_resumes_within_an_epoch() -> None:
    whole, first, second = repeated(), repeated(), repeated()
    orders = [drawn_by(whole, epoch) for epoch in range(6)]
    first.set_epoch(3)
    second.load_state_dict(first.state_dict())
    assert list(second) == orders[3]
    assert [drawn_by(second, epoch) for epoch in (4, 5)] == orders[4:]


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_partition_an_epoch(num_ranks: int) -> None:
    parts = [repeated(rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
    for epoch in range(3):
        whole = drawn_by(repeated(), epoch)
        shares = [drawn_by(part, epoch) for part in parts]
        assert [len(part) for part in parts] == list(map(len, shares))
        assert sorted(row for share in shares for row in share) == sorted(whole)
    short = [list(repeated(rank=rank, num_ranks=3, uneven="drop")) for rank in range(3)]
    assert len({len(part) for part in short}) == 1


def test_a_data_loader_follows_the_sampler() -> None:
    sampler, alone = repeated(), repeated()
    data = TensorDataset(torch.arange(NUM_EXAMPLES))
    workers: Any = {"num_workers": 1, "persistent_workers": True}
    loader: Any = DataLoader(data, batch_size=4, sampler=sampler, **workers)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        seen = [row for (rows,) in loader for row in rows.tolist()]
        assert seen == drawn_by(alone, epoch)


def drawn(cycles: Cycles, epoch: int) -> list[int]:
    return cycles.draw(epoch).tolist()


def permutation(seed: int, cycle: int, num_examples: int) -> list[int]:
    generator = derive_generator(seed, "redrawing-cycle", cycle)
    return torch.randperm(num_examples, generator=generator).tolist()


def test_consecutive_epochs_walk_through_permutations() -> None:
    cycles = Cycles(6, 2, seed=3)
    first, second = permutation(3, 0, 6), permutation(3, 1, 6)
    epochs = [drawn(cycles, epoch) for epoch in range(6)]
    assert epochs == [first[:2], first[2:4], first[4:], second[:2], second[2:4], second[4:]]
    with pytest.raises(BudgetError, match=r"budget 7 is outside 1\.\.6"):
        Cycles(6, 7, seed=3)


@settings(max_examples=at_most(60))
@given(st.data(), st.integers(1, 30), st.integers(0, 5), st.booleans())
def test_cycles_use_all(data: st.DataObject, num_examples: int, seed: int, classes: bool) -> None:
    budget = data.draw(st.integers(1, num_examples))
    labels_N = torch.arange(num_examples) % 3 if classes else None
    cycles = Cycles(num_examples, budget, seed, labels_N)
    epochs = [drawn(cycles, epoch) for epoch in range(3 * num_examples)]
    assert all(len(set(ids)) == budget for ids in epochs)
    stream = torch.tensor(epochs).flatten()
    for cycle in stream[: len(stream) // num_examples * num_examples].split(num_examples):
        assert sorted(cycle.tolist()) == list(range(num_examples))


@pytest.mark.parametrize("budget", [3, 7])
def test_an_epoch_does_not_depend_on_earlier_draws(budget: int) -> None:
    in_order = Cycles(10, budget, seed=1)
    epochs = [drawn(in_order, epoch) for epoch in range(40)]
    backwards = Cycles(10, budget, seed=1)
    assert [drawn(backwards, epoch) for epoch in reversed(range(40))] == epochs[::-1]
    assert drawn(Cycles(10, budget, seed=1), 33) == epochs[33]
    assert drawn(Cycles(10, budget, seed=2), 33) != epochs[33]


TEN = made_up_subset(range(5, 105, 10))


def test_every_epoch_reorders_the_subset() -> None:
    sampler = SubsetSampler(TEN)
    first = list(sampler)
    assert sorted(first) == TEN.indices.tolist()
    assert list(sampler) == first  # until the epoch changes
    sampler.set_epoch(1)
    assert list(sampler) != first
    assert sorted(sampler) == TEN.indices.tolist()
    # Written down before the order came in blocks.
    assert list(SubsetSampler(TEN, seed=1)) == [45, 85, 5, 25, 75, 55, 15, 95, 35, 65]


def test_weights_follow_the_order() -> None:
    weighted = made_up_subset(range(4), [1.0, 2.0, 3.0, 2.0])
    sampler = SubsetSampler(weighted, seed=3)
    indices = list(sampler)
    expected = torch.tensor([0.5, 1.0, 1.5, 1.0])[indices]  # of mean 1
    assert torch.equal(torch.cat([sampler.weights(0, 3), sampler.weights(1, 3)]), expected)
    assert sampler.is_weighted


def test_soft_labels_follow_the_order_and_are_required() -> None:
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
def test_ranks_equal_torch_s_distributed_sampler(num_ranks: int, uneven: Uneven) -> None:
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
    client: Any = FakeClient(lambda number: SUBSETS[number % 2])
    return ReselectingSampler(client, nn.Linear(2, 2), "craig", every=1, fraction=0.1)


def test_a_samplers_state_is_its_order_and_its_subset() -> None:
    one, other = reselecting(), reselecting()
    one.set_epoch(3)
    other.load_state_dict(one.state_dict())
    assert list(other) == list(one)
    assert len(other) == 12


def train_reselecting(rank: int) -> dict[str, Any]:
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
    client.refusals = [MissingExtraError("That needs the package 'numba'.")]
    try:
        sampler.set_epoch(3)
    except LiptError as error:
        refusal = f"{type(error).__name__}: {error}"
    told = [str(item.message) for item in caught if "no new subset" in str(item.message)]
    return {"seen": seen, "warnings": told, "refusal": refusal, "asked": len(client.asked)}


@pytest.mark.slow
def test_all_ranks_train_on_rank_0_s_subset(tmp_path: Path) -> None:
    first, second = records_of_ranks(train_reselecting, tmp_path)
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


def test_the_default_device_and_dtype_change_no_draw() -> None:
    subset, labels = made_up_subset(list(range(0, 100, 3))), list(range(10)) * 10

    def draws() -> list[object]:
        fixed, resampled = (
            SubsetSampler(subset, seed=1),
            RepeatedRandomSampler(100, fraction=0.3, labels=torch.tensor(labels, device="cpu")),
        )
        order = [len(fixed), list(fixed), len(resampled), list(resampled)]
        return [*order, fixed.weights(0, 4).dtype, fixed.weights(0, 4).device.type]

    expected = draws()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"), torch.inference_mode():
            assert draws() == expected
    finally:
        torch.set_default_dtype(torch.float32)
