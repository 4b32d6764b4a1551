"""How the service applies strategies: classes, seeds, weights, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from lipt.common.errors import SignalsError
from lipt.core.selection.registry import find_strategy
from lipt.core.selection.select import select
from lipt.core.selection.selection import Selection
from lipt.core.selection.strategy import NOTHING, Balance, Strategy
from lipt.core.signals.signals import Signals, labels_only
from tests.core.selection.builders import full_signals, signals_of


def choose(
    strategy: Strategy,
    signals: Signals,
    budget: int,
    *,
    balanced: bool,
    options: Mapping[str, str] | None = None,
    seed: int = 0,
) -> Selection:
    parsed = strategy.parse_options(options or {})
    return select(strategy, signals, budget, balanced=balanced, seed=seed, options=parsed)


@pytest.mark.parametrize("name", ["el2n", "grand"])
def test_balanced_keeps_the_highest_scores_of_each_class(name: str) -> None:
    signals = full_signals([0, 1, 1, 1] * 10)
    strategy = find_strategy(name)
    chosen = choose(strategy, signals, 12, balanced=True)
    expected: list[int] = []
    for label in (0, 1):
        rows = torch.nonzero(signals.labels_N == label).flatten()
        part = strategy.function(signals.take(rows), 6)
        expected += rows[part.indices_K].tolist()
    assert chosen.indices_K.tolist() == sorted(expected)


def test_equal_scores_keep_the_lowest_ids_of_each_class() -> None:
    signals = signals_of(errors_NC=torch.ones(9, 3), labels=torch.arange(9) % 3)
    strategy = find_strategy("el2n")
    for budget, expected in ((6, [0, 1, 2, 3, 4, 5]), (4, [0, 1, 2, 3])):
        chosen = choose(strategy, signals, budget, balanced=True)
        assert chosen.indices_K.tolist() == expected


@pytest.mark.parametrize("name", ["uniform", "uniform_per_class"])
def test_random_strategies_need_labels_alone_and_follow_the_seed(name: str) -> None:
    strategy = find_strategy(name)
    signals = labels_only(torch.arange(60) % 3)
    first, again, other = (
        choose(
            strategy,
            signals,
            20,
            balanced=strategy.resolve_balance(None),
            seed=seed,
        ).indices_K.tolist()
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_classes_draw_independently() -> None:
    strategy = find_strategy("uniform_per_class")
    signals = labels_only(torch.arange(100) // 50)
    chosen = choose(strategy, signals, 20, balanced=True).indices_K
    assert (chosen[:10] + 50).tolist() != chosen[10:].tolist()


def test_weights_stay_with_their_indices() -> None:
    def backwards(signals: Signals, budget: int) -> Selection:
        rows = torch.arange(len(signals)).flip(0)[:budget]
        return Selection(rows, signals.features_ND[rows, 0])

    signals = signals_of(torch.arange(6.0)[:, None], labels=[0, 1] * 3)
    strategy = Strategy(
        function=backwards,
        summary="",
        paper="",
        cost="N",
        balance=Balance.BY_DEFAULT,
        returns_weights=True,
    )
    for balanced in (False, True):
        chosen = choose(strategy, signals, 4, balanced=balanced)
        assert chosen.indices_K.tolist() == [2, 3, 4, 5]
        assert chosen.weights_K.tolist() == [2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("rows", [[0, 0, 1], [0, 1], [0, 1, 9], [-1, 0, 1]])
def test_a_strategy_that_breaks_its_promise_is_found_out(rows: list[int]) -> None:
    def broken(signals: Signals, budget: int) -> Selection:
        return Selection(torch.tensor(rows), torch.ones(len(rows)))

    strategy = Strategy(
        function=broken,
        summary="",
        paper="",
        cost="N",
        balance=Balance.NEVER,
        returns_weights=False,
        needs=NOTHING,
    )
    labels = labels_only(torch.zeros(5, dtype=torch.int64))
    with pytest.raises(RuntimeError, match=r"'broken' answered with . indices.*budget of 3"):
        choose(strategy, labels, 3, balanced=False)


@pytest.mark.parametrize(
    ("name", "options", "missing"),
    [
        ("el2n", {}, "errors"),
        ("grand", {}, "errors"),
        ("grand", {"parameters": "all"}, "gradient norms"),
    ],
)
def test_missing_signals_are_named(name: str, options: dict[str, str], missing: str) -> None:
    with pytest.raises(SignalsError, match=rf"'{name}' needs {missing}. They were not computed"):
        choose(
            find_strategy(name),
            labels_only(torch.zeros(3, dtype=torch.int64)),
            1,
            balanced=False,
            options=options,
        )


def spoiled(values: Tensor) -> Tensor:
    values = values.clone()
    values[2] = float("nan")
    return values
