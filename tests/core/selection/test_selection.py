from collections.abc import Sequence
from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipt.common.errors import BudgetError
from lipt.core.selection.selection import (
    class_quotas,
    draw_by_weight,
    draw_from_groups,
    keep_largest,
    proportional_quotas,
    worth_counting,
)


def test_the_largest_scores_come_first_and_ties_keep_data_set_order() -> None:
    chosen = keep_largest(torch.tensor([1.0, 5.0, 3.0, 5.0, 3.0]), budget=3)
    assert chosen.indices_K.tolist() == [1, 3, 2]
    assert chosen.weights_K.tolist() == [1.0] * 3


def draw(weights: list[float], budget: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    log_weights_N = torch.tensor(weights).log()
    return draw_by_weight(log_weights_N, budget, generator=generator).indices_K.tolist()


def test_is_a_draw_one_by_one_without_replacement() -> None:
    # The second is drawn by the weights of those that are left.
    weights = [1.0, 2.0, 5.0]
    expected = {
        (i, j): weights[i] / 8 * weights[j] / (8 - weights[i]) for i, j in permutations(range(3), 2)
    }
    drawn = [tuple(draw(weights, 2, seed)) for seed in range(4000)]
    for pair, probability in expected.items():
        # The deviation is 0.0077 at most.
        assert drawn.count(pair) / 4000 == pytest.approx(probability, abs=0.03)


def test_what_has_no_weight_comes_last_in_order() -> None:
    for seed in range(20):
        chosen = draw([0.0, 1.0, 0.0, 1.0], 4, seed)
        assert set(chosen[:2]) == {1, 3}
        assert chosen[2:] == [0, 2]


def test_every_example_of_a_group_is_equally_likely() -> None:
    # 2 of 4 and 2 of 8: half of 1,000 draws and a quarter, deviations 15.8 and 13.7.
    groups_N = torch.tensor([0, 1, 1] * 4)
    counts_N = torch.zeros(12)
    for seed in range(1000):
        generator = torch.Generator().manual_seed(seed)
        counts_N[draw_from_groups(groups_N, (2, 2, 0), generator=generator)] += 1
    assert ((counts_N[groups_N == 0] - 500).abs() < 80).all()
    assert ((counts_N[groups_N == 1] - 250).abs() < 70).all()


def one_seat_at_a_time(counts: Sequence[int], budget: int) -> tuple[int, ...]:
    """The next seat goes to the class that has least, of those the largest, the lowest label."""
    quotas = [0] * len(counts)
    for _ in range(budget):
        free = [label for label, count in enumerate(counts) if quotas[label] < count]
        label = min(free, key=lambda label: (quotas[label], -counts[label], label))
        quotas[label] += 1
    return tuple(quotas)


@given(st.data())
def test_equals_sharing_one_seat_at_a_time(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=6))
    budget = data.draw(st.integers(0, sum(counts)))
    quotas = class_quotas(counts, budget)
    assert quotas == one_seat_at_a_time(counts, budget)
    assert sum(quotas) == budget
    assert all(quota <= count for quota, count in zip(quotas, counts, strict=True))
    present = [quota for quota, count in zip(quotas, counts, strict=True) if count]
    assert budget < len(present) or all(present)


@pytest.mark.parametrize("budget", [-1, 6])
def test_a_budget_that_the_classes_cannot_give_is_refused(budget: int) -> None:
    with pytest.raises(BudgetError, match=rf"budget {budget} .* 5 examples.*Choose one in 0\.\.5"):
        class_quotas([2, 3], budget)


@pytest.mark.parametrize(
    ("counts", "budget", "expected"),
    [
        ([10, 20, 30], 6, (1, 2, 3)),
        ([10, 20, 30], 7, (1, 2, 4)),  # 1.17, 2.33, 3.5
        ([1, 1, 1], 2, (1, 1, 0)),  # all alike: the lowest groups
        ([0, 4], 4, (0, 4)),
        ([3, 4, 5], 12, (3, 4, 5)),
        ([3, 4, 5], 0, (0, 0, 0)),
        ([], 0, ()),
    ],
)
def test_proportions_by_hand(counts: list[int], budget: int, expected: tuple[int, ...]) -> None:
    assert proportional_quotas(counts, budget) == expected


@pytest.mark.parametrize(
    ("counts", "wrong", "budget", "expected"),
    [
        ([100, 20], [0.0, 0.0], 40, (100, 20)),
        ([100, 20], [0.25, 0.75], 40, (75, 5)),  # what is wrong does not count
        ([100, 20], [0.25, 0.75], 80, (75, 5)),
        ([100, 20], [0.25, 0.75], 100, (88, 13)),  # half of it does: 87.5 and 12.5
        ([100, 20], [0.25, 0.75], 120, (100, 20)),
        ([0, 4], [0.5, 0.5], 1, (0, 2)),
    ],
)
def test_wrong_labels_have_no_say_in_quotas_unless_they_are_needed(
    counts: list[int], wrong: list[float], budget: int, expected: tuple[int, ...]
) -> None:
    assert worth_counting(counts, wrong, budget) == expected
