from __future__ import annotations

import pytest
import torch

from lipt.common.errors import ConfigError
from lipt.trainer.redrawing.samplers import StaleLossSampler
from lipt.trainer.redrawing.stale_losses import StaleOptions, draw_by_losses

INF = float("inf")


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(losses: list[float], budget: int, seed: int = 0, **options: float) -> list[int]:
    losses_N = torch.tensor(losses)
    return draw_by_losses(losses_N, budget, StaleOptions(**options), seeded(seed)).tolist()


def pool_of(num_examples: int, pool_size: int, seed: int = 0) -> list[int]:
    return torch.randperm(num_examples, generator=seeded(seed))[:pool_size].tolist()


def test_the_hardest_of_everything_where_the_pool_is_everything() -> None:
    assert sorted(drawn([0.1, 0.9, 0.3, 0.8, 0.2, 0.7], 3)) == [1, 3, 5]


@pytest.mark.parametrize("seed", range(5))
def test_the_hardest_half_of_a_pool_of_two_budgets(seed: int) -> None:
    losses = [float(number) for number in range(10)]
    expected = sorted(pool_of(10, 6, seed))[3:]
    assert sorted(drawn(losses, 3, seed)) == expected


def test_a_larger_pool_is_harder_and_one_of_a_budget_is_random() -> None:
    losses = [float(number) for number in range(10)]
    assert sorted(drawn(losses, 2, pool=5)) == [8, 9]
    assert sorted(drawn(losses, 2, pool=1)) == sorted(pool_of(10, 2))


def test_what_was_never_trained_on_comes_first() -> None:
    assert sorted(drawn([5.0, INF, 4.0, INF], 2)) == [1, 3]
    assert sorted(drawn([5.0, INF, 4.0, INF], 3, pool=4 / 3)) == [0, 1, 3]


def test_the_hardest_are_left_out_where_labels_are_noisy() -> None:
    losses = [float(number) for number in range(20)]
    # One of twenty: the next ten.
    assert sorted(drawn(losses, 10, hardest_out=0.05)) == list(range(9, 19))


def test_leaving_out_spares_what_was_never_trained_on_and_the_budget() -> None:
    assert sorted(drawn([3.0, INF, 2.0, 1.0], 2, hardest_out=0.25)) == [1, 2]
    assert sorted(drawn([3.0, 2.0, 1.0], 2, pool=1.5, hardest_out=0.9)) == [1, 2]
    assert sorted(drawn([INF, INF, INF], 2, pool=1.5, hardest_out=0.9)) in ([0, 1], [0, 2], [1, 2])


def test_a_loss_that_is_no_number_counts_as_unknown() -> None:
    assert sorted(drawn([1.0, float("nan"), 3.0, 2.0], 2)) == [1, 2]


def test_every_example_comes_once_before_it_is_judged() -> None:
    # Ten of a pool of twenty: an epoch has new ones as long as the pool has any.
    sampler = StaleLossSampler(20, budget=10)
    seen: set[int] = set()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        ids = list(sampler)
        assert not seen & set(ids)
        seen |= set(ids)
        sampler.update(torch.tensor(ids), torch.tensor(ids, dtype=torch.float32))
    assert seen == set(range(20))
    sampler.set_epoch(2)
    assert sorted(sampler) == list(range(10, 20))


def test_only_what_was_trained_on_has_a_new_loss() -> None:
    sampler = StaleLossSampler(4, budget=2)
    sampler.update(torch.arange(4), torch.tensor([4.0, 3.0, 2.0, 1.0]))
    sampler.set_epoch(1)
    assert sorted(sampler) == [0, 1]
    sampler.update(torch.tensor([0, 1]), torch.tensor([0.5, 3.5]))
    assert sorted(sampler) == [0, 1]  # until the epoch is over
    sampler.set_epoch(2)
    assert sorted(sampler) == [1, 2]


@pytest.mark.parametrize("option", [{"pool": 0.5}, {"hardest_out": 1.0}, {"hardest_out": -0.1}])
def test_options_out_of_range_are_refused(option: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=rf"{next(iter(option))} = {next(iter(option.values()))}"):
        StaleLossSampler(10, budget=2, **option)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
