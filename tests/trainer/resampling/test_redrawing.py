import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipt.common.determinism import derive_generator
from lipt.trainer.resampling.redrawing import (
    Cycles,
    InfoBatchDraws,
    InfoBatchOptions,
    StaleOptions,
    draw_by_losses,
    draw_pruned,
)
from lipt.trainer.resampling.samplers import StaleLossSampler
from tests.properties import at_most


def drawn(cycles: Cycles, epoch: int) -> list[int]:
    return cycles.draw(epoch)[0].tolist()


def permutation(seed: int, cycle: int, num_examples: int) -> list[int]:
    generator = derive_generator(seed, "redrawing-cycle", cycle)
    return torch.randperm(num_examples, generator=generator).tolist()


def test_a_permutation_is_walked_through_a_budget_at_a_time() -> None:
    cycles = Cycles(6, 2, seed=3)
    first, second = permutation(3, 0, 6), permutation(3, 1, 6)
    epochs = [drawn(cycles, epoch) for epoch in range(6)]
    assert epochs == [first[:2], first[2:4], first[4:], second[:2], second[2:4], second[4:]]


def test_an_epoch_across_two_cycles_has_no_example_twice() -> None:
    # Of five examples, two at a time, the third epoch has the last of one permutation and the
    # first other one of the next.
    for seed in range(20):
        cycles = Cycles(5, 2, seed=seed)
        first, second = permutation(seed, 0, 5), permutation(seed, 1, 5)
        other = next(example for example in second if example != first[4])
        second.remove(other)
        assert drawn(cycles, 2) == [first[4], other]
        assert drawn(cycles, 3) == second[:2]
        assert drawn(cycles, 4) == second[2:]


@settings(max_examples=at_most(60))
@given(st.data(), st.integers(1, 30), st.integers(0, 5), st.booleans())
def test_every_example_is_seen_once_per_cycle(
    data: st.DataObject, num_examples: int, seed: int, classes: bool
) -> None:
    budget = data.draw(st.integers(1, num_examples))
    labels_N = torch.arange(num_examples) % 3 if classes else None
    cycles = Cycles(num_examples, budget, seed, labels_N)
    epochs = [drawn(cycles, epoch) for epoch in range(3 * num_examples)]
    assert all(len(set(ids)) == budget for ids in epochs)
    stream = torch.tensor(epochs).flatten()
    for cycle in stream[: len(stream) // num_examples * num_examples].split(num_examples):
        assert sorted(cycle.tolist()) == list(range(num_examples))


@pytest.mark.parametrize("budget", [3, 7])
def test_an_epoch_depends_on_nothing_that_was_drawn_before(budget: int) -> None:
    in_order = Cycles(10, budget, seed=1)
    epochs = [drawn(in_order, epoch) for epoch in range(40)]
    backwards = Cycles(10, budget, seed=1)
    assert [drawn(backwards, epoch) for epoch in reversed(range(40))] == epochs[::-1]
    assert drawn(Cycles(10, budget, seed=1), 33) == epochs[33]
    assert drawn(Cycles(10, budget, seed=2), 33) != epochs[33]


INF = float("inf")


def pruned(losses: list[float], prune: float, seed: int = 0) -> tuple[list[int], list[float]]:
    generator = torch.Generator().manual_seed(seed)
    ids_K, weights_N = draw_pruned(torch.tensor(losses), prune, generator)
    return sorted(ids_K.tolist()), weights_N.tolist()


@pytest.mark.parametrize(("prune", "num_kept"), [(0.0, 5), (0.3, 4), (0.5, 2), (0.9, 1)])
def test_the_easy_that_stay_weigh_as_much_as_all_easy_ones(prune: float, num_kept: int) -> None:
    # The mean is 3: five are below it, 3.0 itself is not. 0.7 and 0.5 of five are rounded to even.
    ids, weights = pruned([0.0, 1.0, 2.0, 0.0, 2.0, 3.0, 13.0], prune)
    assert ids[-2:] == [5, 6]
    assert [weights[row] for row in ids] == [5 / num_kept] * num_kept + [1.0, 1.0]
    assert sum(weights) == 7.0


def test_nothing_is_easy_that_was_never_trained_on() -> None:
    assert pruned([INF] * 3, 0.5) == ([0, 1, 2], [1.0] * 3)
    ids, weights = pruned([1.0, INF, 1.0, 4.0], 0.5)
    assert ids[-2:] == [1, 3] or ids == [0, 1, 3]
    assert sorted(weights) == [0.0, 1.0, 1.0, 2.0]


@pytest.mark.parametrize(("num_epochs", "first_full"), [(8, 7), (16, 14), (200, 175), (10, 8)])
def test_the_last_eighth_is_on_everything(num_epochs: int, first_full: int) -> None:
    # Two of three are easy, and one of them is left out.
    draws = InfoBatchDraws(3, 3, 0, InfoBatchOptions())
    draws.known_N = torch.tensor([0.0, 0.0, 9.0])
    sizes = [len(draws.draw(epoch, num_epochs)[0]) for epoch in range(num_epochs)]
    assert sizes == [2] * first_full + [3] * (num_epochs - first_full)
    assert len(draws.draw(10_000)[0]) == 2


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn_by_losses(losses: list[float], budget: int, seed: int = 0, **options: float) -> list[int]:
    losses_N = torch.tensor(losses)
    return draw_by_losses(losses_N, budget, StaleOptions(**options), seeded(seed)).tolist()


def pool_of(num_examples: int, pool_size: int, seed: int = 0) -> list[int]:
    return torch.randperm(num_examples, generator=seeded(seed))[:pool_size].tolist()


@pytest.mark.parametrize("seed", range(3))
def test_the_hardest_half_of_a_pool_of_two_budgets(seed: int) -> None:
    losses = [float(number) for number in range(10)]
    expected = sorted(pool_of(10, 6, seed))[3:]
    assert sorted(drawn_by_losses(losses, 3, seed)) == expected


def test_what_was_never_trained_on_comes_first() -> None:
    assert sorted(drawn_by_losses([5.0, INF, 4.0, INF], 2)) == [1, 3]
    assert sorted(drawn_by_losses([5.0, INF, 4.0, INF], 3, pool=4 / 3)) == [0, 1, 3]


def test_the_hardest_are_left_out_where_labels_are_noisy() -> None:
    losses = [float(number) for number in range(20)]
    # One of twenty: the next ten.
    assert sorted(drawn_by_losses(losses, 10, hardest_out=0.05)) == list(range(9, 19))


def test_leaving_out_spares_what_was_never_trained_on_and_the_budget() -> None:
    assert sorted(drawn_by_losses([3.0, INF, 2.0, 1.0], 2, hardest_out=0.25)) == [1, 2]
    assert sorted(drawn_by_losses([3.0, 2.0, 1.0], 2, pool=1.5, hardest_out=0.9)) == [1, 2]
    assert sorted(drawn_by_losses([INF, INF, INF], 2, pool=1.5, hardest_out=0.9)) in (
        [0, 1],
        [0, 2],
        [1, 2],
    )


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
