from __future__ import annotations

from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipt.core.selection.registry import find_strategy
from lipt.core.selection.select import select
from lipt.core.selection.strategies.stratified import default_cells, stratified
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import signals_of
from tests.properties import at_most

Shares = Literal["equal", "proportional"]


def bundled(*sizes: int) -> tuple[Signals, Tensor]:
    """One bundle of directions after another, of these sizes, and who is in which."""
    kinds_N = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    generator = torch.Generator().manual_seed(0)
    features_ND = torch.eye(len(sizes))[kinds_N]
    features_ND = features_ND + 0.05 * torch.randn(features_ND.shape, generator=generator)
    return signals_of(features_ND), kinds_N


@pytest.mark.parametrize(
    ("shares", "budget", "expected"),
    [
        ("equal", 12, [4, 4, 4]),
        ("equal", 30, [6, 12, 12]),  # what the small one lacks is shared
        ("proportional", 20, [2, 8, 10]),  # 60 in all: one of three
        ("proportional", 7, [1, 3, 3]),  # 0.7, 2.8, 3.5: two left, for remainders .8 and .7
    ],
)
def test_shares_by_hand(shares: Shares, budget: int, expected: list[int]) -> None:
    signals, kinds_N = bundled(6, 24, 30)
    for seed in range(5):
        chosen = stratified(signals, budget, num_cells=3, shares=shares, seed=seed).indices_K
        assert kinds_N[chosen].bincount().tolist() == expected


def test_every_example_of_a_cell_is_as_likely() -> None:
    # 2 of 4 and 2 of 8: half of 1,000 draws and a quarter, deviations 15.8 and 13.7.
    signals, _ = bundled(4, 8)
    counts_N = torch.zeros(12)
    for seed in range(1000):
        counts_N[stratified(signals, 4, num_cells=2, seed=seed).indices_K] += 1
    assert ((counts_N[:4] - 500).abs() < 80).all()
    assert ((counts_N[4:] - 250).abs() < 70).all()


def test_fewer_miss_a_kind_than_at_random() -> None:
    signals, kinds_N = bundled(*([8] * 25))
    for seed in range(5):
        drawn = torch.randperm(200, generator=torch.Generator().manual_seed(seed))[:25]
        chosen = stratified(signals, 25, num_cells=25, seed=seed).indices_K
        assert len(kinds_N[chosen].unique()) > len(kinds_N[drawn].unique())


@pytest.mark.parametrize(
    ("budget", "expected"), [(1, 1), (2, 1), (3, 2), (500, 250), (512, 256), (10**6, 256)]
)
def test_cells_grow_with_the_budget_to_a_limit(budget: int, expected: int) -> None:
    assert default_cells(budget) == expected


def test_labels_are_not_looked_at() -> None:
    signals, _ = bundled(20, 20)
    labelled = signals_of(signals.features_ND, labels=[row % 7 for row in range(40)])
    first, second = (stratified(given, 11, seed=2).indices_K for given in (signals, labelled))
    assert torch.equal(first, second)


def test_cells_of_each_class_where_balanced() -> None:
    # Two kinds in each of two classes: each kind of each class gives a quarter.
    signals, kinds_N = bundled(30, 10, 20, 20)
    labels_N = kinds_N // 2
    strategy = find_strategy("stratified")
    options = strategy.parse_options({"num_cells": "2"})
    signals = signals_of(signals.features_ND, labels=labels_N)
    chosen = select(strategy, signals, 16, balanced=True, seed=0, options=options).indices_K
    assert kinds_N[chosen].bincount().tolist() == [4, 4, 4, 4]


@settings(max_examples=at_most(40))
@given(data=st.data())
def test_exactly_the_budget_of_distinct_ids(data: st.DataObject) -> None:
    # Rows of zeros, ones and one direction: nothing but duplicates.
    kinds = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=30))
    budget = data.draw(st.integers(1, len(kinds)))
    num_cells = data.draw(st.integers(0, 40))
    shares: Shares = data.draw(st.sampled_from(["equal", "proportional"]))
    signals = signals_of(torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 2.0]])[kinds])
    chosen = stratified(signals, budget, num_cells=num_cells, shares=shares, seed=0).indices_K
    assert len(chosen) == budget == len(chosen.unique())
