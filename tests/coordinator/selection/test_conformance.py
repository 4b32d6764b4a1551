"""What every strategy of the registry promises, whatever it computes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from lipt.common.errors import SignalsError
from lipt.coordinator.selection.options import takes_seed
from lipt.coordinator.selection.quotas import class_quotas
from lipt.coordinator.selection.registry import STRATEGIES
from lipt.coordinator.selection.select import select
from lipt.coordinator.selection.selection import Selection
from lipt.coordinator.selection.strategy import Balance, Need, Strategy
from lipt.coordinator.signals.dynamics import Dynamics
from lipt.coordinator.signals.signals import Signals

MakeSignals = Callable[..., Signals]

CASES = [
    pytest.param(strategy, balanced, id=f"{name}-{'balanced' if balanced else 'all'}")
    for name, strategy in STRATEGIES.items()
    for balanced in (False, True)
    if strategy.balance is not (Balance.NEVER if balanced else Balance.ALWAYS)
]
cases = pytest.mark.parametrize(("strategy", "balanced"), CASES)
every_strategy = pytest.mark.parametrize(
    "strategy", [pytest.param(strategy, id=name) for name, strategy in STRATEGIES.items()]
)

# When nothing is left to gain, these say so instead of padding.
MAY_STOP_EARLY = {"gradmatch"}
# Each chosen example stands for those nearest to it, all together for all.
CLUSTER_WEIGHTS = {"craig", "adacore"}
# Every example alone spans the same volume: the first choice is a tie, which goes to id 0.
FIRST_CHOICE_TIES = {"log_det"}
# Each of its batches has a probe of its own: they define the estimate, not its memory.
BATCHES_OF_AN_ESTIMATE = {"lipt.coordinator.selection.gradients.curvature"}
LABELS = [0, 1, 2, 3, 1, 2, 3, 2, 3, 3] * 8


def choose(strategy: Strategy, signals: Signals, budget: int, *, balanced: bool) -> Selection:
    options = strategy.parse_options({})
    return select(strategy, signals, budget, balanced=balanced, seed=3, options=options)


def require_sound(
    strategy: Strategy, signals: Signals, budget: int, chosen: Selection, *, balanced: bool
) -> None:
    """Distinct ascending ids, the exact budget or a reason, finite weights, equal shares."""
    indices = chosen.indices_K.tolist()
    assert indices == sorted(set(indices))
    assert set(indices) <= set(range(len(signals)))
    assert chosen.weights_K.shape == chosen.indices_K.shape
    assert chosen.weights_K.isfinite().all()
    assert (chosen.weights_K >= 0).all()
    if not strategy.returns_weights:
        assert chosen.weights_K.tolist() == [1.0] * len(indices)
    if chosen.stopped_early:
        assert strategy.name in MAY_STOP_EARLY
        assert len(indices) < budget
        return
    assert len(indices) == budget
    if balanced:
        counts = signals.labels_N.bincount().tolist()
        found = signals.labels_N[chosen.indices_K].bincount(minlength=len(counts)).tolist()
        assert tuple(found) == class_quotas(counts, budget)


@cases
@pytest.mark.parametrize("budget", [1, 3, 16, 79, 80])
def test_exactly_the_budget_of_distinct_ids(
    strategy: Strategy, balanced: bool, budget: int, full_signals: MakeSignals
) -> None:
    # 3 is less than the number of classes; at 79, classes give all they have.
    signals = full_signals(LABELS)
    chosen = choose(strategy, signals, budget, balanced=balanced)
    require_sound(strategy, signals, budget, chosen, balanced=balanced)


@cases
@pytest.mark.parametrize("labels", [[0], [2], [0, 0], [1] * 9, [0, 3], [0, 1, 1, 1, 1]])
def test_single_examples_and_single_classes(
    strategy: Strategy, balanced: bool, labels: list[int], full_signals: MakeSignals
) -> None:
    signals = full_signals(labels, num_classes=4)
    for budget in {1, max(1, len(labels) - 1), len(labels)}:
        chosen = choose(strategy, signals, budget, balanced=balanced)
        require_sound(strategy, signals, budget, chosen, balanced=balanced)


def all_the_same(signals: Signals) -> Signals:
    first = signals.take(torch.zeros(len(signals), dtype=torch.int64))
    return replace(first, labels_N=signals.labels_N)


def without_errors(signals: Signals) -> Signals:
    return replace(signals, errors_NC=torch.zeros_like(signals.errors_NC))


def without_features(signals: Signals) -> Signals:
    zeros = torch.zeros_like(signals.features_ND)
    return replace(signals, features_ND=zeros, paired_features_NP=zeros)


@cases
@pytest.mark.parametrize("degrade", [all_the_same, without_errors, without_features])
def test_examples_that_cannot_be_told_apart_come_to_an_end(
    strategy: Strategy,
    balanced: bool,
    degrade: Callable[[Signals], Signals],
    full_signals: MakeSignals,
) -> None:
    signals = degrade(full_signals([0, 1, 1] * 9))
    for budget in (1, 5, 27):
        chosen = choose(strategy, signals, budget, balanced=balanced)
        require_sound(strategy, signals, budget, chosen, balanced=balanced)


@cases
def test_the_same_twice(strategy: Strategy, balanced: bool, full_signals: MakeSignals) -> None:
    signals = full_signals(LABELS)
    first, again = (choose(strategy, signals, 21, balanced=balanced) for _ in range(2))
    assert first.indices_K.tolist() == again.indices_K.tolist()
    assert first.weights_K.tolist() == again.weights_K.tolist()
    assert first.stopped_early == again.stopped_early


def blocks_of(size: int) -> Callable[..., Iterator[slice]]:
    def row_blocks(num_rows: int, row_bytes: int, block_bytes: int = 0) -> Iterator[slice]:
        for start in range(0, num_rows, size):
            yield slice(start, min(start + size, num_rows))

    return row_blocks


@cases
def test_the_same_on_blocks_of_any_size(
    strategy: Strategy,
    balanced: bool,
    full_signals: MakeSignals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    signals = full_signals(LABELS * 2)
    whole = choose(strategy, signals, 30, balanced=balanced)
    for size in (1, 7, 128, len(signals)):
        for name, module in list(sys.modules.items()):
            if name in BATCHES_OF_AN_ESTIMATE:
                continue
            if name.startswith("lipt.coordinator.") and hasattr(module, "row_blocks"):
                monkeypatch.setattr(module, "row_blocks", blocks_of(size))
            if name.startswith("lipt.coordinator.selection.solvers.") and hasattr(
                module, "BLOCK_BYTES"
            ):
                monkeypatch.setattr(module, "BLOCK_BYTES", 8 * len(signals) * size)
        blocked = choose(strategy, signals, 30, balanced=balanced)
        assert blocked.indices_K.tolist() == whole.indices_K.tolist()
        torch.testing.assert_close(blocked.weights_K, whole.weights_K, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("strategy", "balanced"),
    [case for case in CASES if not takes_seed(case.values[0].function)],  # type: ignore[union-attr]
)
def test_the_order_of_the_data_does_not_matter(
    strategy: Strategy, balanced: bool, full_signals: MakeSignals
) -> None:
    signals = full_signals(LABELS)
    # LABELS starts with one example of each class.
    num_fixed = 4 if strategy.name in FIRST_CHOICE_TIES else 0
    generator = torch.Generator().manual_seed(5)
    moved_N = torch.randperm(len(signals) - num_fixed, generator=generator) + num_fixed
    order_N = torch.cat([torch.arange(num_fixed), moved_N])
    straight = choose(strategy, signals, 22, balanced=balanced)
    shuffled = choose(strategy, signals.take(order_N), 22, balanced=balanced)
    assert order_N[shuffled.indices_K].sort().values.tolist() == straight.indices_K.tolist()


@cases
def test_half_precision_signals_are_taken(
    strategy: Strategy, balanced: bool, full_signals: MakeSignals
) -> None:
    signals = full_signals(LABELS)
    halved = replace(
        signals, errors_NC=signals.errors_NC.half(), features_ND=signals.features_ND.half()
    )
    chosen = choose(strategy, halved, 21, balanced=balanced)
    require_sound(strategy, halved, 21, chosen, balanced=balanced)


@pytest.mark.parametrize("name", sorted(CLUSTER_WEIGHTS))
@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("budget", [1, 21, 80])
def test_cluster_sizes_sum_to_the_number_of_examples(
    name: str, *, balanced: bool, budget: int, full_signals: MakeSignals
) -> None:
    signals = full_signals(LABELS)
    chosen = choose(STRATEGIES[name], signals, budget, balanced=balanced)
    # Balanced, a class without a chosen example is not represented.
    classes = signals.labels_N[chosen.indices_K].unique()
    represented = torch.isin(signals.labels_N, classes).sum() if balanced else len(signals)
    assert chosen.weights_K.double().sum() == pytest.approx(float(represented))
    assert (chosen.weights_K >= 1).all()


def spoiled(signals: Signals, need: Need) -> Signals:
    """Example 2 is not a number in what the need stands for."""

    def nan(values: Tensor) -> Tensor:
        values = values.clone()
        values[2] = float("nan")
        return values

    match need:
        case Need.SIGNALS | Need.FEATURES:
            return replace(signals, features_ND=nan(signals.features_ND))
        case Need.VALIDATION:
            assert signals.validation is not None
            held = replace(signals.validation, errors_NC=nan(signals.validation.errors_NC))
            return replace(signals, validation=held)
        case Need.DYNAMICS:
            assert signals.dynamics is not None
            margins = nan(signals.dynamics.margins_NLT)
            return replace(signals, dynamics=replace(signals.dynamics, margins_NLT=margins))
        case Need.PAIRED_FEATURES:
            assert signals.paired_features_NP is not None
            return replace(signals, paired_features_NP=nan(signals.paired_features_NP))
        case Need.GRADIENT_NORMS:
            assert signals.gradient_norms_N is not None
            return replace(signals, gradient_norms_N=nan(signals.gradient_norms_N))


@every_strategy
def test_signals_that_are_not_finite_name_their_examples(
    strategy: Strategy, full_signals: MakeSignals
) -> None:
    for need in sorted(strategy.default_needs()):
        signals = spoiled(full_signals(LABELS), need)
        with pytest.raises(SignalsError, match=r"not finite for 1 of \d+ examples.*ids 2\."):
            choose(strategy, signals, 5, balanced=strategy.resolve_balance(None))


MISSING = {
    Need.VALIDATION: ("validation", r"needs a validation split. The run has none: set"),
    Need.DYNAMICS: ("dynamics", r"needs the learners' view .* a run with learners"),
    Need.PAIRED_FEATURES: ("paired_features_NP", r"needs paired features. Give .* two tensors"),
}


@every_strategy
def test_what_is_missing_is_named_with_the_remedy(
    strategy: Strategy, full_signals: MakeSignals
) -> None:
    for need in strategy.default_needs() & MISSING.keys():
        field, sentence = MISSING[need]
        signals = replace(full_signals(LABELS), **{field: None})
        with pytest.raises(SignalsError, match=f"'{strategy.name}' {sentence}"):
            choose(strategy, signals, 5, balanced=strategy.resolve_balance(None))


def to_device(signals: Signals, device: str) -> Signals:
    dynamics, held = signals.dynamics, signals.validation
    norms_N, pairs_NP = signals.gradient_norms_N, signals.paired_features_NP
    if dynamics is not None:
        dynamics = Dynamics(*(getattr(dynamics, part.name).to(device) for part in fields(Dynamics)))
    return replace(
        signals,
        errors_NC=signals.errors_NC.to(device),
        features_ND=signals.features_ND.to(device),
        labels_N=signals.labels_N.to(device),
        gradient_norms_N=None if norms_N is None else norms_N.to(device),
        paired_features_NP=None if pairs_NP is None else pairs_NP.to(device),
        dynamics=dynamics,
        validation=None if held is None else to_device(held, device),
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_chooses_the_same(full_signals: MakeSignals) -> None:
    signals = full_signals(LABELS)
    on_gpu = to_device(signals, "cuda")
    different = []
    for case in CASES:
        strategy, balanced = case.values
        assert isinstance(strategy, Strategy)
        first, second = (
            choose(strategy, given, 21, balanced=bool(balanced)) for given in (signals, on_gpu)
        )
        same = first.indices_K.tolist() == second.indices_K.tolist()
        if not same or not torch.allclose(first.weights_K, second.weights_K, rtol=1e-3, atol=1e-4):
            different.append(case.id)
    assert different == []
