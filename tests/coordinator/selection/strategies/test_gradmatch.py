"""GradMatch against gradients that are written out, and on the cases that break libraries."""

from __future__ import annotations

import runpy
from importlib import import_module

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls
from torch import Tensor

from lipt.common.errors import BudgetError, SignalsError
from lipt.coordinator.selection.gradients.atoms import GradientAtoms
from lipt.coordinator.selection.gradients.vectors import gradients_of, weighted_sum
from lipt.coordinator.selection.registry import find_strategy
from lipt.coordinator.selection.select import select
from lipt.coordinator.selection.selection import Selection
from lipt.coordinator.selection.solvers.pursuit import pursue
from lipt.coordinator.selection.strategies.gradmatch import gradmatch
from lipt.coordinator.selection.strategy import Need
from lipt.coordinator.signals.signals import Signals


def make_signals(
    num_examples: int,
    num_classes: int = 4,
    num_features: int = 6,
    *,
    seed: int = 0,
    bias: bool = True,
) -> Signals:
    """Errors of a model that is mostly right, features that are not negative."""
    generator = torch.Generator().manual_seed(seed)
    labels_N = torch.arange(num_examples) % num_classes
    logits_NC = torch.randn(num_examples, num_classes, generator=generator)
    logits_NC[torch.arange(num_examples), labels_N] += 1
    errors_NC = logits_NC.softmax(dim=-1)
    errors_NC[torch.arange(num_examples), labels_N] -= 1
    features_ND = torch.randn(num_examples, num_features, generator=generator).relu()
    return Signals(errors_NC, features_ND, labels_N, has_bias=bias)


def gradients(signals: Signals) -> Tensor:
    """The outer products themselves, N x C (D + 1), float64."""
    features = signals.features_ND.double()
    if signals.has_bias:
        features = torch.cat([features, torch.ones(len(signals), 1).double()], dim=1)
    return (signals.errors_NC.double()[:, :, None] * features[:, None, :]).flatten(1)


def batch_gradients(signals: Signals, batch_size: int) -> Tensor:
    return torch.stack([part.sum(dim=0) for part in gradients(signals).split(batch_size)])


def missing(chosen: Selection, signals: Signals, target_P: Tensor) -> Tensor:
    return target_P - chosen.weights_K.double() @ gradients(signals)[chosen.indices_K]


def test_weights_of_orthogonal_gradients_by_hand() -> None:
    # With a bias and no feature, g = e: three times (-1, 1, 0) and once (-1, 0, 1), b = (-4, 3, 1).
    # Products with b: 7, 7, 7, 5. Example 0 with w: min |w (-1, 1, 0) - b| is w = 7 / 2. Missing is
    # (-1/2, -1/2, 1), product 3/2 with example 3. Together: 3 and 1, and nothing is missing.
    errors_NC = torch.tensor([[-1.0, 1.0, 0.0]] * 3 + [[-1.0, 0.0, 1.0]])
    signals = Signals(errors_NC, torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64))
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


def test_the_bias_counts_only_where_there_is_one() -> None:
    # Features 1 and -1 of equal errors: without a bias the gradients cancel.
    errors_NC = torch.tensor([[-1.0, 1.0]]).repeat(2, 1)
    features_ND = torch.tensor([[1.0], [-1.0]])
    labels_N = torch.zeros(2, dtype=torch.int64)
    assert len(gradmatch(Signals(errors_NC, features_ND, labels_N), 2).indices_K) == 2
    without = gradmatch(Signals(errors_NC, features_ND, labels_N, has_bias=False), 2)
    assert not len(without.indices_K)
    assert "add up to zero: there is nothing to match" in without.stopped_early


@settings(deadline=None, max_examples=40)
@given(
    num_examples=st.integers(1, 40),
    num_classes=st.integers(2, 5),
    num_features=st.integers(1, 9),
    bias=st.booleans(),
    seed=st.integers(0, 1000),
    ridge=st.sampled_from([0.0, 0.5]),
    data=st.data(),
)
def test_weights_are_optimal_for_the_chosen(
    num_examples: int,
    num_classes: int,
    num_features: int,
    bias: bool,
    seed: int,
    ridge: float,
    data: st.DataObject,
) -> None:
    signals = make_signals(num_examples, num_classes, num_features, seed=seed, bias=bias)
    budget = data.draw(st.integers(1, num_examples))
    chosen = gradmatch(signals, budget, ridge=ridge)
    all_NP = gradients(signals)
    target_P = all_NP.sum(dim=0)
    assert len(set(chosen.indices_K.tolist())) == len(chosen.indices_K)
    assert bool(chosen.stopped_early) == (len(chosen.indices_K) < budget)
    if not len(chosen.indices_K):
        # No bias, and no example has a feature.
        assert float(target_P.norm()) == 0
        return
    assert bool((chosen.weights_K > 0).all())
    cost = ridge * float(all_NP.square().sum(dim=1).mean())
    chosen_KP = all_NP[chosen.indices_K]
    size = len(chosen_KP)
    matrix = np.vstack([chosen_KP.numpy().T, cost**0.5 * np.eye(size)])
    expected, _ = nnls(matrix, np.concatenate([target_P.numpy(), np.zeros(size)]))
    torch.testing.assert_close(
        chosen.weights_K, torch.from_numpy(expected).float(), rtol=1e-3, atol=1e-4
    )
    missing_P = missing(chosen, signals, target_P)
    slopes_K = chosen_KP @ missing_P - cost * chosen.weights_K.double()
    scale = float(target_P.norm() * all_NP.norm(dim=1).max())
    assert float(slopes_K.abs().max()) <= 1e-5 * scale
    if chosen.stopped_early:
        products_N = (all_NP @ missing_P).index_fill(0, chosen.indices_K, 0)
        assert float(products_N.max()) <= 1e-5 * scale


@pytest.mark.parametrize("keep_rows", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_atoms_are_the_gradients(*, keep_rows: bool, bias: bool) -> None:
    signals = make_signals(50, 3, 7, bias=bias)
    all_NP = gradients(signals)
    target_P = all_NP.sum(dim=0)
    vectors = gradients_of(signals)
    atoms = GradientAtoms(vectors, weighted_sum(vectors), capacity=4, keep_rows=keep_rows)
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


@pytest.mark.parametrize("keep_rows", [False, True])
def test_block_sizes_and_ways_of_computing_do_not_matter(*, keep_rows: bool) -> None:
    signals = make_signals(200, 4, 40)
    expected = gradmatch(signals, 30)
    for block_bytes in (1, 7 * 44 * 8, 128 * 44 * 8, 10**9):
        vectors = gradients_of(signals)
        target = weighted_sum(vectors, block_bytes=block_bytes)
        atoms = GradientAtoms(
            vectors, target, capacity=30, keep_rows=keep_rows, block_bytes=block_bytes
        )
        found = pursue(atoms, ridge=0, is_enough=lambda used: len(used) >= 30)
        assert found.atoms_K.tolist() == expected.indices_K.tolist()
        torch.testing.assert_close(found.weights_K.float(), expected.weights_K)


@pytest.mark.parametrize("balanced", [False, True])
def test_order_of_the_data_does_not_matter(*, balanced: bool) -> None:
    signals = make_signals(400, 4, 20)
    order_N = torch.randperm(400, generator=torch.Generator().manual_seed(1))
    strategy = find_strategy("gradmatch")
    options = strategy.parse_options({})
    straight, shuffled = (
        select(strategy, given_, 80, balanced=balanced, seed=0, options=options)
        for given_ in (signals, signals.take(order_N))
    )
    ids_K, places_K = order_N[shuffled.indices_K].sort()
    assert ids_K.tolist() == straight.indices_K.tolist()
    torch.testing.assert_close(shuffled.weights_K[places_K], straight.weights_K)


def test_half_precision_signals_are_read_in_blocks() -> None:
    signals = make_signals(100)
    half = Signals(signals.errors_NC.half(), signals.features_ND.half(), signals.labels_N)
    exact = Signals(half.errors_NC.float(), half.features_ND.float(), signals.labels_N)
    assert gradmatch(half, 15).indices_K.tolist() == gradmatch(exact, 15).indices_K.tolist()


@pytest.mark.parametrize("budget", [10, 60])
def test_better_than_random_examples_with_their_best_weights(budget: int) -> None:
    # All classes together, and one class as it is seen when the subset is balanced.
    everything = make_signals(400, 4, 20)
    for signals in (everything, everything.of_class(2)):
        all_NP = gradients(signals)
        target_P = all_NP.sum(dim=0)
        found = float(missing(gradmatch(signals, budget), signals, target_P).norm())
        generator = torch.Generator().manual_seed(0)
        for _ in range(5):
            random_K = torch.randperm(len(signals), generator=generator)[:budget]
            assert found < 0.8 * nnls(all_NP[random_K].numpy().T, target_P.numpy())[1]


def test_weights_of_classes_add_up_to_the_whole_gradient() -> None:
    # Each class has room for all its gradient: so has the sum.
    signals = make_signals(400, 4, 20)
    strategy = find_strategy("gradmatch")
    chosen = select(
        strategy, signals, 200, balanced=True, seed=0, options=strategy.parse_options({})
    )
    target_P = gradients(signals).sum(dim=0)
    assert float(missing(chosen, signals, target_P).norm() / target_P.norm()) < 0.05


def test_validation_gradients_are_matched_on_the_scale_of_the_examples() -> None:
    train, held_out = make_signals(300, 4, 20), make_signals(60, 4, 20, seed=1)
    signals = Signals(train.errors_NC, train.features_ND, train.labels_N, validation=held_out)
    chosen = gradmatch(signals, 40, target="validation")
    target_P = gradients(held_out).mean(dim=0) * 300
    matched = float(missing(chosen, signals, target_P).norm())
    assert matched < float(missing(gradmatch(signals, 40), signals, target_P).norm())
    weights, _ = nnls(gradients(train)[chosen.indices_K].numpy().T, target_P.numpy())
    assert chosen.weights_K.tolist() == pytest.approx(weights.tolist(), rel=1e-4)


def test_validation_has_to_be_there() -> None:
    with pytest.raises(SignalsError, match="no validation examples: compute them first"):
        gradmatch(make_signals(4), 1, target="validation")
    strategy = find_strategy("gradmatch")
    needs = strategy.needs_for(strategy.parse_options({"target": "validation"}))
    assert needs == {Need.SIGNALS, Need.VALIDATION}
    assert strategy.default_needs() == {Need.SIGNALS}


def test_equal_examples_need_one_and_say_so() -> None:
    signals = make_signals(1).take(torch.zeros(50, dtype=torch.int64))
    chosen = gradmatch(signals, 20)
    assert chosen.indices_K.tolist() == [0]
    assert chosen.weights_K.tolist() == pytest.approx([50])
    assert "ended with 1 examples of a budget of 20" in chosen.stopped_early


def test_copies_are_never_chosen_twice() -> None:
    once = make_signals(12, 4, 30)
    signals = once.take(torch.arange(60) % 12)
    chosen = gradmatch(signals, 40)
    assert sorted(chosen.indices_K.tolist()) == list(range(12))
    assert chosen.weights_K.tolist() == pytest.approx([5] * 12, rel=1e-4)
    assert "ended with 12 examples of a budget of 40" in chosen.stopped_early


def test_all_examples_where_none_can_be_spared() -> None:
    # 30 gradients in 4 x 31 dimensions: only all of them with weight 1 add up to their sum.
    signals = make_signals(30, 4, 30)
    chosen = gradmatch(signals, 30)
    assert sorted(chosen.indices_K.tolist()) == list(range(30))
    assert chosen.weights_K.tolist() == pytest.approx([1] * 30, rel=1e-3)
    assert not chosen.stopped_early


def test_a_single_example() -> None:
    chosen = gradmatch(make_signals(1), 1)
    assert (chosen.indices_K.tolist(), chosen.weights_K.tolist()) == ([0], [pytest.approx(1)])
    assert not chosen.stopped_early


@pytest.mark.parametrize("mode", ["per_example", "per_batch"])
def test_a_model_without_errors_leaves_nothing_to_match(mode: str) -> None:
    signals = make_signals(10)
    perfect = Signals(torch.zeros(10, 4), signals.features_ND, signals.labels_N)
    options = find_strategy("gradmatch").parse_options({"mode": mode})
    chosen = gradmatch(perfect, 3, **options)
    assert not len(chosen.indices_K)
    assert not len(chosen.weights_K)
    assert "No example was chosen for a budget of 3" in chosen.stopped_early


@pytest.mark.parametrize(("num_examples", "budget"), [(64, 16), (67, 24), (67, 21), (5, 3), (1, 1)])
def test_batches_give_their_examples_with_one_weight(num_examples: int, budget: int) -> None:
    signals = make_signals(num_examples, 4, 20)
    chosen = gradmatch(signals, budget, mode="per_batch", batch_size=8)
    assert len(chosen.indices_K) == budget
    assert len(set(chosen.indices_K.tolist())) == budget
    batches_K = chosen.indices_K // 8
    order = list(dict.fromkeys(batches_K.tolist()))
    all_NP = batch_gradients(signals, 8)
    best, _ = nnls(all_NP[order].numpy().T, gradients(signals).sum(dim=0).numpy())
    for batch, weight in zip(order, best, strict=True):
        members = batches_K == batch
        size, kept = min(8, num_examples - 8 * batch), int(members.sum())
        assert kept == size or batch == order[-1]
        # The examples that are kept stand for their whole batch.
        expected = [weight * size / kept] * kept
        assert chosen.weights_K[members].tolist() == pytest.approx(expected, rel=1e-4)
        first = 8 * batch
        assert chosen.indices_K[members].tolist() == list(range(first, first + kept))


def test_batches_are_pursued_by_their_summed_gradients() -> None:
    signals = make_signals(60, 4, 20)
    all_NP = batch_gradients(signals, 5)
    target_P = all_NP.sum(dim=0)
    chosen = gradmatch(signals, 10, mode="per_batch", batch_size=5)
    first, second = dict.fromkeys((chosen.indices_K // 5).tolist())
    assert first == int((all_NP @ target_P).argmax())
    share = float(all_NP[first] @ target_P / all_NP[first].square().sum())
    products_N = all_NP @ (target_P - share * all_NP[first])
    assert second == int(products_N.argmax())


def test_one_batch_of_everything() -> None:
    chosen = gradmatch(make_signals(20), 20, mode="per_batch", batch_size=1024)
    assert chosen.indices_K.tolist() == list(range(20))
    assert chosen.weights_K.tolist() == pytest.approx([1] * 20)


def test_more_than_fits_is_refused_before_it_is_tried() -> None:
    many = torch.zeros(100_000, 1)
    signals = Signals(many, many, many[:, 0].long())
    with pytest.raises(BudgetError, match=r"choose 50000 of 100000 .* 19 GiB.*balance"):
        gradmatch(signals, 50_000)


def test_global_state_is_untouched() -> None:
    def state() -> tuple[object, ...]:
        return np.geterr(), torch.get_num_threads(), torch.get_default_dtype()

    def numpy_state() -> str:
        return repr(np.random.get_state())  # noqa: NPY002 - the one that is everybody's

    before, torch_draws, numpy_draws = state(), torch.get_rng_state(), numpy_state()
    for name in ("strategies.gradmatch", "gradients.atoms", "solvers.pursuit", "solvers.nnls"):
        # What importing them for the first time does.
        runpy.run_path(str(import_module(f"lipt.coordinator.selection.{name}").__file__))
    gradmatch(make_signals(30), 5)
    assert state() == before
    assert torch.equal(torch.get_rng_state(), torch_draws)
    assert numpy_state() == numpy_draws
