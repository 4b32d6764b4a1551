from dataclasses import replace

import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor

from lipt.common.errors import BudgetError
from lipt.core.selection.selection import Selection
from lipt.core.selection.solvers.pursuit import GradientAtoms
from lipt.core.selection.strategies.gradmatch import gradmatch
from lipt.core.selection.vectors import gradients_of, weighted_sum
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import random_predictions, signals_of, written_out


def batch_gradients(signals: Signals, batch_size: int) -> Tensor:
    return torch.stack([part.sum(dim=0) for part in written_out(signals).split(batch_size)])


def missing(chosen: Selection, signals: Signals, target_P: Tensor) -> Tensor:
    return target_P - chosen.weights_K.double() @ written_out(signals)[chosen.indices_K]


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


def test_an_absolute_ridge_is_not_scaled() -> None:
    # g = (-1, 1) twice and b = (-2, 2): for one of them (2 + r) w = 4, so that w is 1 where r is 2,
    # which is also a ridge of 1 times the mean square.
    signals = signals_of(torch.zeros(2, 1), torch.tensor([[-1.0, 1.0]] * 2))
    for ridge, scale in ((2.0, "absolute"), (1.0, "mean_square")):
        chosen = gradmatch(signals, 1, ridge=ridge, ridge_scale=scale)  # type: ignore[arg-type]
        assert chosen.weights_K.tolist() == pytest.approx([1.0])


def test_the_own_class_alone_is_one_row_of_the_gradient() -> None:
    # Both of class 0, with errors that differ in the other classes alone: as one row they are
    # equal, and the first is enough; as whole gradients it takes both to meet their sum.
    errors_NC = torch.tensor([[-0.5, 0.5, 0.0], [-0.5, 0.0, 0.5]])
    signals = signals_of(torch.zeros(2, 1), errors_NC)
    own = gradmatch(signals, 2, gradient="own_class")
    assert (own.indices_K.tolist(), own.weights_K.tolist()) == ([0], [pytest.approx(2.0)])
    assert gradmatch(signals, 2).indices_K.tolist() == [0, 1]


def test_the_bias_counts_only_where_there_is_one() -> None:
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
def test_atoms_are_the_gradients(
    num_classes: int, num_features: int, keeps_rows: int, *, bias: bool
) -> None:
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
    chosen = gradmatch(signals, 40, target="validation")
    target_P = written_out(held_out).mean(dim=0) * 300
    matched = float(missing(chosen, signals, target_P).norm())
    assert matched < float(missing(gradmatch(signals, 40), signals, target_P).norm())
    weights, _ = nnls(written_out(train)[chosen.indices_K].numpy().T, target_P.numpy())
    assert chosen.weights_K.tolist() == pytest.approx(weights.tolist(), rel=1e-4)


@pytest.mark.parametrize(("num_examples", "budget"), [(64, 16), (67, 24), (67, 21), (5, 3), (1, 1)])
def test_batches_give_their_examples_with_one_weight(num_examples: int, budget: int) -> None:
    signals = random_predictions(num_examples, 4, 20)
    chosen = gradmatch(signals, budget, batch_size=8)
    assert len(chosen.indices_K) == budget
    assert len(set(chosen.indices_K.tolist())) == budget
    batches_K = chosen.indices_K // 8
    order = list(dict.fromkeys(batches_K.tolist()))
    all_NP = batch_gradients(signals, 8)
    best, _ = nnls(all_NP[order].numpy().T, written_out(signals).sum(dim=0).numpy())
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


def test_more_than_fits_is_refused_before_it_is_tried() -> None:
    many = torch.zeros(100_000, 1)
    signals = signals_of(many, many)
    with pytest.raises(BudgetError, match=r"choose 50000 of 100000 .* 19 GiB.*balance"):
        gradmatch(signals, 50_000)
