"""Random sets: every example once before any comes again, and every class in proportion."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from lipt.core.selection.strategies.crest_sets import RandomSets, mixed_evenly


def sets_of(labels: list[int], set_size: int, seed: int = 0) -> RandomSets:
    labels_N = torch.tensor(labels)
    generator = torch.Generator().manual_seed(seed)
    return RandomSets(torch.arange(len(labels)), labels_N, set_size, generator)


def test_mixing_by_hand() -> None:
    # Of class 0 at 1/8, 3/8, 5/8, 7/8 of the way, of class 1 at 1/4 and 3/4.
    assert mixed_evenly(torch.tensor([0, 0, 0, 0, 1, 1])).tolist() == [0, 4, 1, 2, 5, 3]
    # Those that meet, and those of one class, stay in order.
    assert mixed_evenly(torch.tensor([2, 0, 2, 0])).tolist() == [0, 1, 2, 3]
    assert mixed_evenly(torch.tensor([], dtype=torch.int64)).tolist() == []


@given(labels=st.lists(st.integers(0, 3), min_size=1, max_size=60), data=st.data())
def test_any_run_has_every_class_in_proportion(labels: list[int], data: st.DataObject) -> None:
    labels_n = torch.tensor(labels)
    order_n = mixed_evenly(labels_n)
    assert sorted(order_n.tolist()) == list(range(len(labels)))
    counts_C = labels_n.bincount()
    size = data.draw(st.integers(1, len(labels)))
    found_C = labels_n[order_n[:size]].bincount(minlength=len(counts_C))
    # From the start, whatever the other classes are: half an example of each may be ahead.
    expected_C = counts_C * (size / len(labels))
    present = int((counts_C > 0).sum())
    assert ((found_C - expected_C).abs() <= present / 2 + 1e-9).all()


def test_random_sets_show_every_example_before_any_comes_again() -> None:
    sets = sets_of([0] * 10, 4)
    first, second = sets.draw(), sets.draw()
    assert len(set(first.tolist()) | set(second.tolist())) == 8
    sets.put_back(first, without=torch.tensor([0]))
    sets.put_back(second, without=torch.tensor([1, 2]))
    third = sets.draw()
    assert set(range(10)) - set(first.tolist()) - set(second.tolist()) <= set(third.tolist())
    assert int(first[0]) not in third.tolist()
    sets.put_back(third, without=torch.tensor([], dtype=torch.int64))
    everything = [*sets.draw().tolist(), *sets.draw().tolist()]
    assert sorted(everything) == sorted({*range(10)} - {int(first[0]), *second[1:3].tolist()})


def test_a_rare_class_is_in_every_set() -> None:
    sets = sets_of([0] * 90 + [1] * 10, 10)
    drawn = [sets.draw().tolist() for _ in range(10)]
    assert [sum(row >= 90 for row in ids) for ids in drawn] == [1] * 10
    assert sorted(row for ids in drawn for row in ids) == list(range(100))
    assert drawn != [sets_of([0] * 90 + [1] * 10, 10, seed=1).draw().tolist() for _ in range(10)]
