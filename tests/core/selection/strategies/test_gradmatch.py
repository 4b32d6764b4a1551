import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls
from torch import Tensor
from torch.nn import functional

from lipt.common.errors import BudgetError
from lipt.core.selection.solvers.pursuit import GradientAtoms
from lipt.core.selection.strategies import glister as module
from lipt.core.selection.strategies.glister import (
    ValidationLayer,
    _aligns_compiled,
    alignments,
    comparable,
    glister,
    layer_at,
    round_sizes,
    validation_gradient,
)
from lipt.core.selection.strategies.gradmatch import gradmatch
from lipt.core.selection.vectors import LayerGradient, Vectors, gradients_of, weighted_sum
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import (
    random_predictions,
    random_signals,
    signals_of,
    validation_loss,
    written_out,
)


def test_weights_of_orthogonal_gradients_by_hand() -> None:
    # With a bias and no feature, g = e: three times (-1, 1, 0) and once (-1, 0, 1), b = (-4, 3, 1).
    # Products with b: 7, 7, 7, 5. Example 0 with w: min |w (-1, 1, 0) - b| is w = 7 / 2. Missing is
    # (-1/2, -1/2, 1), product 3/2 with example 3. Together: 3 and 1, and nothing is missing.
    errors_NC = torch.tensor([[-1.0, 1.0, 0.0]] * 3 + [[-1.0, 0.0, 1.0]])
    signals = signals_of(torch.zeros(4, 1), errors_NC)
    one = gradmatch(signals, 1)
    assert (one.indices_K.tolist(), one.weights_K.tolist()) == ([0], [pytest.approx(3.5)])
    assert not one.stopped_early
    both = gradmatch(signals, 2)
    assert both.indices_K.tolist() == [0, 3]
    assert both.weights_K.tolist() == pytest.approx([3, 1])
    assert not both.stopped_early
    more = gradmatch(signals, 3)
    assert more.indices_K.tolist() == [0, 3]
    assert "ended with 2 examples of a budget of 3" in more.stopped_early


def test_gradmatch_ridge_and_own_class_by_hand() -> None:
    # g = (-1, 1) twice and b = (-2, 2): for one of them (2 + r) w = 4, so that w is 1 where r is 2,
    # which is also a ridge of 1 times the mean square.
    signals = signals_of(torch.zeros(2, 1), torch.tensor([[-1.0, 1.0]] * 2))
    for ridge, scale in ((2.0, "absolute"), (1.0, "mean_square")):
        chosen = gradmatch(signals, 1, ridge=ridge, ridge_scale=scale)  # type: ignore[arg-type]
        assert chosen.weights_K.tolist() == pytest.approx([1.0])
    # Both of class 0, with errors that differ in the other classes alone: as one row they are
    # equal, and the first is enough; as whole gradients it takes both to meet their sum.
    errors_NC = torch.tensor([[-0.5, 0.5, 0.0], [-0.5, 0.0, 0.5]])
    signals = signals_of(torch.zeros(2, 1), errors_NC)
    own = gradmatch(signals, 2, gradient="own_class")
    assert (own.indices_K.tolist(), own.weights_K.tolist()) == ([0], [pytest.approx(2.0)])
    assert gradmatch(signals, 2).indices_K.tolist() == [0, 1]


def test_the_bias_gradient_counts_only_with_a_bias() -> None:
    # Features 1 and -1 of equal errors: without a bias the gradients cancel.
    errors_NC = torch.tensor([[-1.0, 1.0]]).repeat(2, 1)
    features_ND = torch.tensor([[1.0], [-1.0]])
    assert len(gradmatch(signals_of(features_ND, errors_NC), 2).indices_K) == 2
    without = gradmatch(signals_of(features_ND, errors_NC, has_bias=False), 2)
    assert not len(without.indices_K)
    assert "add up to zero: there is nothing to match" in without.stopped_early


# Rows of products are kept where a gradient has many more numbers than its factors.
@pytest.mark.parametrize(("num_classes", "num_features", "keeps_rows"), [(3, 7, 0), (10, 40, 1)])
@pytest.mark.parametrize("bias", [False, True])
def test_exact_atoms(num_classes: int, num_features: int, keeps_rows: int, *, bias: bool) -> None:
    signals = random_predictions(50, num_classes, num_features, has_bias=bias)
    all_NP = written_out(signals)
    target_P = all_NP.sum(dim=0)
    vectors = gradients_of(signals)
    atoms = GradientAtoms(vectors, weighted_sum(vectors, block_bytes=2**20), capacity=4)
    assert (atoms._rows_KN is not None) == keeps_rows
    torch.testing.assert_close(atoms.squares_N, all_NP.square().sum(dim=1))
    torch.testing.assert_close(atoms.target_products_N, all_NP @ target_P)
    assert atoms.target_square == pytest.approx(float(target_P @ target_P))
    for atom in (31, 7, 49, 0):
        atoms.use(atom)
    atoms.drop(1)
    used = [31, 0, 49]
    asked_M = torch.tensor([7, 31, 2])
    torch.testing.assert_close(atoms.products(asked_M), all_NP[asked_M] @ all_NP[used].T)
    weights_K = torch.tensor([3.0, 0.5, 20.0]).double()
    estimates_N, rounding_N = atoms.estimate(weights_K)
    exact_N = all_NP @ (target_P - weights_K @ all_NP[used])
    assert bool(((estimates_N - exact_N).abs() <= rounding_N).all())
    assert float(rounding_N.max()) < 1e-4 * float(exact_N.abs().max())


def test_validation_gradients_are_matched_on_the_scale_of_the_examples() -> None:
    train, held_out = random_predictions(300, 4, 20), random_predictions(60, 4, 20, seed=1)
    signals = replace(train, validation=held_out)
    chosen, plain = gradmatch(signals, 40, target="validation"), gradmatch(signals, 40)
    target_P, all_NP = written_out(held_out).mean(dim=0) * 300, written_out(train)
    missed, missed_by_plain = (
        (target_P - each.weights_K.double() @ all_NP[each.indices_K]).norm()
        for each in (chosen, plain)
    )
    assert missed < missed_by_plain
    weights, _ = nnls(all_NP[chosen.indices_K].numpy().T, target_P.numpy())
    assert chosen.weights_K.tolist() == pytest.approx(weights.tolist(), rel=1e-4)


@pytest.mark.parametrize(("num_examples", "budget"), [(64, 16), (67, 24), (67, 21), (5, 3), (1, 1)])
def test_batches_give_their_examples_with_one_weight(num_examples: int, budget: int) -> None:
    signals = random_predictions(num_examples, 4, 20)
    chosen = gradmatch(signals, budget, batch_size=8)
    assert len(chosen.indices_K) == budget
    assert len(set(chosen.indices_K.tolist())) == budget
    batches_K = chosen.indices_K // 8
    order = list(dict.fromkeys(batches_K.tolist()))
    batches_BP = torch.stack([part.sum(dim=0) for part in written_out(signals).split(8)])
    best, _ = nnls(batches_BP[order].numpy().T, batches_BP.sum(dim=0).numpy())
    for batch, weight in zip(order, best, strict=True):
        members = batches_K == batch
        size, kept = min(8, num_examples - 8 * batch), int(members.sum())
        assert kept == size or batch == order[-1]
        # The examples that are kept stand for their whole batch.
        expected = [weight * size / kept] * kept
        assert chosen.weights_K[members].tolist() == pytest.approx(expected, rel=1e-4)
        first = 8 * batch
        assert chosen.indices_K[members].tolist() == list(range(first, first + kept))


def test_a_short_batch_counts_as_many_examples_as_it_has() -> None:
    # Orthogonal gradients. The last batch, of one example, is the longest and so the first.
    errors_NC = torch.tensor([[-0.1, 0.1]] * 4 + [[-1.0, 1.0]])
    signals = signals_of(torch.eye(5), errors_NC, has_bias=False)
    chosen = gradmatch(signals, 4, batch_size=4)
    assert chosen.indices_K.tolist() == [4, 0, 1, 2]
    assert not chosen.stopped_early


def test_too_many_atoms_are_refused_before_computing() -> None:
    many = torch.zeros(100_000, 1)
    signals = signals_of(many, many)
    with pytest.raises(BudgetError, match=r"choose 50000 of 100000 .* 19 GiB.*balance"):
        gradmatch(signals, 50_000)


def draw(
    num_examples: int, num_validation: int = 30, num_features: int = 8, *, has_bias: bool = True
) -> Signals:
    train, held = (
        random_predictions(size, 4, num_features, seed=seed, has_bias=has_bias)
        for seed, size in enumerate((num_examples, num_validation))
    )
    return replace(train, validation=held)


def choose(signals: Signals, budget: int, **options: Any) -> list[int]:
    return glister(signals, budget, **options).indices_K.tolist()


def conflicting() -> Signals:
    """Validation wants both features, one at a time; no bias, all labels 0.

    Examples 0 and 1 serve the first feature best; 2 and 3 the second, a little less.
    """
    error_1C = torch.tensor([[-0.5, 0.5]])
    features_ND = torch.tensor([[1.2, 0.0], [1.1, 0.0], [0.0, 1.0], [0.0, 0.9]])
    validation = signals_of(torch.eye(2), error_1C.repeat(2, 1), has_bias=False)
    return signals_of(features_ND, error_1C.repeat(4, 1), has_bias=False, validation=validation)


def test_the_step_is_the_sum_of_the_chosen_gradients_or_their_mean() -> None:
    # e = (-1/2, 1/2). After 0, the first logits differ by 1.2 times the step, the second by 0:
    # p of label 1 is 1 / (1 + exp(1.2 s)) for the first, 1/2 for the second. 1 gains 1.1 times
    # that and 2 gains 1.0 times that: 2 is ahead where exp(1.2 s) > 1.2, that is s > 0.152.
    signals = conflicting()
    for rate, expected in ((0.15, [0, 1]), (0.155, [0, 2])):
        assert choose(signals, 2, rounds=2, learning_rate=rate) == expected
        assert choose(signals, 2, rounds=2, learning_rate=rate, step="sum") == expected
        assert choose(signals, 2, rounds=2, learning_rate=2 * rate, step="mean") == expected


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
def test_exact_glister_is_greedy(has_bias: bool, num_validation: int, learning_rate: float) -> None:
    signals = draw(150, num_validation, has_bias=has_bias)
    expected = oracle(signals, 30, learning_rate)
    assert choose(signals, 30, rounds=0, learning_rate=learning_rate) == expected
    assert choose(signals, 30, rounds=30, learning_rate=learning_rate) == expected


def test_exact_glister_skips_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[int] = []

    def counting(gradients: Vectors, gradient: LayerGradient) -> Tensor:
        evaluated.append(len(gradients))
        return alignments(gradients, gradient)

    monkeypatch.setattr(module, "alignments", counting)
    signals = draw(1000)
    # A layer that moves little has gains that move little: most are out by their bounds.
    chosen = choose(signals, 100, rounds=0, step="mean")
    assert sum(evaluated) < 0.25 * 100 * 1000
    monkeypatch.undo()
    assert chosen == choose(signals, 100, rounds=100, step="mean")


@given(budget=st.integers(1, 6000), rounds=st.integers(1, 400))
def test_round_sizes_add_up_to_the_budget(budget: int, rounds: int) -> None:
    sizes = list(round_sizes(budget, rounds))
    assert sum(sizes) == budget
    assert len(sizes) == min(rounds, budget)
    assert min(sizes) >= 1
    # They shrink, but for the rounding of one.
    assert all(later <= earlier + 1 for earlier, later in pairwise(sizes))


@pytest.mark.parametrize("rounds", [0, 15])
def test_a_vanished_loss_still_orders_the_rest(rounds: int) -> None:
    # One step of the first lowers the loss to exp(-2e4): 0 in float64, and so are all gains.
    features_ND = torch.tensor([[1.0], [3.0], [2.0], [4.0]])
    error_1C = torch.tensor([[-0.5, 0.5]])
    validation = signals_of(torch.ones(1, 1), error_1C, has_bias=False)
    signals = signals_of(features_ND, error_1C.repeat(4, 1), has_bias=False, validation=validation)
    assert choose(signals, 4, rounds=rounds, learning_rate=1e4) == [3, 1, 2, 0]


def test_gains_that_differ_by_rounding_tie() -> None:
    for scale in (1e-300, 1e-50, 1.0, 1e200):
        gains = torch.tensor([1.0, 1.0 + 1e-12, 2.0, -float("inf")], dtype=torch.float64)
        found = comparable(gains * scale)
        assert found[0] == found[1] < found[2] < float("inf")
        assert found[3] == -float("inf")
    assert comparable(torch.zeros(2, dtype=torch.float64)).tolist() == [0.0, 0.0]


def test_compiled_alignments_equal_torch_s_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = gradients_of(random_signals(129, 10, 33))
    weight_CD = random_signals(33, 10, seed=1).errors_NC.T.double()
    gradient = LayerGradient(weight_CD, torch.ones(10).double())
    assert _aligns_compiled(gradients)
    compiled_N = alignments(gradients, gradient)
    monkeypatch.setattr(module, "can_compile", lambda _: False)
    assert not _aligns_compiled(gradients)
    assert torch.equal(compiled_N.float(), alignments(gradients, gradient).float())


def test_extreme_predictions_stay_finite() -> None:
    # Wrong beyond what float32 can tell: e = (-1, 1), so p = (0, 1).
    validation = signals_of(errors_NC=torch.tensor([[-1.0, 1.0]]))
    assert validation_loss(layer_at(validation)) == pytest.approx(25 * math.log(2))
    # p of the label is 1 - 1e-30: p - 1 in any precision would be 0.
    validation = signals_of(errors_NC=torch.tensor([[-1e-30, 1e-30]]))
    gradient = validation_gradient(layer_at(validation))
    assert gradient.bias_C.tolist() == pytest.approx([-1e-30, 1e-30], rel=1e-5, abs=0.0)


def test_a_vanishing_gradient_is_an_error() -> None:
    # Losses of exp(-2000) and exp(-1500): beside the second the first is nothing.
    layer = ValidationLayer(
        features_VD=torch.tensor([[1.0], [3.0]], dtype=torch.float64),
        logits_VC=torch.tensor([[2000.0, 0.0], [1500.0, 0.0]], dtype=torch.float64),
        labels_V=torch.zeros(2, dtype=torch.int64),
        bias=1.0,
    )
    raised = validation_gradient(layer)
    assert raised.weight_CD.tolist() == [[-1.5], [1.5]]
    assert raised.bias_C.tolist() == [-0.5, 0.5]
    # Of a single class there is no error to raise.
    assert validation_gradient(replace(layer, logits_VC=layer.logits_VC[:, :1])).norm == 0
