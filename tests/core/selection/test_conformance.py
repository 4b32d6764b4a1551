import inspect
import logging
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipt.common.errors import BudgetError
from lipt.core.selection.select import STRATEGIES, select
from lipt.core.selection.selection import Selection
from lipt.core.selection.strategy import Balance, Strategy
from lipt.core.signals.signals import Signals
from lipt.data.groups import class_quotas
from lipt.data.targets.kinds import TargetKind
from tests.core.selection.builders import full_signals, half
from tests.properties import at_most

Options = Mapping[str, Any]


def variants(strategy: Strategy) -> Iterator[Options]:
    """The defaults, and one other value of each option that lists its values, and is no range."""
    yield {}
    for option in strategy.own_options:
        others = [text for text in option.allowed if text != option.default and " " not in text]
        if option.default in option.allowed and others:
            yield {option.name: strategy.parse_options({option.name: others[0]})[option.name]}
    if strategy.name == "glister":
        yield {"rounds": 0}  # exact, which is another way


CASES = [
    pytest.param(
        strategy,
        options,
        balanced,
        id="-".join([name, *map(str, options.values()), "balanced" if balanced else "all"]),
    )
    for name, strategy in STRATEGIES.items()
    for options in variants(strategy)
    for balanced in (False, True)
    if strategy.balance is not (Balance.NEVER if balanced else Balance.ALWAYS)
    # Options and balance are independent: each is tried with the default of the other.
    and not (options and balanced and strategy.balance is not Balance.ALWAYS)
]
cases = pytest.mark.parametrize(("strategy", "options", "balanced"), CASES)


def order_matters(strategy: Any, options: Any, _: object) -> bool:
    # With a batch size, consecutive rows are one batch.
    return strategy.name in DRAWING or "batch_size" in options


default_cases = pytest.mark.parametrize(
    ("strategy", "options", "balanced"), [case for case in CASES if not case.values[1]]
)
every_strategy = pytest.mark.parametrize(
    "strategy", [pytest.param(strategy, id=name) for name, strategy in STRATEGIES.items()]
)

# When nothing is left to gain, these say so instead of padding.
MAY_STOP_EARLY = {"gradmatch"}
# Equal shares of what it takes for rightly labelled and no copy: see its own tests.
SHARES_OF_CONFIDENT_LABELS = {"auto"}
# Each chosen example stands for those nearest to it, all together for all.
CLUSTER_WEIGHTS = {"craig", "adacore"}
# Every example alone spans the same volume: the first choice is a tie, which goes to id 0.
FIRST_CHOICE_TIES = {"log_det"}
# Preconditioned signals are kept as the signals are: rounded once more where they are halves.
ROUNDED_AGAIN = {"adacore"}
# Whatever their options are.
DRAWING = {
    *("auto", "uniform", "uniform_per_class", "ccs", "crest"),
    *("stratified", "zcore", "milo", "dual"),
}
# One pass over the examples: cheap enough for thousands.
OF_MANY = {
    *("el2n", "grand", "entropy", "margin", "least_confidence"),
    *("aum", "forgetting", "disagreement", "dual", "moderate"),
}
LABELS = [0, 1, 2, 3, 1, 2, 3, 2, 3, 3] * 8
choose = partial(select, seed=3)


def require_sound(
    strategy: Strategy, signals: Signals, budget: int, chosen: Selection, *, balanced: bool
) -> None:
    """Distinct ascending ids, the exact budget or a reason, finite weights, equal shares."""
    indices = chosen.indices_K.tolist()
    assert indices == sorted(set(indices))
    assert set(indices) <= set(range(len(signals)))
    assert chosen.indices_K.dtype == torch.int64
    assert chosen.weights_K.dtype == torch.float32
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
    if balanced and strategy.name not in SHARES_OF_CONFIDENT_LABELS:
        counts = signals.labels_N.bincount().tolist()
        found = signals.labels_N[chosen.indices_K].bincount(minlength=len(counts)).tolist()
        assert tuple(found) == class_quotas(counts, budget)
    elif strategy.name in CLUSTER_WEIGHTS:
        assert chosen.weights_K.double().sum() == len(signals)


@default_cases
@settings(max_examples=at_most(25))
@given(data=st.data())
def test_every_strategy_returns_the_budget_of_distinct_ids(
    strategy: Strategy, options: Options, balanced: bool, data: st.DataObject
) -> None:
    labels = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=40))
    budget = data.draw(st.integers(1, len(labels)))
    signals = full_signals(labels, num_classes=5)
    chosen = choose(strategy, signals, budget, balanced=balanced, options=options)
    require_sound(strategy, signals, budget, chosen, balanced=balanced)


@every_strategy
@pytest.mark.parametrize("budget", [0, -1, 7])
def test_a_budget_outside_the_set_is_refused(strategy: Strategy, budget: int) -> None:
    signals = full_signals([0, 1] * 3)
    with pytest.raises(BudgetError, match=rf"budget {budget} is outside 1\.\.6"):
        choose(strategy, signals, budget, balanced=strategy.resolve_balance(None))


def all_the_same(signals: Signals) -> Signals:
    first = signals.take(torch.zeros(len(signals), dtype=torch.int64))
    return replace(first, labels_N=signals.labels_N)


def without_errors(signals: Signals) -> Signals:
    return replace(signals, errors_NC=torch.zeros_like(signals.errors_NC))


def without_features(signals: Signals) -> Signals:
    zeros = torch.zeros_like(signals.features_ND)
    return replace(signals, features_ND=zeros, paired_features_NP=zeros)


@default_cases
@pytest.mark.parametrize("degrade", [all_the_same, without_errors, without_features])
def test_equal_examples_end_every_strategy(
    strategy: Strategy, options: Options, balanced: bool, degrade: Callable[[Signals], Signals]
) -> None:
    signals = degrade(full_signals([0, 1, 1] * 9))
    for budget in (1, 5, 27):
        chosen = choose(strategy, signals, budget, balanced=balanced, options=options)
        require_sound(strategy, signals, budget, chosen, balanced=balanced)


@pytest.mark.parametrize(
    ("strategy", "options", "num_examples"),
    [
        pytest.param(
            strategy, options, number, id="-".join([name, *map(str, options.values()), str(number)])
        )
        for name, strategy in STRATEGIES.items()
        if name not in DRAWING
        for options in variants(strategy)
        for number in (2, 17, 4097)
        if number < 300 or name in OF_MANY
    ],
)
def test_ties_are_broken_by_order(strategy: Strategy, options: Options, num_examples: int) -> None:
    # Rows that are equal must have equal scores wherever they stand, or ties are not ties.
    one = full_signals([0], num_classes=3)
    same = one.take(torch.zeros(num_examples, dtype=torch.int64))
    budget = max(1, num_examples // 3)
    chosen = choose(strategy, same, budget, balanced=False, options=options)
    num_taken = 1 if chosen.stopped_early else budget
    assert chosen.indices_K.tolist() == list(range(num_taken))


def global_state() -> dict[str, Any]:
    return {
        "numpy errors": np.geterr(),
        "numpy generator": [np.asarray(part).tolist() for part in np.random.get_state()],  # noqa: NPY002
        "python generator": random.getstate(),
        "torch generator": torch.get_rng_state().tolist(),
        "torch type": torch.get_default_dtype(),
        "torch threads": torch.get_num_threads(),
        "torch deterministic": torch.are_deterministic_algorithms_enabled(),
        "torch precision": torch.get_float32_matmul_precision(),
        "gradients": torch.is_grad_enabled(),
        "loggers": [repr(logging.root.handlers), logging.root.level, logging.root.disabled],
        "recursion": sys.getrecursionlimit(),
    }


def tensors_of(value: object, path: str = "signals") -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif is_dataclass(value):
        for part in fields(value):
            yield from tensors_of(getattr(value, part.name), f"{path}.{part.name}")


@cases
def test_the_seed_decides_the_subset(strategy: Strategy, options: Options, balanced: bool) -> None:
    signals = full_signals(LABELS)
    copies = {path: tensor.clone() for path, tensor in tensors_of(signals)}
    before = global_state()
    first, again, other = (
        choose(strategy, signals, 21, balanced=balanced, options=options, seed=seed)
        for seed in (3, 3, 4)
    )
    assert torch.equal(first.indices_K, again.indices_K)
    assert torch.equal(first.weights_K, again.weights_K)
    assert first.stopped_early == again.stopped_early
    if strategy.name not in DRAWING:
        assert torch.equal(first.indices_K, other.indices_K)
    assert global_state() == before
    for path, tensor in tensors_of(signals):
        assert torch.equal(tensor, copies[path]), path


def blocks_of(size: int) -> Callable[..., Iterator[slice]]:
    def row_blocks(num_rows: int, row_bytes: int, block_bytes: int = 0) -> Iterator[slice]:
        for start in range(0, num_rows, size):
            yield slice(start, min(start + size, num_rows))

    return row_blocks


@cases
def test_block_size_does_not_change_the_subset(
    strategy: Strategy, options: Options, balanced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = full_signals(LABELS * 2)
    whole = choose(strategy, signals, 30, balanced=balanced, options=options)
    for size in (1, 7, len(signals) - 1):
        for name, module in list(sys.modules.items()):
            if name.startswith("lipt.core.") and hasattr(module, "row_blocks"):
                monkeypatch.setattr(module, "row_blocks", blocks_of(size))
            if name == "lipt.core.selection.solvers.linear_cut":
                # How many rows are computed ahead follows from it.
                monkeypatch.setattr(module, "BLOCK_BYTES", 8 * len(signals) * size)
        blocked = choose(strategy, signals, 30, balanced=balanced, options=options)
        assert blocked.indices_K.tolist() == whole.indices_K.tolist()
        torch.testing.assert_close(blocked.weights_K, whole.weights_K, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("strategy", "options", "balanced"),
    [case for case in CASES if not order_matters(*case.values)],
)
def test_row_order_does_not_matter(strategy: Strategy, options: Options, balanced: bool) -> None:
    # Where few are left, pairs of each other's nearest tie; of this seed none do.
    signals = full_signals(LABELS * 3, seed=3)
    # LABELS starts with one example of each class.
    num_fixed = 4 if strategy.name in FIRST_CHOICE_TIES else 0
    generator = torch.Generator().manual_seed(5)
    moved_N = torch.randperm(len(signals) - num_fixed, generator=generator) + num_fixed
    order_N = torch.cat([torch.arange(num_fixed), moved_N])
    straight = choose(strategy, signals, 22, balanced=balanced, options=options)
    shuffled = choose(strategy, signals.take(order_N), 22, balanced=balanced, options=options)
    ids_K, places_K = order_N[shuffled.indices_K].sort()
    assert ids_K.tolist() == straight.indices_K.tolist()
    torch.testing.assert_close(
        shuffled.weights_K[places_K], straight.weights_K, rtol=1e-4, atol=1e-5
    )


@cases
def test_half_precision_is_exact(strategy: Strategy, options: Options, balanced: bool) -> None:
    halved = half(full_signals(LABELS))
    chosen = choose(strategy, halved, 21, balanced=balanced, options=options)
    require_sound(strategy, halved, 21, chosen, balanced=balanced)
    if strategy.name not in ROUNDED_AGAIN:
        single = halved.take(torch.arange(len(halved)))
        held = halved.validation
        assert held is not None
        single = replace(single, validation=held.take(torch.arange(len(held))))
        expected = choose(strategy, single, 21, balanced=balanced, options=options)
        assert torch.equal(chosen.indices_K, expected.indices_K)
        torch.testing.assert_close(chosen.weights_K, expected.weights_K)


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [
        pytest.param(strategy, kind, id=f"{name}-{kind}")
        for name, strategy in STRATEGIES.items()
        for kind in (TargetKind.CLASSES, TargetKind.NUMBER)
        if kind in strategy.kinds_of({})
    ],
)
def test_supported_targets_give_the_budget(strategy: Strategy, kind: TargetKind) -> None:
    signals = replace(full_signals(LABELS), kind=kind)
    chosen = choose(strategy, signals, 10, balanced=strategy.resolve_balance(None))
    require_sound(strategy, signals, 10, chosen, balanced=False)


# Third-party packages come first: what they do on import is not ours to answer for.
IMPORT_ALL = f"""
import importlib, importlib.util, logging, pkgutil, random, sys, warnings
from typing import Any
import numpy as np, pydantic, torch, torch.func
if importlib.util.find_spec("numba"):
    import numba, numba.core.caching
{inspect.getsource(global_state)}
before = global_state(), repr(warnings.filters)
import lipt.core.selection as package
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if module.name != "lipt.core.selection.compiled_loops" or "numba" in sys.modules:
        importlib.import_module(module.name)
        print(module.name)
assert (global_state(), repr(warnings.filters)) == before
"""


@pytest.mark.slow
def test_importing_every_module_changes_nothing() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], check=True, capture_output=True, text=True
    )
    assert "lipt.core.selection.solvers.representatives" in finished.stdout.split()
    assert finished.stderr == ""
