"""The regularizers against their definitions, and what they do to GLISTER."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lipt.core.selection.strategies import glister_regularizers
from lipt.core.selection.strategies.glister import glister
from lipt.core.selection.strategies.glister_regularizers import (
    ClassCoverage,
    RandomFunction,
    RegularizerName,
)
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import full_signals, signals_of


def draw(num_examples: int, num_classes: int = 3) -> Signals:
    signals = full_signals([row % num_classes for row in range(num_examples)], seed=num_examples)
    assert signals.validation is not None
    return replace(signals, validation=signals.validation.take(torch.arange(9)))


def coverage(signals: Signals, chosen: Tensor) -> float:
    features_ND = signals.features_ND.double()
    cosines_NK = torch.cosine_similarity(features_ND[:, None], features_ND[None, chosen], dim=-1)
    same_NK = signals.labels_N[:, None] == signals.labels_N[chosen]
    return float(((1 + cosines_NK) / 2 * same_NK).amax(dim=1).mean())


def test_coverage_by_hand() -> None:
    # Class 0 has directions x, y, -x: similarities 1, 1/2, 0. Class 1 has x alone.
    features_ND = torch.tensor([[2.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [3.0, 0.0]])
    signals = signals_of(features_ND, labels=[0, 0, 0, 1])
    regularizer = ClassCoverage(signals)
    everyone = torch.arange(4)
    # 1 + 1/2 + 0, 1/2 + 1 + 1/2, 0 + 1/2 + 1, and 1; of four.
    assert regularizer.gains(everyone).tolist() == [0.375, 0.5, 0.375, 0.25]
    regularizer.add(torch.tensor([1]))
    assert regularizer.gains(everyone).tolist() == [0.125, 0.0, 0.125, 0.25]


@pytest.mark.parametrize("held_bytes", [0, 2**28])
def test_coverage_gains_are_differences_of_coverage(
    monkeypatch: pytest.MonkeyPatch, held_bytes: int
) -> None:
    monkeypatch.setattr(glister_regularizers, "_HELD_BYTES", held_bytes)
    signals = draw(31)
    regularizer = ClassCoverage(signals)
    chosen = torch.tensor([4, 20])
    regularizer.add(chosen)
    candidates = torch.tensor([0, 7, 4, 30])
    expected = [
        coverage(signals, torch.cat([chosen, candidate[None]])) - coverage(signals, chosen)
        for candidate in candidates
    ]
    assert regularizer.gains(candidates).tolist() == pytest.approx(expected, abs=1e-6)


def test_the_random_function_is_the_seeds() -> None:
    everyone = torch.arange(5)
    drawn = [RandomFunction(5, seed, torch.device("cpu")).gains(everyone) for seed in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert bool((drawn[0] >= 0).all() & (drawn[0] < 1).all())


@pytest.mark.parametrize("regularizer", ["facility_location", "random"])
def test_no_weight_is_no_regularizer(regularizer: RegularizerName) -> None:
    signals = draw(60)
    plain = glister(signals, 12, seed=0).indices_K
    chosen = glister(signals, 12, regularizer=regularizer, regularization=0.0, seed=0).indices_K
    assert torch.equal(chosen, plain)


@pytest.mark.parametrize("solver", ["rounds", "exact"])
def test_a_regularizer_of_all_weight_decides(solver: str) -> None:
    signals = draw(60)
    options = {"solver": solver, "regularization": 1e9, "rounds": 12, "seed": 0}
    covering = glister(signals, 12, regularizer="facility_location", **options)  # type: ignore[arg-type]
    greedy: list[int] = []
    for _ in range(12):
        left = [i for i in range(60) if i not in greedy]
        greedy.append(max(left, key=lambda i: coverage(signals, torch.tensor([*greedy, i]))))
    assert covering.indices_K.tolist() == greedy

    drawn_N = RandomFunction(60, 0, torch.device("cpu")).gains(torch.arange(60))
    random = glister(signals, 12, regularizer="random", **options)  # type: ignore[arg-type]
    assert random.indices_K.tolist() == drawn_N.argsort(descending=True)[:12].tolist()


def test_some_weight_covers_more() -> None:
    signals = draw(90)
    plain = glister(signals, 9, seed=0).indices_K
    chosen = glister(
        signals, 9, regularizer="facility_location", regularization=5.0, seed=0
    ).indices_K
    assert coverage(signals, chosen) > coverage(signals, plain)
