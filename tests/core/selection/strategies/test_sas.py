from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from lipt.core.selection.registry import find_strategy
from lipt.core.selection.select import select
from lipt.core.selection.strategies.sas import sas
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import signals_of


def random_signals(num_examples: int, num_classes: int = 1, seed: int = 0) -> Signals:
    generator = torch.Generator().manual_seed(seed)
    labels = [row % num_classes for row in range(num_examples)]
    means_CD = torch.randn(num_classes, 8, generator=generator)
    features_ND = means_CD[labels] + torch.randn(num_examples, 8, generator=generator)
    return signals_of(features_ND, labels=labels)


def objective(signals: Signals, chosen: list[int], latent_N: Tensor | None = None) -> float:
    """The sum over pairs of one latent class, one chosen and one not, of their cosines."""
    unit_ND = functional.normalize(signals.features_ND.double(), dim=1)
    labels_N = signals.labels_N if latent_N is None else latent_N
    cosines_NN = (unit_ND @ unit_ND.T) * (labels_N[:, None] == labels_N[None])
    inside_N = torch.zeros(len(signals), dtype=torch.bool)
    inside_N[chosen] = True
    return float(cosines_NN[inside_N][:, ~inside_N].sum())


def test_hand_computed_picks() -> None:
    x, y = [1.0, 0.0], [0.0, 1.0]
    signals = signals_of(torch.tensor([y, x, x, y, x]))
    # Gains: x 2, y 1 -> 1. Then x 1 - 1 = 0, y 1 -> 0. Then x 0, y -1 -> 2. Then x -2, y -1.
    assert sas(signals, 5, seed=0).indices_K.tolist() == [1, 0, 2, 3, 4]
    assert sas(signals, 2, seed=0).weights_K.tolist() == [1.0, 1.0]


def test_better_than_row_sums_and_than_random() -> None:
    # Two tight bundles and stray directions: by row sums all picks come from the larger one.
    generator = torch.Generator().manual_seed(0)
    features_ND = 0.1 * torch.randn(100, 16, generator=generator)
    features_ND[:40, 0] += 1
    features_ND[40:70, 1] += 1
    signals = signals_of(features_ND)
    found = objective(signals, sas(signals, 30, seed=0).indices_K.tolist())
    unit_ND = functional.normalize(features_ND, dim=1)
    by_row_sums = (unit_ND @ unit_ND.sum(dim=0)).argsort(descending=True)[:30]
    assert found > 1.1 * objective(signals, by_row_sums.tolist())
    for _ in range(20):
        drawn = torch.randperm(100, generator=generator)[:30]
        assert found > 1.1 * objective(signals, drawn.tolist())


def test_labels_as_latent_classes_are_the_same_balanced_or_not() -> None:
    signals = random_signals(90, num_classes=4)
    strategy = find_strategy("sas")
    options = strategy.parse_options({})
    for budget in (3, 30, 89):
        whole, by_class = (
            select(strategy, signals, budget, balanced=balanced, seed=0, options=options)
            for balanced in (False, True)
        )
        assert torch.equal(whole.indices_K, by_class.indices_K)


def test_clusters_are_latent_classes_where_asked_for() -> None:
    # Two directions, 30 and 10 examples, labelled across them.
    generator = torch.Generator().manual_seed(3)
    latent_N = torch.tensor([0] * 30 + [1] * 10)
    features_ND = torch.eye(3)[latent_N] + 0.05 * torch.randn(40, 3, generator=generator)
    signals = signals_of(features_ND, labels=[row % 5 for row in range(40)])
    chosen = sas(signals, 12, num_clusters=2, seed=0).indices_K
    assert latent_N[chosen].bincount().tolist() == [6, 6]
    without_labels = signals_of(features_ND, labels=latent_N.tolist())
    assert set(sas(without_labels, 12, seed=0).indices_K.tolist()) == set(chosen.tolist())
