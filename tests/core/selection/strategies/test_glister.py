"""GLISTER by hand, against greedy on a layer that is written out, and on its own objective."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from lipt.common.errors import SignalsError
from lipt.core.selection.gradients.last_layer import (
    alignments,
    last_layer_at,
    step,
)
from lipt.core.selection.gradients.vectors import Vectors, gradients_of
from lipt.core.selection.registry import find_strategy
from lipt.core.selection.select import select
from lipt.core.selection.strategies import glister as module
from lipt.core.selection.strategies.glister import (
    ClassCoverage,
    GlisterObjective,
    RandomFunction,
    RegularizerName,
    comparable,
    glister,
    round_sizes,
)
from lipt.core.signals.compute import errors_of
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import (
    full_signals,
    half,
    random_subsets,
    signals_of,
    validation_loss,
)

SOLVERS = ["rounds", "exact", "stochastic"]
solvers = pytest.mark.parametrize("solver", SOLVERS)


def draw(
    num_examples: int,
    num_validation: int = 30,
    *,
    num_classes: int = 4,
    num_features: int = 8,
    seed: int = 0,
    has_bias: bool = True,
) -> Signals:
    """Classes with centres, and a layer that knows them somewhat."""
    generator = torch.Generator().manual_seed(seed)
    centres_CD = torch.randn(num_classes, num_features, generator=generator)
    parts = []
    for size in (num_examples, num_validation):
        labels_N = torch.randint(num_classes, (size,), generator=generator)
        features_ND = centres_CD[labels_N] + torch.randn(size, num_features, generator=generator)
        logits_NC = 0.3 * features_ND @ centres_CD.T
        parts.append(Signals(errors_of(logits_NC, labels_N), features_ND, labels_N, None, has_bias))
    return replace(parts[0], validation=parts[1])


def objective(signals: Signals, chosen: Tensor, rate: float) -> float:
    """The validation loss after one step of `rate` times the sum of the chosen's gradients."""
    assert signals.validation is not None
    layer = last_layer_at(signals.validation)
    return validation_loss(step(layer, gradients_of(signals)[chosen], rate))


def choose(signals: Signals, budget: int, seed: int = 0, **options: Any) -> list[int]:
    return glister(signals, budget, seed=seed, **options).indices_K.tolist()


def conflicting() -> Signals:
    """Validation wants both features, one at a time; no bias, all labels 0.

    Examples 0 and 1 serve the first feature best; 2 and 3 the second, a little less.
    """
    error_1C = torch.tensor([[-0.5, 0.5]])
    features_ND = torch.tensor([[1.2, 0.0], [1.1, 0.0], [0.0, 1.0], [0.0, 0.9]])
    validation = signals_of(torch.eye(2), error_1C.repeat(2, 1), has_bias=False)
    return signals_of(features_ND, error_1C.repeat(4, 1), has_bias=False, validation=validation)


def test_gains_by_hand() -> None:
    # e_v = (-1/2, 1/2), h_v = 2, so grad L_V = ((-1), (1)); e = (-a, a), h: gain = 2 a h.
    errors_VC, features_VD = torch.tensor([[-0.5, 0.5]]), torch.tensor([[2.0]])
    validation = signals_of(features_VD, errors_VC, has_bias=False)
    shares_N = torch.tensor([0.1, 0.8, 0.5])
    signals = signals_of(
        torch.tensor([[3.0], [1.0], [-4.0]]),
        torch.stack([-shares_N, shares_N], dim=1),
        has_bias=False,
        validation=validation,
    )
    gains_N = GlisterObjective(signals, rate=0.5, num_updates=0).gains()
    assert gains_N.tolist() == pytest.approx([0.5 * 0.6, 0.5 * 1.6, 0.5 * -4.0], rel=1e-6)
    assert choose(signals, 2) == [1, 0]
    # With a bias, h_v . h + 1 = 7, 3, -7 in the place of 6, 2, -8, and G as before: 2 a (...) / 2.
    with_bias = replace(signals, has_bias=True, validation=replace(validation, has_bias=True))
    gains_N = GlisterObjective(with_bias, rate=1.0, num_updates=0).gains()
    assert gains_N.tolist() == pytest.approx([0.7, 2.4, -3.5], rel=1e-6)


@solvers
def test_the_update_changes_the_choice(solver: str) -> None:
    # First gains are in the order 0, 1, 2, 3. After 0, the first feature is served.
    signals = conflicting()
    assert choose(signals, 2, rounds=1, learning_rate=4.0) == [0, 1]
    if solver != "stochastic":
        assert choose(signals, 2, solver=solver, learning_rate=4.0) == [0, 2]
    assert sorted(choose(signals, 4, solver=solver, learning_rate=4.0)) == [0, 1, 2, 3]


def test_the_step_is_the_sum_of_the_chosen_gradients_or_their_mean() -> None:
    # e = (-1/2, 1/2). After 0, the first logits differ by 1.2 times the step, the second by 0:
    # p of label 1 is 1 / (1 + exp(1.2 s)) for the first, 1/2 for the second. 1 gains 1.1 times
    # that and 2 gains 1.0 times that: 2 is ahead where exp(1.2 s) > 1.2, that is s > 0.152.
    signals = conflicting()
    for rate in (0.15, 0.155):
        expected = [0, 1] if rate == 0.15 else [0, 2]
        assert choose(signals, 2, rounds=2, learning_rate=rate) == expected
        assert choose(signals, 2, rounds=2, learning_rate=rate, step="sum") == expected
        assert choose(signals, 2, rounds=2, learning_rate=2 * rate, step="mean") == expected


@pytest.mark.parametrize(
    ("options", "budget", "expected"),
    [
        ({}, 40, 14),
        ({"rounds": 1}, 40, 0),
        ({"rounds": 4}, 40, 3),
        ({"rounds": 100}, 40, 39),
        ({"solver": "exact"}, 40, 39),
        ({"solver": "stochastic"}, 40, 39),
        ({"solver": "exact"}, 1, 0),
    ],
)
def test_the_layer_is_updated_between_all_rounds(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], budget: int, expected: int
) -> None:
    stepped: list[int] = []

    def counting(layer: Any, chosen: Vectors, rate: float) -> Any:
        stepped.append(len(chosen))
        return step(layer, chosen, rate)

    monkeypatch.setattr(module, "step", counting)
    chosen = choose(draw(60), budget, **options)
    assert len(stepped) == expected
    # All but the last round's picks have been stepped on.
    assert sum(stepped) < budget == len(set(chosen))


def oracle(signals: Signals, budget: int, learning_rate: float, *, every: int = 1) -> list[int]:
    """Greedy on the layer's full gradients, by autograd, from scratch at every update."""
    validation = signals.validation
    assert validation is not None

    def with_ones(part: Signals) -> Tensor:
        ones = torch.ones(len(part), 1) if signals.has_bias else torch.ones(len(part), 0)
        return torch.cat([part.features_ND, ones], dim=1).double()

    gradients_NCD = signals.errors_NC.double()[:, :, None] * with_ones(signals)[:, None, :]
    onehot_VC = functional.one_hot(validation.labels_N, validation.errors_NC.shape[1])
    logits_VC = (validation.errors_NC.double() + onehot_VC).log()
    chosen: list[int] = []
    while len(chosen) < budget:
        moved_CD = -learning_rate * gradients_NCD[chosen].sum(dim=0)
        moved_CD.requires_grad_()
        loss = functional.cross_entropy(
            logits_VC + with_ones(validation) @ moved_CD.T, validation.labels_N
        )
        (gradient_CD,) = torch.autograd.grad(loss, moved_CD)
        gains = (gradients_NCD * gradient_CD).sum(dim=(1, 2)).tolist()
        left = sorted(set(range(len(signals))) - set(chosen), key=lambda i: (-gains[i], i))
        chosen += left[: min(every, budget - len(chosen))]
    return chosen


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_validation", [3, 40])
@pytest.mark.parametrize("learning_rate", [0.002, 0.05, 1.0])
def test_exact_is_greedy_on_the_layer_written_out(
    has_bias: bool, num_validation: int, learning_rate: float
) -> None:
    signals = draw(150, num_validation, has_bias=has_bias)
    expected = oracle(signals, 30, learning_rate)
    assert choose(signals, 30, solver="exact", learning_rate=learning_rate) == expected
    # As many rounds as picks are the same.
    assert choose(signals, 30, rounds=30, learning_rate=learning_rate) == expected


def test_exact_does_not_evaluate_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[int] = []

    def counting(gradients: Vectors, *arguments: Any) -> Tensor:
        evaluated.append(len(gradients))
        return alignments(gradients, *arguments)

    monkeypatch.setattr(module, "alignments", counting)
    signals = draw(1000)
    # A layer that moves little has gains that move little: most are out by their bounds.
    chosen = choose(signals, 100, solver="exact", step="mean")
    assert sum(evaluated) < 0.25 * 100 * 1000
    monkeypatch.undo()
    assert chosen == choose(signals, 100, rounds=100, step="mean")


def test_exact_is_exact_where_the_layer_moves_far() -> None:
    # A hundred long steps: no bound is of use, and none may be wrong.
    signals = draw(1000)
    for rate in (0.05, 5.0):
        exact = choose(signals, 100, solver="exact", learning_rate=rate)
        assert exact == choose(signals, 100, rounds=100, learning_rate=rate)


@given(budget=st.integers(1, 6000), rounds=st.integers(1, 400))
def test_rounds_take_the_budget_exactly(budget: int, rounds: int) -> None:
    sizes = list(round_sizes(budget, rounds))
    assert sum(sizes) == budget
    assert len(sizes) == min(rounds, budget)
    assert min(sizes) >= 1
    # They shrink, but for the rounding of one.
    assert all(later <= earlier + 1 for earlier, later in pairwise(sizes))


@pytest.mark.parametrize("balanced", [False, True])
@solvers
def test_better_than_random_on_its_own_objective(balanced: bool, solver: str) -> None:
    signals = draw(400, 80)
    strategy = find_strategy("glister")
    options = strategy.parse_options({"solver": solver})
    chosen = select(strategy, signals, 40, balanced=balanced, seed=0, options=options)
    for label in range(4) if balanced else [None]:
        part, ours = signals, chosen.indices_K
        if label is not None:
            part = signals.of_class(label)
            rows = torch.nonzero(signals.labels_N == label).flatten()
            ours = torch.nonzero(torch.isin(rows, chosen.indices_K)).flatten()
        draws = random_subsets(len(part), len(ours), count=10)
        by_chance = [objective(part, drawn, 0.05) for drawn in draws]
        assert objective(part, ours, 0.05) < min(by_chance)


@pytest.mark.parametrize("learning_rate", [0.0005, 0.01, 0.05])
def test_more_updates_end_lower(learning_rate: float) -> None:
    signals = draw(600, 100)
    losses = [
        objective(signals, torch.tensor(choose(signals, 90, **options)), learning_rate)
        for options in (
            {"solver": "exact", "learning_rate": learning_rate},
            {"rounds": 15, "learning_rate": learning_rate},
            {"rounds": 1, "learning_rate": learning_rate},
        )
    ]
    assert losses == sorted(losses)
    assert losses[0] < losses[2]


def test_a_step_by_the_sum_is_not_one_shot() -> None:
    # A step by the mean moves the layer so little that rounds change next to nothing.
    signals = draw(600, 100)
    shared = {}
    for name in ("sum", "mean"):
        rounds, one_shot = (set(choose(signals, 60, step=name, rounds=r)) for r in (15, 1))
        shared[name] = len(rounds & one_shot)
    assert shared["mean"] >= 45
    assert shared["sum"] <= 20


@pytest.mark.parametrize("solver", ["rounds", "exact"])
def test_a_loss_that_has_vanished_still_orders_what_is_left(solver: str) -> None:
    # One step of the first lowers the loss to exp(-2e4): 0 in float64, and so are all gains.
    features_ND = torch.tensor([[1.0], [3.0], [2.0], [4.0]])
    error_1C = torch.tensor([[-0.5, 0.5]])
    validation = signals_of(torch.ones(1, 1), error_1C, has_bias=False)
    signals = signals_of(features_ND, error_1C.repeat(4, 1), has_bias=False, validation=validation)
    assert choose(signals, 4, solver=solver, learning_rate=1e4) == [3, 1, 2, 0]
    # A regularizer is weighed against gains as they are: nothing.
    options = {"regularizer": "facility_location", "learning_rate": 1e4}
    assert choose(signals, 4, solver=solver, **options)[0] == 3


@solvers
@pytest.mark.parametrize("regularizer", ["none", "facility_location", "random"])
@pytest.mark.parametrize("num_examples", [1, 2, 33])
def test_duplicates_and_zero_errors_end_with_distinct_ids(
    solver: str, regularizer: str, num_examples: int
) -> None:
    one = draw(1)
    same = one.take(torch.zeros(num_examples, dtype=torch.int64))
    nothing_to_learn = replace(same, errors_NC=torch.zeros_like(same.errors_NC))
    for signals in (same, nothing_to_learn):
        for budget in {1, num_examples // 2 + 1, num_examples}:
            chosen = choose(signals, budget, solver=solver, regularizer=regularizer)
            assert len(set(chosen)) == budget == len(chosen)
            if solver != "stochastic" and regularizer != "random":
                assert chosen == list(range(budget))


def test_a_solved_validation_set_still_ends() -> None:
    signals = draw(50)
    assert signals.validation is not None
    solved = replace(signals.validation, errors_NC=torch.zeros_like(signals.validation.errors_NC))
    for solver in SOLVERS:
        chosen = choose(replace(signals, validation=solved), 20, solver=solver, learning_rate=1e3)
        assert len(set(chosen)) == 20


def test_gains_that_differ_by_rounding_are_ties_at_any_scale() -> None:
    for scale in (1e-300, 1e-50, 1.0, 1e200):
        gains = torch.tensor([1.0, 1.0 + 1e-12, 2.0, -float("inf")], dtype=torch.float64)
        found = comparable(gains * scale)
        assert found[0] == found[1] < found[2] < float("inf")
        assert found[3] == -float("inf")
    assert comparable(torch.zeros(2, dtype=torch.float64)).tolist() == [0.0, 0.0]


def test_stochastic_repeats_with_its_seed() -> None:
    signals = draw(300)
    first = choose(signals, 30, solver="stochastic", seed=3)
    assert first == choose(signals, 30, solver="stochastic", seed=3)
    assert first != choose(signals, 30, solver="stochastic", seed=4)
    # A sample for one pick is of 2.3 N: it sees all.
    assert choose(signals, 1, solver="stochastic") == choose(signals, 1, solver="exact")


def test_half_precision_signals_are_read_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    halved = half(draw(200))
    expected = choose(halved, 40)
    # Signals too large to be converted at once.
    monkeypatch.setattr(module, "_HELD_BYTES", 0)
    assert choose(halved, 40) == expected


def test_a_class_without_validation_examples_is_validated_on_all() -> None:
    signals = draw(80, 40)
    assert signals.validation is not None
    without = signals.validation.take(torch.nonzero(signals.validation.labels_N != 2).flatten())
    signals = replace(signals, validation=without)
    strategy = find_strategy("glister")
    options = strategy.parse_options({})
    chosen = select(strategy, signals, 20, balanced=True, seed=0, options=options)
    assert torch.bincount(signals.labels_N[chosen.indices_K]).tolist() == [5, 5, 5, 5]


def test_validation_signals_have_to_be_there_and_fit() -> None:
    signals = draw(20)
    assert signals.validation is not None
    missing = replace(signals, validation=None)
    empty = replace(signals, validation=signals.validation.take(torch.tensor([]).long()))
    for bad in (missing, empty):
        with pytest.raises(SignalsError, match="no validation examples: compute them first"):
            choose(bad, 5)
    other = replace(signals, validation=draw(20, num_features=5).validation)
    with pytest.raises(SignalsError, match=r"4 classes and 5 features.*4 and 8"):
        choose(other, 5)


def draw_classes(num_examples: int, num_classes: int = 3) -> Signals:
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
    monkeypatch.setattr(module, "_HELD_SIMILARITY_BYTES", held_bytes)
    signals = draw_classes(31)
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
    signals = draw_classes(60)
    plain = glister(signals, 12, seed=0).indices_K
    chosen = glister(signals, 12, regularizer=regularizer, regularization=0.0, seed=0).indices_K
    assert torch.equal(chosen, plain)


@pytest.mark.parametrize("solver", ["rounds", "exact"])
def test_a_regularizer_of_all_weight_decides(solver: str) -> None:
    signals = draw_classes(60)
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
    signals = draw_classes(90)
    plain = glister(signals, 9, seed=0).indices_K
    chosen = glister(
        signals, 9, regularizer="facility_location", regularization=5.0, seed=0
    ).indices_K
    assert coverage(signals, chosen) > coverage(signals, plain)
