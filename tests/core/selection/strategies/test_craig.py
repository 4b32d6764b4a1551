"""CRAIG on lines of points, against plain greedy, and on what went wrong elsewhere."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipt.core.selection.gradients.pairs import proximity
from lipt.core.selection.gradients.vectors import gradients_of
from lipt.core.selection.registry import find_strategy
from lipt.core.selection.select import select
from lipt.core.selection.solvers.levels import StoredLevels
from lipt.core.selection.strategies import craig as module
from lipt.core.selection.strategies.craig import cluster_sizes, craig
from lipt.core.signals.compute import errors_of
from lipt.core.signals.signals import Signals
from tests.core.selection.builders import (
    random_predictions,
    random_subsets,
    signals_of,
    written_out,
)
from tests.properties import at_most

CRAIG = find_strategy("craig")


def on_a_line(*positions: float) -> Signals:
    """One class and one feature; errors are the positions, so gradients are, times [1, 1]."""
    return signals_of(errors_NC=torch.tensor(positions)[:, None])


def bound(signals: Signals, chosen_K: Tensor) -> float:
    """Sum of the distances to the nearest chosen: what CRAIG minimizes."""
    similarity = proximity(gradients_of(signals))
    nearest_N = -similarity.block(chosen_K, slice(None)).max(dim=0).values
    return float(nearest_N.double().sum())


def plain_greedy(signals: Signals, budget: int) -> tuple[list[int], list[int]]:
    """Ids and cluster sizes; every gain before every pick."""
    gradients_NG = written_out(signals)
    distances_NN = torch.linalg.vector_norm(gradients_NG[:, None] - gradients_NG, dim=-1)
    similarity_NN = 2 * distances_NN[0].max() - distances_NN
    best_N = torch.zeros(len(signals), dtype=torch.float64)
    chosen: list[int] = []
    for _ in range(budget):
        gains_N = (similarity_NN - best_N).clamp(min=0).sum(dim=1)
        gains_N[chosen] = -1
        # Two that are left and nearest to each other gain the same, but for rounding.
        gains_N = gains_N.round(decimals=8)
        chosen.append(int(gains_N.argmax()))
        best_N = torch.maximum(best_N, similarity_NN[chosen[-1]])
    owners_N = distances_NN[chosen].argmin(dim=0)
    return chosen, owners_N.bincount(minlength=budget).tolist()


def test_by_hand() -> None:
    # Medians first: 2 is nearest to all of 0, 1, 2, 10, 11. Then 10 saves 8 + 8, 11 saves 7 + 9.
    chosen = craig(on_a_line(0.0, 1.0, 2.0, 10.0, 11.0), 2, seed=0)
    assert chosen.indices_K.tolist() == [2, 3]
    assert chosen.weights_K.tolist() == [3.0, 2.0]
    assert chosen.weights_K.dtype == torch.float32


def test_no_example_is_in_from_the_start() -> None:
    # The original has element 0 of every class in; here it is the one that is far away.
    assert craig(on_a_line(50.0, 1.0, 2.0, 3.0), 1, seed=0).indices_K.tolist() == [2]


def test_the_feature_counts_as_much_as_the_error() -> None:
    # e (x) [h, 1]: (1, 1), (3, 1), (4, 1); by the errors alone all are the same.
    signals = signals_of(torch.tensor([[1.0], [3.0], [4.0]]), torch.ones(3, 1))
    assert craig(signals, 1, seed=0).indices_K.tolist() == [1]
    alone = craig(signals, 1, seed=0, metric="errors")
    assert alone.indices_K.tolist() == [0]
    assert alone.weights_K.tolist() == [3.0]


@settings(max_examples=at_most(40))
@given(num_examples=st.integers(1, 40), seed=st.integers(0, 1000), data=st.data())
def test_is_plain_greedy_on_the_gradients(
    num_examples: int, seed: int, data: st.DataObject
) -> None:
    budget = data.draw(st.integers(1, max(1, num_examples // 2)))
    signals = random_predictions(num_examples, 3, 7, seed=seed)
    chosen = craig(signals, budget, seed=0)
    indices, sizes = plain_greedy(signals, budget)
    assert chosen.indices_K.tolist() == indices
    assert chosen.weights_K.tolist() == sizes


@settings(max_examples=at_most(40))
@given(
    num_examples=st.integers(1, 60),
    solver=st.sampled_from(["auto", "lazy", "stochastic", "partition"]),
    balanced=st.booleans(),
    data=st.data(),
)
def test_weights_sum_to_the_number_of_examples(
    num_examples: int, solver: str, *, balanced: bool, data: st.DataObject
) -> None:
    # DeepCore counts the chosen ones twice: n + k.
    signals = random_predictions(num_examples, 2, 7)
    budget = data.draw(st.integers(2 if num_examples > 1 else 1, num_examples))
    options = CRAIG.parse_options({"solver": solver})
    chosen = select(CRAIG, signals, budget, balanced=balanced, seed=0, options=options)
    assert chosen.weights_K.sum() == num_examples
    assert (chosen.weights_K >= 1).all()


@pytest.mark.parametrize("balanced", [False, True])
def test_better_than_random_on_its_own_objective(balanced: bool) -> None:
    # CORDS maps positions of shuffled rows to unshuffled ids, which is random again.
    signals = random_predictions(300)
    options = CRAIG.parse_options({})
    chosen = select(CRAIG, signals, 30, balanced=balanced, seed=0, options=options)
    draws = [bound(signals, drawn) for drawn in random_subsets(300, 30)]
    assert bound(signals, chosen.indices_K) < 0.93 * min(draws)


def test_duplicates_are_chosen_last_and_the_lowest_id_first() -> None:
    # Three places, four examples at each; every fourth id is at the same place.
    signals = on_a_line(*([0.0, 5.0, 11.0] * 4))
    chosen = craig(signals, 5, seed=0)
    assert chosen.indices_K.tolist() == [1, 2, 0, 3, 4]
    # The duplicates that are in represent themselves, the lowest id everyone else.
    assert chosen.weights_K.tolist() == [3.0, 4.0, 3.0, 1.0, 1.0]


def test_the_whole_budget_keeps_everything_with_weight_one() -> None:
    chosen = craig(random_predictions(30), 30, seed=0)
    assert sorted(chosen.indices_K.tolist()) == list(range(30))
    assert chosen.weights_K.tolist() == [1.0] * 30


@pytest.mark.parametrize("metric", ["gradients", "errors"])
def test_a_model_that_is_hardly_trained_is_greedy_on_its_exact_distances(metric: str) -> None:
    # Differences of 1e-3 of the norms: what products of whole gradients leave of them is
    # rounding, and the choice was as good as a random one.
    generator = torch.Generator().manual_seed(0)
    logits_NC = 0.02 * torch.randn(80, 1000, generator=generator)
    features_ND = 1 + 1e-4 * torch.randn(80, 4, generator=generator)
    labels_N = torch.zeros(80, dtype=torch.int64)
    signals = signals_of(features_ND, errors_of(logits_NC, labels_N))
    rows_NG = written_out(signals) if metric == "gradients" else signals.errors_NC.double()
    distances_NN = torch.cdist(rows_NG, rows_NG, compute_mode="donot_use_mm_for_euclid_dist")
    similarity_NN = 2 * distances_NN[0].max() - distances_NN
    expected = []
    best_N = torch.zeros(80, dtype=torch.float64)
    for _ in range(10):
        expected.append(int((similarity_NN - best_N).clamp(min=0).sum(dim=1).argmax()))
        best_N = torch.maximum(best_N, similarity_NN[expected[-1]])
    chosen = craig(signals, 10, seed=0, metric=metric)  # type: ignore[arg-type]
    assert chosen.indices_K.tolist() == expected
    sizes = distances_NN[expected].argmin(dim=0).bincount(minlength=10)
    assert chosen.weights_K.tolist() == sizes.tolist()


def stored(rows: list[list[int]]) -> StoredLevels:
    matrix = torch.tensor(rows, dtype=torch.int16)
    return StoredLevels(matrix, matrix.sum(dim=1, dtype=torch.int64))


def test_cluster_sizes_by_hand() -> None:
    # On a line at 0, 1, 2, 10: 2 is as near to 1 as to ... nothing else that is chosen.
    points = [0, 1, 2, 10]
    levels = stored([[10 - abs(one - other) for other in points] for one in points])
    assert cluster_sizes(levels, torch.tensor([3, 1])).tolist() == [1, 3]
    # 1 is as near to 0 as to 2: the lowest id has it, in whatever order they were chosen.
    assert cluster_sizes(levels, torch.tensor([0, 2])).tolist() == [2, 2]
    assert cluster_sizes(levels, torch.tensor([2, 0])).tolist() == [2, 2]


def test_rows_that_are_looked_at_one_by_one_come_to_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        module, "row_blocks", lambda count, _: [slice(row, row + 1) for row in range(count)]
    )
    test_cluster_sizes_by_hand()


def test_a_chosen_duplicate_represents_itself() -> None:
    levels = stored([[7] * 5] * 5)
    assert cluster_sizes(levels, torch.tensor([4, 1, 2])).tolist() == [1, 3, 1]


@settings(max_examples=at_most(60))
@given(data=st.data())
def test_everyone_counts_once_with_the_nearest(data: st.DataObject) -> None:
    num_examples = data.draw(st.integers(1, 12))
    budget = data.draw(st.integers(1, num_examples))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    upper = torch.randint(0, 6, (num_examples, num_examples), generator=generator).triu(1)
    rows = (upper + upper.T + 6 * torch.eye(num_examples, dtype=torch.int64)).tolist()
    chosen = torch.randperm(num_examples, generator=generator)[:budget]
    expected = dict.fromkeys(chosen.tolist(), 0)
    for example in range(num_examples):
        nearest = min(expected, key=lambda other: (-rows[other][example], other))
        expected[nearest] += 1
    sizes = cluster_sizes(stored(rows), chosen)
    assert sizes.tolist() == list(expected.values())
    # Not the n + k of counting the chosen ones once more.
    assert int(sizes.sum()) == num_examples


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_the_lowest_level_is_represented_too(dtype: torch.dtype) -> None:
    matrix = torch.zeros(3, 3, dtype=dtype)
    levels = StoredLevels(matrix, matrix.sum(dim=1, dtype=torch.int64))
    assert cluster_sizes(levels, torch.tensor([1])).tolist() == [3]
