import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from lipt.core.selection.select import find_strategy, select
from lipt.core.selection.solvers.representatives import StoredLevels
from lipt.core.selection.strategies import facility_location as module
from lipt.core.selection.strategies.facility_location import (
    cluster_sizes,
    craig,
    facility_location,
    mean_curvatures,
    num_neighbours,
    precondition,
    subzerocore,
)
from lipt.core.selection.vectors import Space, with_bias
from lipt.core.signals.compute import errors_of
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import (
    plain_greedy,
    random_predictions,
    random_signals,
    signals_of,
    written_out,
)
from tests.properties import at_most


def similarities(signals: Signals, space: Space) -> Tensor:
    directions_NG = functional.normalize(written_out(signals, space))
    return (1 + directions_NG @ directions_NG.T) / 2


@pytest.mark.parametrize("space", ["gradients", "features"])
def test_facility_location_is_plain_greedy(space: Space) -> None:
    signals = random_signals(70)
    chosen = facility_location(signals, 15, seed=0, space=space)
    assert chosen.indices_K.tolist() == plain_greedy(similarities(signals, space), 15)


def test_partitions_are_drawn_by_the_seed() -> None:
    signals = random_signals(60)
    one, same, other = (
        facility_location(signals, 6, seed=seed, partitions=3).indices_K.tolist()
        for seed in (0, 0, 1)
    )
    assert one == same
    assert one != other


def weighted(signals: Signals, budget: int) -> Tensor:
    """Row j: weight of j times its similarity to all, with everything sorted and written out."""
    size = len(signals)
    count = next(n for n in range(1, size) if 1 - uncovered(size, budget, n) >= 0.6)
    similarity_NN = similarities(signals, "features")
    # The first in each sorted row is the example itself.
    radii_N = (1 - similarity_NN).sort(dim=1).values[:, count]
    z_N = (radii_N - radii_N.mean()) / radii_N.std(correction=0)
    return (-z_N.square() / 2).exp()[:, None] * similarity_NN


def uncovered(num_examples: int, budget: int, count: int) -> float:
    ways = math.comb(num_examples - 1 - count, budget)
    return ways / math.comb(num_examples - 1, budget)


def test_neighbour_counts_by_hand() -> None:
    # 387/499 386/498 385/497 384/496 = 0.361, and 0.466 without the last.
    assert num_neighbours(500, 112, 0.6) == 4
    # 9/10 8/9 7/8 ... = (10 - n) / 10
    assert (num_neighbours(11, 1, 0.6), num_neighbours(11, 1, 0.05)) == (6, 1)
    # One is left out, and all the others are chosen; nothing is left out.
    assert [num_neighbours(11, budget, 0.6) for budget in (10, 11)] == [1, 1]
    assert (num_neighbours(2, 1, 0.6), num_neighbours(1, 1, 0.6)) == (1, 0)


@pytest.mark.parametrize("budget", [1, 8, 30])
def test_subzerocore_is_plain_greedy(budget: int) -> None:
    for seed in range(3):
        signals = random_signals(70, seed=seed)
        chosen = subzerocore(signals, budget, seed=0).indices_K
        assert chosen.tolist() == plain_greedy(weighted(signals, budget), budget)


def greedy_on(rows_NG: Tensor, budget: int) -> tuple[list[int], list[int]]:
    distances_NN = torch.cdist(rows_NG, rows_NG, compute_mode="donot_use_mm_for_euclid_dist")
    chosen = plain_greedy(2 * distances_NN[0].max() - distances_NN, budget)
    return chosen, distances_NN[chosen].argmin(dim=0).bincount(minlength=budget).tolist()


@settings(max_examples=at_most(40))
@given(num_examples=st.integers(3, 40), seed=st.integers(0, 1000), data=st.data())
def test_craig_is_greedy_on_gradients(num_examples: int, seed: int, data: st.DataObject) -> None:
    budget = data.draw(st.integers(1, max(1, num_examples // 2)))
    signals = random_predictions(num_examples, 3, 7, seed=seed)
    chosen = craig(signals, budget, seed=0)
    indices, sizes = greedy_on(written_out(signals), budget)
    assert chosen.indices_K.tolist() == indices
    assert chosen.weights_K.tolist() == sizes


def test_craig_is_exact_for_a_hardly_trained_model() -> None:
    # Differences of 1e-3 of the norms: what products of whole gradients leave of them is
    # rounding, and the choice was as good as a random one.
    generator = torch.Generator().manual_seed(0)
    logits_NC = 0.02 * torch.randn(80, 1000, generator=generator)
    features_ND = 1 + 1e-4 * torch.randn(80, 4, generator=generator)
    labels_N = torch.zeros(80, dtype=torch.int64)
    signals = signals_of(features_ND, errors_of(logits_NC, labels_N))
    chosen = craig(signals, 10, seed=0)
    found = chosen.indices_K.tolist(), chosen.weights_K.tolist()
    assert found == greedy_on(written_out(signals), 10)


def stored(rows: list[list[int]]) -> StoredLevels:
    matrix = torch.tensor(rows, dtype=torch.int16)
    return StoredLevels(matrix, matrix.sum(dim=1, dtype=torch.int64))


def test_a_chosen_duplicate_represents_itself() -> None:
    levels = stored([[7] * 5] * 5)
    assert cluster_sizes(levels, torch.tensor([4, 1, 2])).tolist() == [1, 3, 1]


@settings(max_examples=at_most(60))
@given(data=st.data())
def test_cluster_sizes_count_examples_by_representative(data: st.DataObject) -> None:
    num_examples = data.draw(st.integers(1, 12))
    budget = data.draw(st.integers(1, num_examples))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    upper = torch.randint(0, 6, (num_examples, num_examples), generator=generator).triu(1)
    rows = (upper + upper.T + 6 * torch.eye(num_examples, dtype=torch.int64)).tolist()
    chosen = torch.randperm(num_examples, generator=generator)[:budget]
    expected = dict.fromkeys(chosen.tolist(), 0)
    for example in range(num_examples):
        expected[min(expected, key=lambda other: (-rows[other][example], other))] += 1
    assert cluster_sizes(stored(rows), chosen).tolist() == list(expected.values())
    with pytest.MonkeyPatch.context() as patch:
        one_by_one = [slice(row, row + 1) for row in range(budget)]
        patch.setattr(module, "row_blocks", lambda *_: one_by_one)
        assert cluster_sizes(stored(rows), chosen).tolist() == list(expected.values())


ADACORE = find_strategy("adacore")


def test_preconditioned_craig_is_craig_on_scaled_gradients() -> None:
    signals = random_predictions(30, 3, 5)
    scaled = precondition(signals, damping=0.5)
    by_class_C, by_feature_F = (means_n.float() for means_n in mean_curvatures(signals))
    by_class_C, by_feature_F = by_class_C / by_class_C.mean(), by_feature_F / by_feature_F.mean()
    assert not scaled.has_bias
    assert scaled.features_ND.shape == (30, 6)
    features_NF = with_bias(signals.features_ND, 1.0)
    gradients = signals.errors_NC[:, :, None] * features_NF[:, None, :]
    expected = gradients / ((by_class_C + 0.5)[:, None] * (by_feature_F + 0.5))
    torch.testing.assert_close(
        scaled.errors_NC[:, :, None] * scaled.features_ND[:, None, :], expected
    )
    signals = random_predictions(60, 3, 5)
    chosen = select(ADACORE, signals, 9, balanced=False, seed=4)
    expected = craig(precondition(signals), 9, seed=4)
    assert chosen.indices_K.tolist() == sorted(expected.indices_K.tolist())
    assert chosen.indices_K.tolist() != sorted(craig(signals, 9, seed=4).indices_K.tolist())
    assert chosen.weights_K.sum() == 60


@settings(max_examples=at_most(15))
@given(
    num_examples=st.integers(1, 6),
    num_classes=st.integers(2, 4),
    num_features=st.integers(1, 4),
    has_bias=st.booleans(),
)
def test_curvatures_are_means_of_autograd_s_diagonal(
    num_examples: int, num_classes: int, num_features: int, *, has_bias: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    features_ND = torch.randn(num_examples, num_features, generator=generator)
    labels_N = torch.randint(0, num_classes, (num_examples,), generator=generator)
    ones_N1 = torch.ones(num_examples, int(has_bias))
    features_NF = torch.cat([features_ND, ones_N1], dim=1).double()
    weight_CF = torch.randn(
        num_classes, features_NF.shape[1], generator=generator, dtype=torch.float64
    )

    def loss(weights: Tensor) -> Tensor:
        return functional.cross_entropy(features_NF @ weights.view_as(weight_CF).T, labels_N)

    hessian = torch.autograd.functional.hessian(loss, weight_CF.flatten())
    assert isinstance(hessian, Tensor)
    diagonal_CF = hessian.diagonal().view_as(weight_CF)
    errors_NC = errors_of(features_NF @ weight_CF.T, labels_N)
    by_class_C, by_feature_F = mean_curvatures(
        Signals(errors_NC, features_ND, labels_N, has_bias=has_bias)
    )
    # Of an error near 1, float32 leaves few digits of the difference from 1.
    torch.testing.assert_close(by_class_C, diagonal_CF.mean(dim=1), rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(by_feature_F, diagonal_CF.mean(dim=0), rtol=1e-4, atol=1e-7)
