from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lipt.core.selection.gradients.pairs import (
    PairwiseSimilarity,
    proximity,
    scaled_cosine,
    weighing,
)
from lipt.core.selection.gradients.vectors import Vectors, gradients_of
from lipt.core.selection.solvers import levels
from lipt.core.selection.solvers.levels import (
    ComputedLevels,
    Precision,
    Scale,
    affordable_precision,
    fit_scale,
    most_examples,
    store_levels,
    store_levels_between,
)
from tests.core.selection.builders import random_signals

precisions = pytest.mark.parametrize("precision", ["24-bit", "16-bit", "8-bit"])


def make_vectors(num_examples: int) -> Vectors:
    return gradients_of(random_signals(num_examples))


def everything(similarity: PairwiseSimilarity) -> torch.Tensor:
    return similarity.block(slice(None), slice(None))


def test_levels_by_hand() -> None:
    scale = Scale(-1.0, 1.0, "8-bit")
    # 255 / 2 levels per unit, from -1; what lies outside counts as the end.
    values = torch.tensor([[-2.0, -1.0, 0.5, 1.0, 1.5]])
    assert scale.levels(values).tolist() == [[0, 0, 191, 255, 255]]


def test_no_range_is_one_level() -> None:
    assert Scale(0.0, 0.0, "24-bit").levels(torch.zeros(1, 3)).tolist() == [[0, 0, 0]]


@precisions
@pytest.mark.parametrize("kind", [proximity, scaled_cosine])
def test_levels_are_evenly_spaced_and_symmetric(
    precision: Precision, kind: Callable[[Vectors], PairwiseSimilarity]
) -> None:
    similarity = kind(make_vectors(50))
    scale = fit_scale(similarity, precision)
    stored = store_levels(similarity, scale)
    matrix_NN = stored.matrix_NT
    assert torch.equal(matrix_NN, matrix_NN.T)
    assert torch.equal(stored.sums_N, matrix_NN.sum(dim=1, dtype=torch.int64))
    top = {"24-bit": 2**24 - 1, "16-bit": 2**15 - 1, "8-bit": 255}[precision]
    assert (matrix_NN.diagonal() == top).all()
    step = (scale.highest - scale.lowest) / top
    restored_NN = matrix_NN.double() * step + scale.lowest
    rounding = 0.5 * step + 4e-7 * max(abs(scale.lowest), scale.highest)
    expected_NN = everything(similarity).double().clamp_min(scale.lowest)
    assert (restored_NN - expected_NN).abs().max() <= rounding


@precisions
@pytest.mark.parametrize("tile_size", [1, 7, 19, 50])
def test_tiles_do_not_matter(
    precision: Precision, tile_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    similarity = proximity(make_vectors(50))
    scale = fit_scale(similarity, precision)
    whole = store_levels(similarity, scale).matrix_NT.int()
    monkeypatch.setattr(levels, "_CPU_TILE", tile_size)
    tiled = store_levels(similarity, scale).matrix_NT.int()
    # A product of float32 may differ in its last bit, and a level of 24 bits with it.
    allowed = 8 if precision == "24-bit" else 0
    assert (whole - tiled).abs().max() <= allowed


@precisions
def test_computed_rows_are_the_stored_ones(precision: Precision) -> None:
    similarity = scaled_cosine(make_vectors(30))
    scale = fit_scale(similarity, precision)
    ids_n = torch.tensor([17, 3, 3, 29])
    stored_nN = store_levels(similarity, scale).rows(ids_n).int()
    computed_nN = ComputedLevels(similarity, scale).rows(ids_n).int()
    assert (stored_nN - computed_nN).abs().max() <= (8 if precision == "24-bit" else 0)


def test_levels_between_two_sets() -> None:
    similarity = scaled_cosine(make_vectors(30))
    scale = fit_scale(similarity, "16-bit")
    candidates_N, targets_T = torch.tensor([4, 9]), torch.tensor([0, 9, 20])
    between = store_levels_between(similarity, scale, candidates_N, targets_T)
    whole_NN = store_levels(similarity, scale).matrix_NT
    assert torch.equal(between.matrix_NT, whole_NN[candidates_N][:, targets_T])
    assert between.sums_N.tolist() == between.matrix_NT.long().sum(dim=1).tolist()


def test_eight_bits_start_above_a_quarter_of_the_similarities() -> None:
    similarity = scaled_cosine(make_vectors(40))
    scale = fit_scale(similarity, "8-bit")
    below = int((everything(similarity) < scale.lowest - 1e-6).sum())
    assert abs(below - 40 * 40 // 4) <= 1  # pairs i, j and j, i may round differently
    assert fit_scale(similarity, "16-bit").lowest == 0.0


def test_eight_bits_keep_apart_what_few_pairs_differ_in() -> None:
    vectors = make_vectors(40)
    rows = torch.tensor([0] * 38 + [1, 2])
    similarity = scaled_cosine(vectors[rows])
    levels_NN = store_levels(similarity, fit_scale(similarity, "8-bit")).matrix_NT
    assert len(levels_NN[0].unique()) == 3


def test_distances_are_within_their_bound() -> None:
    similarity = proximity(make_vectors(60))
    values_NN = everything(similarity)
    assert similarity.lowest <= values_NN.min()
    assert values_NN.max() == similarity.highest == 0.0


@pytest.mark.parametrize(
    ("num_examples", "expected"),
    [
        (1_300, "24-bit"),  # a class of ImageNet
        (5_000, "24-bit"),  # a class of CIFAR-10
        (20_000, "16-bit"),  # 0.8 GB
        (50_000, "8-bit"),  # 2.5 GB
        (60_000, None),
    ],
)
def test_the_finest_levels_that_fit(num_examples: int, expected: str | None) -> None:
    assert affordable_precision(num_examples, num_examples, 2_750_000_000) == expected


def test_memory_bounds_the_number_of_examples() -> None:
    assert most_examples(10_000) == 100
    assert affordable_precision(100, 100, 10_000) == "8-bit"
    assert affordable_precision(101, 100, 10_000) is None


@pytest.mark.parametrize("tile", [1, 7, 512])
@precisions
def test_stored_levels_of_weighed_examples_are_those_computed(
    precision: Precision, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Row i is weighed by i: the matrix is not symmetric, though each pair is compared once.
    monkeypatch.setattr(levels, "_CPU_TILE", tile)
    weights_N = torch.linspace(0.1, 1.0, 23)
    similarity = weighing(scaled_cosine(make_vectors(23)), weights_N)
    scale = fit_scale(similarity, precision)
    stored = store_levels(similarity, scale)
    expected = scale.levels(weights_N[:, None] * everything(similarity))
    assert (stored.matrix_NT.long() - expected.long()).abs().max() <= 4
    assert torch.equal(stored.sums_N, stored.matrix_NT.sum(dim=1, dtype=torch.int64))
    ids_N = torch.arange(23)
    computed = ComputedLevels(similarity, scale).rows(ids_N)
    between = store_levels_between(similarity, scale, ids_N, ids_N).matrix_NT
    for other in (computed, between):
        assert (other.long() - expected.long()).abs().max() <= 4
