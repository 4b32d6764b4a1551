"""What holds for every strategy, and how the service applies them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipt.common.errors import BudgetError, SignalsError
from lipt.coordinator.selection.quotas import class_quotas
from lipt.coordinator.selection.registry import STRATEGIES, find_strategy
from lipt.coordinator.selection.select import select
from lipt.coordinator.selection.selection import Selection
from lipt.coordinator.selection.strategy import NOTHING, Balance, Strategy
from lipt.coordinator.signals.dynamics import Dynamics
from lipt.coordinator.signals.signals import Signals, labels_only

# Every strategy with every balance; for grand both kinds of norm, for el2n both of models.
VARIANTS = {"grand": [{}, {"parameters": "all"}], "el2n": [{}, {"models": "learners"}]}
CASES = [
    pytest.param(strategy, balanced, options, id=f"{name}-{balanced}-{'-'.join(options.values())}")
    for name, strategy in STRATEGIES.items()
    for balanced in (False, True)
    if strategy.balance is (Balance.ALWAYS if balanced else Balance.NEVER)
    or strategy.balance is Balance.BY_DEFAULT
    for options in VARIANTS.get(name, [{}])
]
cases = pytest.mark.parametrize(("strategy", "balanced", "options"), CASES)


def make_signals(labels: list[int], seed: int = 0) -> Signals:
    generator = torch.Generator().manual_seed(seed)
    num_examples, num_classes = len(labels), max(labels) + 1
    labels_N = torch.tensor(labels)
    errors_NC = torch.randn(num_examples, num_classes, generator=generator).softmax(dim=-1)
    errors_NC[torch.arange(num_examples), labels_N] -= 1
    signals = Signals(
        errors_NC=errors_NC,
        features_ND=torch.randn(num_examples, 5, generator=generator),
        labels_N=labels_N,
        gradient_norms_N=torch.rand(num_examples, generator=generator),
        dynamics=Dynamics(
            probabilities_NLT=torch.rand(num_examples, 2, 3, generator=generator),
            margins_NLT=torch.randn(num_examples, 2, 3, generator=generator),
            error_norms_NL=torch.rand(num_examples, 2, generator=generator),
            disagreement_N=torch.rand(num_examples, generator=generator),
        ),
        paired_features_NP=torch.randn(num_examples, 5, generator=generator),
    )
    return replace(signals, validation=signals)


def choose(
    strategy: Strategy,
    signals: Signals,
    budget: int,
    *,
    balanced: bool,
    options: dict[str, str],
    seed: int = 0,
) -> Selection:
    return select(
        strategy,
        signals,
        budget,
        balanced=balanced,
        seed=seed,
        options=strategy.parse_options(options),
    )


@cases
@settings(deadline=None)
@given(data=st.data())
def test_exactly_the_budget_of_distinct_ids_ascending(
    strategy: Strategy, balanced: bool, options: dict[str, str], data: st.DataObject
) -> None:
    labels = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=40))
    budget = data.draw(st.integers(1, len(labels)))
    signals = make_signals(labels)
    chosen = choose(strategy, signals, budget, balanced=balanced, options=options)
    indices = chosen.indices_K.tolist()
    assert indices == sorted(set(indices))
    assert len(indices) == len(chosen.weights_K) <= budget
    # Only a pursuit can have nothing left to gain; it says so and does not pad.
    assert bool(chosen.stopped_early) == (len(indices) < budget)
    assert not chosen.stopped_early or strategy.name == "gradmatch"
    assert set(indices) <= set(range(len(labels)))
    assert chosen.indices_K.dtype == torch.int64
    assert chosen.weights_K.dtype == torch.float32
    if balanced and not chosen.stopped_early:
        counts = torch.tensor(labels).bincount().tolist()
        found = signals.labels_N[chosen.indices_K].bincount(minlength=len(counts)).tolist()
        assert tuple(found) == class_quotas(counts, budget)


@cases
@pytest.mark.parametrize("labels", [[0] * 7, [3] * 7, [0], [0, 5]])
def test_the_whole_set_and_a_single_example(
    strategy: Strategy, balanced: bool, options: dict[str, str], labels: list[int]
) -> None:
    signals = make_signals(labels)
    for budget in (1, len(labels)):
        chosen = choose(strategy, signals, budget, balanced=balanced, options=options)
        assert len(chosen.indices_K) == budget or chosen.stopped_early
    assert chosen.stopped_early or chosen.indices_K.tolist() == list(range(len(labels)))


@cases
def test_repeats_exactly(strategy: Strategy, balanced: bool, options: dict[str, str]) -> None:
    signals = make_signals([0, 1, 2] * 20)
    first, again = (
        choose(strategy, signals, 17, balanced=balanced, options=options) for _ in range(2)
    )
    assert torch.equal(first.indices_K, again.indices_K)
    assert torch.equal(first.weights_K, again.weights_K)


@pytest.mark.parametrize("name", ["el2n", "grand"])
@pytest.mark.parametrize("balanced", [False, True])
def test_order_of_the_data_does_not_matter(name: str, *, balanced: bool) -> None:
    signals = make_signals([0, 1, 2, 2] * 25)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(5))
    strategy = find_strategy(name)
    straight = choose(strategy, signals, 23, balanced=balanced, options={})
    shuffled = choose(strategy, signals.take(order), 23, balanced=balanced, options={})
    assert order[shuffled.indices_K].sort().values.tolist() == straight.indices_K.tolist()


@pytest.mark.parametrize("name", ["el2n", "grand"])
def test_balanced_keeps_the_highest_scores_of_each_class(name: str) -> None:
    signals = make_signals([0, 1, 1, 1] * 10)
    strategy = find_strategy(name)
    chosen = choose(strategy, signals, 12, balanced=True, options={})
    expected: list[int] = []
    for label in (0, 1):
        rows = torch.nonzero(signals.labels_N == label).flatten()
        part = strategy.function(signals.take(rows), 6)
        expected += rows[part.indices_K].tolist()
    assert chosen.indices_K.tolist() == sorted(expected)


def test_equal_scores_keep_the_lowest_ids_of_each_class() -> None:
    signals = Signals(
        errors_NC=torch.ones(9, 3), features_ND=torch.ones(9, 2), labels_N=torch.arange(9) % 3
    )
    strategy = find_strategy("el2n")
    for budget, expected in ((6, [0, 1, 2, 3, 4, 5]), (4, [0, 1, 2, 3])):
        chosen = choose(strategy, signals, budget, balanced=True, options={})
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
            options={},
            seed=seed,
        ).indices_K.tolist()
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_classes_draw_independently() -> None:
    strategy = find_strategy("uniform_per_class")
    signals = labels_only(torch.arange(100) // 50)
    chosen = choose(strategy, signals, 20, balanced=True, options={}).indices_K
    assert (chosen[:10] + 50).tolist() != chosen[10:].tolist()


def test_weights_stay_with_their_indices() -> None:
    def backwards(signals: Signals, budget: int) -> Selection:
        rows = torch.arange(len(signals)).flip(0)[:budget]
        return Selection(rows, signals.features_ND[rows, 0])

    signals = Signals(torch.zeros(6, 2), torch.arange(6.0)[:, None], torch.tensor([0, 1] * 3))
    strategy = Strategy(
        function=backwards,
        summary="",
        paper="",
        cost="N",
        balance=Balance.BY_DEFAULT,
        returns_weights=True,
    )
    for balanced in (False, True):
        chosen = choose(strategy, signals, 4, balanced=balanced, options={})
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
        select(strategy, labels, 3, balanced=False, seed=0, options={})


@cases
@pytest.mark.parametrize("budget", [0, -1, 7])
def test_a_budget_outside_the_set_is_refused(
    strategy: Strategy, balanced: bool, options: dict[str, str], budget: int
) -> None:
    with pytest.raises(BudgetError, match=rf"budget {budget} is outside 1\.\.6"):
        choose(strategy, make_signals([0, 1] * 3), budget, balanced=balanced, options=options)


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


def test_signals_that_are_not_finite_name_their_rows() -> None:
    signals = make_signals([0] * 5)
    assert signals.gradient_norms_N is not None
    bad = Signals(
        signals.errors_NC,
        spoiled(signals.features_ND),
        signals.labels_N,
        gradient_norms_N=spoiled(signals.gradient_norms_N),
    )
    with pytest.raises(SignalsError, match=r"features are not finite for 1 of 5.*ids 2\."):
        choose(find_strategy("el2n"), bad, 2, balanced=False, options={})
    with pytest.raises(SignalsError, match=r"gradient norms are not finite .* ids 2\."):
        choose(find_strategy("grand"), bad, 2, balanced=True, options={"parameters": "all"})
    # What a strategy does not look at cannot spoil it.
    choose(find_strategy("uniform"), bad, 2, balanced=False, options={})
