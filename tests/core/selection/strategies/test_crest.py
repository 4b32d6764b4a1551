from typing import Any

import pytest
import torch
from torch import Tensor

from lipt.core.selection.selection import Selection
from lipt.core.selection.strategies import crest as crest_module
from lipt.core.selection.strategies.crest import (
    RandomSets,
    batch_coreset,
    batch_shares,
    crest,
    mixed_evenly,
    own_losses,
    unlearned,
)
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import of_probabilities, of_right


def random_probabilities(num_examples: int, num_classes: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    logits_NC = torch.randn(num_examples, num_classes, generator=generator) * 2
    return logits_NC.softmax(dim=-1)


def choose(signals: Signals, budget: int, *, balanced: bool = False, **options: Any) -> Selection:
    return crest(signals, budget, **{"seed": 0, "balanced": balanced} | options)


def pool_of(signals: Signals, budget: int, learned_loss: float) -> list[int]:
    return unlearned(own_losses(signals), budget, learned_loss).tolist()


def test_cluster_centres_and_sizes_by_hand() -> None:
    # The first centre is 3: its distances sum to 301, those of 2 to 302, of 100 to 398. The
    # second is 101: with it 3 + 2 + 1 + 1 + 2 = 9 are left, with 100 one more.
    errors_RC = torch.tensor([[0.0], [1.0], [2.0], [3.0], [100.0], [101.0], [103.0]])
    chosen_B, sizes_B = batch_coreset(errors_RC, 2)
    assert (chosen_B.tolist(), sizes_B.tolist()) == ([3, 5], [4, 3])


def test_learned_examples_are_left_out() -> None:
    # Losses -ln p: 0.01, 0.69, 0.05, 1.20, 0.11.
    own = [0.99, 0.5, 0.95, 0.3, 0.9 - 0.004]
    signals = of_right(*own)
    assert pool_of(signals, 1, 0.1) == [1, 3, 4]
    chosen = choose(signals, 2)
    assert set(chosen.indices_K.tolist()) <= {1, 3, 4}
    # They stand for the three that there are, not for the learned ones.
    assert float(chosen.weights_K.sum()) == pytest.approx(3.0)


def drawn_sets(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    drawn: list[list[int]] = []

    class Watched(RandomSets):
        def draw(self) -> Tensor:
            set_R = super().draw()
            drawn.append(set_R.tolist())
            return set_R

    monkeypatch.setattr(crest_module, "RandomSets", Watched)
    return drawn


def test_balanced_every_mini_batch_is_of_all_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    labels_N = torch.tensor([0] * 600 + [1] * 300 + [2] * 100)
    signals = of_probabilities(random_probabilities(1000), labels_N)
    drawn = drawn_sets(monkeypatch)
    options = {"batch_size": 30, "random_fraction": 0.1, "learned_loss": 0.0}
    chosen = choose(signals, 90, balanced=True, **options)
    # Three mini-batches of 10 from each class's part, at least 4 times as large.
    assert [labels_N[ids].unique().tolist() for ids in drawn] == [[0], [1], [2]] * 3
    assert [len(ids) for ids in drawn] == [60, 40, 40] * 2 + [60, 40, 40]
    found_K = labels_N[chosen.indices_K]
    for start in range(0, 90, 30):
        assert found_K[start : start + 30].tolist() == [0] * 10 + [1] * 10 + [2] * 10
    # A class's chosen stand for its examples.
    sums = torch.zeros(3).index_add_(0, found_K, chosen.weights_K)
    assert sums.tolist() == pytest.approx([600, 300, 100], rel=1e-5)


def test_mini_batches_fill_the_budget_in_proportion_to_quotas() -> None:
    assert list(batch_shares([10], 4)) == [[4], [4], [2]]
    assert list(batch_shares([3], 4)) == [[3]]
    assert list(batch_shares([], 4)) == []
    assert list(batch_shares([6, 3], 3)) == [[2, 1]] * 3
    shares = list(batch_shares([1, 1, 6], 4))
    assert [sum(numbers) for numbers in shares] == [4, 4]
    assert [sum(numbers) for numbers in zip(*shares, strict=True)] == [1, 1, 6]


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
