from __future__ import annotations

from itertools import combinations

import pytest
import torch
from torch import Tensor

from lipt.coordinator.selection.strategies.crest import (
    RandomSets,
    batch_coreset,
    batch_sizes,
    crest,
    unlearned,
)
from lipt.coordinator.signals.signals import Signals
from tests.coordinator.selection.builders import (
    of_probabilities,
    of_right,
    random_subsets,
    signals_of,
)


def random_signals(num_examples: int, num_classes: int = 4) -> Signals:
    generator = torch.Generator().manual_seed(0)
    logits_NC = torch.randn(num_examples, num_classes, generator=generator) * 2
    labels_N = torch.randint(0, num_classes, (num_examples,), generator=generator)
    return of_probabilities(logits_NC.softmax(dim=-1), labels_N)


def test_cluster_centres_and_sizes_by_hand() -> None:
    # The first centre is 3: its distances sum to 301, those of 2 to 302, of 100 to 398. The
    # second is 101: with it 3 + 2 + 1 + 1 + 2 = 9 are left, with 100 one more.
    errors_RC = torch.tensor([[0.0], [1.0], [2.0], [3.0], [100.0], [101.0], [103.0]])
    chosen_B, sizes_B = batch_coreset(errors_RC, 2)
    assert (chosen_B.tolist(), sizes_B.tolist()) == ([3, 5], [4, 3])


def test_a_mini_batch_is_nearly_the_best_that_there_is() -> None:
    errors_RC = random_signals(12).errors_NC
    distances_RR = torch.cdist(errors_RC, errors_RC)

    def cost(chosen: tuple[int, ...]) -> float:
        return float(distances_RR[list(chosen)].min(dim=0).values.sum())

    costs = sorted(cost(chosen) for chosen in combinations(range(12), 3))
    chosen_B, sizes_B = batch_coreset(errors_RC, 3)
    found = cost(tuple(chosen_B.tolist()))
    # Greedy facility location reaches 1 - 1/e of the best gain over no choice at all.
    none = float(2 * torch.cdist(errors_RC[:1], errors_RC).max()) * 12
    assert none - found >= (1 - 1 / torch.e) * (none - costs[0])
    assert found <= costs[len(costs) // 20]
    nearest_R = distances_RR[chosen_B].argmin(dim=0)
    assert sizes_B.tolist() == nearest_R.bincount(minlength=3).tolist()


def test_equal_examples_belong_to_themselves() -> None:
    chosen_B, sizes_B = batch_coreset(torch.ones(6, 3), 4)
    assert len(set(chosen_B.tolist())) == 4
    assert sorted(sizes_B.tolist()) == [1, 1, 1, 3]


def test_learned_examples_are_left_out() -> None:
    # Losses -ln p: 0.01, 0.69, 0.05, 1.20, 0.11.
    own = [0.99, 0.5, 0.95, 0.3, 0.9 - 0.004]
    signals = of_right(*own)
    assert unlearned(signals, 1, 0.1).tolist() == [1, 3, 4]
    chosen = crest(signals, 2, seed=0)
    assert set(chosen.indices_K.tolist()) <= {1, 3, 4}
    # They stand for the three that there are, not for the learned ones.
    assert float(chosen.weights_K.sum()) == pytest.approx(3.0)


def test_learned_examples_of_the_highest_loss_fill_the_budget() -> None:
    own = [0.99, 0.5, 0.95, 0.3, 0.97]
    signals = of_right(*own)
    chosen = crest(signals, 4, seed=0)
    assert chosen.indices_K.tolist() == [1, 2, 3, 4]
    assert chosen.weights_K.tolist() == [1.0] * 4
    assert crest(signals, 1, seed=0).indices_K.tolist() in ([1], [3])


def test_confident_losses_keep_their_digits() -> None:
    # p - 1 of -1e-9 and -2e-9: losses that 1 + e in float32 would make 0 and 0.
    errors_NC = torch.tensor([[-1e-9, 1e-9], [-2e-9, 2e-9]])
    signals = signals_of(errors_NC=errors_NC)
    assert unlearned(signals, 1, 10.0).tolist() == [1]
    assert unlearned(signals, 1, 1.5e-9).tolist() == [1]


@pytest.mark.parametrize("budget", [1, 7, 128, 129, 300, 600])
def test_distinct_ids_and_weights_that_sum_to_the_pool(budget: int) -> None:
    signals = random_signals(600)
    pool = unlearned(signals, budget, 0.1).tolist()
    chosen = crest(signals, budget, seed=3)
    assert len(set(chosen.indices_K.tolist())) == budget
    assert set(chosen.indices_K.tolist()) <= set(pool)
    assert float(chosen.weights_K.double().sum()) == pytest.approx(len(pool), rel=1e-5)
    assert bool((chosen.weights_K > 0).all())


def test_a_small_last_mini_batch_does_not_weigh_more() -> None:
    # Its cluster sizes alone would: 2 examples that stand for a whole random set.
    signals = random_signals(600)
    weights_K = crest(signals, 130, batch_size=128, learned_loss=0.0, seed=0).weights_K
    full, last = weights_K[:128].mean(), weights_K[128:].mean()
    assert float(last) == pytest.approx(float(full), rel=1e-5)


def test_mini_batches_represent_the_gradient_better_than_random_ones() -> None:
    signals = random_signals(2000, num_classes=10)
    options = {"batch_size": 32, "random_fraction": 0.1, "learned_loss": 0.0}
    chosen = crest(signals, 32, seed=0, **options)
    mean_C = signals.errors_NC.mean(dim=0)

    def distance(errors_KC: Tensor, weights_K: Tensor) -> float:
        return float((weights_K @ errors_KC / weights_K.sum() - mean_C).norm())

    found = distance(signals.errors_NC[chosen.indices_K], chosen.weights_K)
    draws = random_subsets(2000, 32)
    random = [distance(signals.errors_NC[drawn], torch.ones(32)) for drawn in draws]
    assert found < sum(random) / len(random)


def test_random_sets_show_every_example_before_any_comes_again() -> None:
    sets = RandomSets(torch.arange(10), 4, seed=0)
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


def test_mini_batches_fill_the_budget() -> None:
    assert list(batch_sizes(10, 4)) == [4, 4, 2]
    assert list(batch_sizes(3, 4)) == [3]
