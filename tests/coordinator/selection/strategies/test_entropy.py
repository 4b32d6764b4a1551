from __future__ import annotations

import math

import pytest
import torch

from lipt.coordinator.selection.registry import find_strategy
from lipt.coordinator.selection.select import select
from lipt.coordinator.selection.strategies.entropy import entropies, entropy
from lipt.coordinator.signals.signals import Signals


def of_probabilities(rows: list[list[float]], labels: list[int]) -> Signals:
    errors_NC, labels_N = torch.tensor(rows), torch.tensor(labels)
    errors_NC[torch.arange(len(labels)), labels_N] -= 1
    return Signals(errors_NC, torch.ones(len(labels), 1), labels_N)


def random_signals(num_examples: int, num_classes: int) -> Signals:
    generator = torch.Generator().manual_seed(1)
    probabilities_NC = (3 * torch.randn(num_examples, num_classes, generator=generator)).softmax(-1)
    labels_N = torch.arange(num_examples) % num_classes
    return of_probabilities(probabilities_NC.tolist(), labels_N.tolist())


def test_keeps_the_most_spread_probabilities_first() -> None:
    # In bits: 0, 1, 1.5 and log2 3; whatever the label is.
    rows = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]]
    given = of_probabilities(rows, [0, 2, 1, 0])
    bits = (entropies(given) / math.log(2)).tolist()
    assert bits == pytest.approx([0.0, 1.0, 1.5, math.log2(3)], abs=1e-6)
    chosen = entropy(given, 3)
    assert chosen.indices_K.tolist() == [3, 2, 1]
    assert chosen.weights_K.tolist() == [1.0] * 3


def test_equals_the_sum_written_out() -> None:
    given = random_signals(40, 6)
    for row, label, found in zip(
        given.errors_NC.tolist(), given.labels_N.tolist(), entropies(given).tolist(), strict=True
    ):
        row[label] += 1
        assert found == pytest.approx(-sum(p * math.log(p) for p in row), abs=1e-6)


@pytest.mark.parametrize("balanced", [False, True])
def test_what_is_kept_is_less_certain_than_what_is_not(balanced: bool) -> None:
    given = random_signals(300, 10)
    strategy = find_strategy("entropy")
    chosen = select(strategy, given, 30, balanced=balanced, seed=0, options={}).indices_K
    scores_N = entropies(given)
    for label in range(10) if balanced else [None]:
        of_group = given.labels_N == label if balanced else torch.ones(300, dtype=torch.bool)
        kept = torch.zeros(300, dtype=torch.bool)
        kept[chosen] = True
        assert scores_N[kept & of_group].min() >= scores_N[~kept & of_group].max()


def test_one_class_and_one_example_are_certain() -> None:
    single = Signals(torch.zeros(3, 1), torch.ones(3, 1), torch.zeros(3, dtype=torch.int64))
    assert entropies(single).tolist() == [0.0] * 3
    assert entropy(single, 2).indices_K.tolist() == [0, 1]
    assert entropy(of_probabilities([[0.5, 0.5]], [1]), 1).indices_K.tolist() == [0]


def test_half_precision_gives_finite_scores() -> None:
    given = random_signals(100, 4)
    half = Signals(given.errors_NC.half(), given.features_ND.half(), given.labels_N)
    torch.testing.assert_close(entropies(half), entropies(given), rtol=0, atol=5e-3)
    assert len(set(entropy(half, 100).indices_K.tolist())) == 100
