from __future__ import annotations

import itertools

import pytest
import torch

from lipt.common.errors import BudgetError, ConfigError
from lipt.trainer.redrawing.infobatch import InfoBatchOptions, draw_pruned
from lipt.trainer.redrawing.samplers import InfoBatchSampler

INF = float("inf")


def drawn(losses: list[float], prune: float, seed: int = 0) -> tuple[list[int], list[float]]:
    generator = torch.Generator().manual_seed(seed)
    ids_K, weights_N = draw_pruned(torch.tensor(losses), prune, generator)
    return sorted(ids_K.tolist()), weights_N.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_half_of_what_is_below_the_mean_is_left_out_and_half_counts_twice(seed: int) -> None:
    # The mean is 3: the first four are below it, 3.0 itself is not.
    ids, weights = drawn([0.0, 1.0, 2.0, 0.0, 3.0, 12.0], 0.5, seed)
    assert ids[-2:] == [4, 5]
    assert len(ids) == 4
    assert [weights[row] for row in ids] == [2.0, 2.0, 1.0, 1.0]
    assert sum(weights) == 6.0


def test_in_the_mean_over_all_draws_every_example_counts_once() -> None:
    # Every pair of the four easy ones comes as often as any other, so the draws that are met
    # are weighed alike: each easy example is in three of six pairs, with weight 2.
    losses = [0.0, 1.0, 2.0, 0.0, 3.0, 12.0]
    by_pair = {tuple(ids): weights for ids, weights in (drawn(losses, 0.5, s) for s in range(200))}
    assert {ids[:2] for ids in by_pair} == set(itertools.combinations(range(4), 2))
    sums = [sum(column) for column in zip(*by_pair.values(), strict=True)]
    assert sums == [6.0] * 6


@pytest.mark.parametrize(("prune", "num_kept"), [(0.0, 5), (0.3, 4), (0.5, 2), (0.9, 1)])
def test_the_weights_sum_to_the_number_of_examples(prune: float, num_kept: int) -> None:
    # 0.7 and 0.5 of five easy ones are 3.5 and 2.5, rounded to even.
    ids, weights = drawn([0.0] * 5 + [10.0], prune)
    assert len(ids) == num_kept + 1
    assert sum(weights) == 6.0
    assert {weights[row] for row in ids[:-1]} == {5 / num_kept}


def test_nothing_is_easy_that_was_never_trained_on() -> None:
    assert drawn([INF] * 3, 0.5) == ([0, 1, 2], [1.0] * 3)
    ids, weights = drawn([1.0, INF, 1.0, 4.0], 0.5)
    assert ids[-2:] == [1, 3] or ids == [0, 1, 3]
    assert sorted(weights) == [0.0, 1.0, 1.0, 2.0]


def test_equal_losses_are_all_trained_on() -> None:
    assert drawn([2.0, 2.0], 0.5) == ([0, 1], [1.0, 1.0])


@pytest.mark.parametrize(("num_epochs", "first_full"), [(8, 7), (16, 14), (200, 175), (10, 8)])
def test_the_last_eighth_is_on_everything(num_epochs: int, first_full: int) -> None:
    options = InfoBatchOptions()
    pruned = [options.prunes(epoch, num_epochs) for epoch in range(num_epochs)]
    assert pruned == [True] * first_full + [False] * (num_epochs - first_full)
    assert options.prunes(10_000, None)


def test_a_sampler_weighs_what_it_draws() -> None:
    sampler = InfoBatchSampler(6, num_epochs=8)
    assert sorted(sampler) == list(range(6))
    assert sampler.weights(torch.arange(6)).tolist() == [1.0] * 6
    sampler.update(torch.arange(6), torch.tensor([0.0, 1.0, 2.0, 0.0, 3.0, 12.0]))
    for epoch in range(1, 7):
        sampler.set_epoch(epoch)
        ids = torch.tensor(list(sampler))
        assert len(sampler) == len(ids) == 4
        assert sampler.weights(ids).sum() == 6
        assert sampler.weights(torch.tensor([5, 4])).tolist() == [1.0, 1.0]
    sampler.set_epoch(7)
    assert sorted(sampler) == list(range(6))
    assert sampler.weights(torch.arange(6)).tolist() == [1.0] * 6


@pytest.mark.parametrize("option", [{"prune": 1.0}, {"annealing": 1.5}])
def test_options_out_of_range_are_refused(option: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=rf"{next(iter(option))} = 1"):
        InfoBatchSampler(6, num_epochs=8, **option)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def test_no_examples_are_refused() -> None:
    with pytest.raises(BudgetError):
        InfoBatchSampler(0, num_epochs=8)
