from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipt.common.determinism import derive_generator
from lipt.common.errors import BudgetError
from lipt.trainer.redrawing.cycles import Cycles
from tests.properties import at_most


def permutation(seed: int, cycle: int, num_examples: int) -> list[int]:
    generator = derive_generator(seed, "redrawing-cycle", cycle)
    return torch.randperm(num_examples, generator=generator).tolist()


def test_a_permutation_is_walked_through_a_budget_at_a_time() -> None:
    cycles = Cycles(6, 2, seed=3)
    first, second = permutation(3, 0, 6), permutation(3, 1, 6)
    epochs = [cycles.draw(epoch).tolist() for epoch in range(6)]
    assert epochs == [first[:2], first[2:4], first[4:], second[:2], second[2:4], second[4:]]


def test_an_epoch_across_two_cycles_has_no_example_twice() -> None:
    # Of five examples, two at a time, the third epoch has the last of one permutation and the
    # first other one of the next.
    for seed in range(20):
        cycles = Cycles(5, 2, seed=seed)
        first, second = permutation(seed, 0, 5), permutation(seed, 1, 5)
        other = next(example for example in second if example != first[4])
        second.remove(other)
        assert cycles.draw(2).tolist() == [first[4], other]
        assert cycles.draw(3).tolist() == second[:2]
        assert cycles.draw(4).tolist() == second[2:]


@settings(max_examples=at_most(60))
@given(st.data(), st.integers(1, 30), st.integers(0, 5), st.booleans())
def test_every_example_is_seen_once_per_cycle(
    data: st.DataObject, num_examples: int, seed: int, classes: bool
) -> None:
    budget = data.draw(st.integers(1, num_examples))
    labels_N = torch.arange(num_examples) % 3 if classes else None
    cycles = Cycles(num_examples, budget, seed, labels_N)
    epochs = [cycles.draw(epoch) for epoch in range(3 * num_examples)]
    assert all(len(set(ids_K.tolist())) == budget for ids_K in epochs)
    stream = torch.cat(epochs)
    for cycle in stream[: len(stream) // num_examples * num_examples].split(num_examples):
        assert sorted(cycle.tolist()) == list(range(num_examples))


@pytest.mark.parametrize("budget", [3, 7])
def test_an_epoch_depends_on_nothing_that_was_drawn_before(budget: int) -> None:
    in_order = Cycles(10, budget, seed=1)
    epochs = [in_order.draw(epoch).tolist() for epoch in range(40)]
    backwards = Cycles(10, budget, seed=1)
    assert [backwards.draw(epoch).tolist() for epoch in reversed(range(40))] == epochs[::-1]
    assert Cycles(10, budget, seed=1).draw(33).tolist() == epochs[33]
    assert Cycles(10, budget, seed=2).draw(33).tolist() != epochs[33]


def test_every_epoch_has_its_share_of_each_class() -> None:
    # 40, 40 and 20: an epoch of ten has 4, 4 and 2, but for one that lies on an edge.
    labels_N = torch.tensor([0, 1, 0, 1, 2] * 20)
    cycles = Cycles(100, 10, seed=0, labels_N=labels_N)
    for epoch in range(20):
        counts = labels_N[cycles.draw(epoch)].bincount(minlength=3)
        assert (counts - torch.tensor([4, 4, 2])).abs().max() <= 1


def test_classes_of_one_size_have_equal_shares() -> None:
    labels_N = torch.arange(60) % 5
    cycles = Cycles(60, 10, seed=4, labels_N=labels_N)
    for epoch in range(12):
        assert labels_N[cycles.draw(epoch)].bincount().tolist() == [2] * 5


@pytest.mark.parametrize("budget", [0, 11])
def test_a_budget_that_cannot_be_drawn_is_refused(budget: int) -> None:
    with pytest.raises(BudgetError, match=f"budget {budget} is outside 1..10"):
        Cycles(10, budget, seed=0)


def test_labels_of_other_data_are_refused() -> None:
    with pytest.raises(ValueError, match="3 labels for 10 examples"):
        Cycles(10, 2, seed=0, labels_N=torch.zeros(3))
