from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.core.selection.compiled_loops import lazy_greedy_compiled
from lipt.core.selection.pairs import PairwiseSimilarity, proximity, scaled_cosine, with_weights
from lipt.core.selection.solvers import representatives
from lipt.core.selection.solvers.representatives import (
    ComputedLevels,
    Precision,
    Scale,
    StoredLevels,
    affordable_precision,
    better_of,
    carrying,
    choose_representatives,
    fit_scale,
    lazy_greedy,
    lazy_greedy_torch,
    partition_greedy,
    redundancy,
    store_levels,
    store_levels_between,
)
from lipt.core.selection.vectors import Vectors, gradients_of
from tests.core.selection.builders import plain_greedy, random_signals

precisions = pytest.mark.parametrize("precision", ["24-bit", "16-bit", "8-bit"])


def make_vectors(num_examples: int, seed: int = 0) -> Vectors:
    return gradients_of(random_signals(num_examples, 3, 8, seed=seed))


def make_similarity(num_examples: int, seed: int = 0) -> PairwiseSimilarity:
    return scaled_cosine(make_vectors(num_examples, seed))


def everything(similarity: PairwiseSimilarity) -> Tensor:
    return similarity.block(slice(None), slice(None))


def stored(matrix_NT: Tensor) -> StoredLevels:
    return StoredLevels(matrix_NT, matrix_NT.sum(dim=1, dtype=torch.int64))


def test_levels_by_hand() -> None:
    scale = Scale(-1.0, 1.0, "8-bit")
    # 255 / 2 levels per unit, from -1; what lies outside counts as the end.
    values = torch.tensor([[-2.0, -1.0, 0.5, 1.0, 1.5]])
    assert scale.levels(values).tolist() == [[0, 0, 191, 255, 255]]
    assert Scale(0.0, 0.0, "24-bit").levels(torch.zeros(1, 3)).tolist() == [[0, 0, 0]]


@precisions
@pytest.mark.parametrize("kind", [proximity, scaled_cosine])
def test_levels_are_evenly_spaced_and_symmetric(
    precision: Precision, kind: Callable[[Vectors], PairwiseSimilarity]
) -> None:
    similarity = kind(make_vectors(50))
    scale = fit_scale(similarity, precision)
    found = store_levels(similarity, scale)
    matrix_NN = found.matrix_NT
    assert torch.equal(matrix_NN, matrix_NN.T)
    assert torch.equal(found.sums_N, matrix_NN.sum(dim=1, dtype=torch.int64))
    top = {"24-bit": 2**24 - 1, "16-bit": 2**15 - 1, "8-bit": 255}[precision]
    assert (matrix_NN.diagonal() == top).all()
    step = (scale.highest - scale.lowest) / top
    restored_NN = matrix_NN.double() * step + scale.lowest
    rounding = 0.5 * step + 4e-7 * max(abs(scale.lowest), scale.highest)
    expected_NN = everything(similarity).double().clamp_min(scale.lowest)
    assert (restored_NN - expected_NN).abs().max() <= rounding


@pytest.mark.parametrize("tile", [1, 7, 512])
@precisions
def test_levels_of_weighted_examples_do_not_depend_on_tiles(
    precision: Precision, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Row i is weighed by i: the matrix is not symmetric, though each pair is compared once.
    monkeypatch.setattr(representatives, "_CPU_TILE", tile)
    weights_N = torch.linspace(0.1, 1.0, 23)
    similarity = with_weights(scaled_cosine(make_vectors(23)), weights_N)
    scale = fit_scale(similarity, precision)
    found = store_levels(similarity, scale)
    expected = scale.levels(weights_N[:, None] * everything(similarity))
    assert (found.matrix_NT.long() - expected.long()).abs().max() <= 4
    assert torch.equal(found.sums_N, found.matrix_NT.sum(dim=1, dtype=torch.int64))
    ids_N = torch.arange(23)
    computed = ComputedLevels(similarity, scale).rows(ids_N)
    between = store_levels_between(similarity, scale, ids_N, ids_N).matrix_NT
    for other in (computed, between):
        assert (other.long() - expected.long()).abs().max() <= 4


def test_eight_bits_start_above_a_quarter_of_the_similarities() -> None:
    similarity = make_similarity(40)
    scale = fit_scale(similarity, "8-bit")
    below = int((everything(similarity) < scale.lowest - 1e-6).sum())
    assert abs(below - 40 * 40 // 4) <= 1  # pairs i, j and j, i may round differently
    assert fit_scale(similarity, "16-bit").lowest == 0.0
    # Where most pairs are the same, the few others are told apart.
    rows = torch.tensor([0] * 38 + [1, 2])
    similarity = scaled_cosine(make_vectors(40)[rows])
    levels_NN = store_levels(similarity, fit_scale(similarity, "8-bit")).matrix_NT
    assert len(levels_NN[0].unique()) == 3


@pytest.mark.parametrize(
    ("num_examples", "matrix_bytes", "expected"),
    [
        (5_000, 2_750_000_000, "24-bit"),  # a class of CIFAR-10
        (20_000, 2_750_000_000, "16-bit"),  # 0.8 GB
        (50_000, 2_750_000_000, "8-bit"),  # 2.5 GB
        (60_000, 2_750_000_000, None),
        (100, 10_000, "8-bit"),
        (101, 10_000, None),
    ],
)
def test_the_finest_levels_that_fit(
    num_examples: int, matrix_bytes: int, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(representatives, "MATRIX_BYTES", matrix_bytes)
    assert affordable_precision(num_examples, num_examples) == expected


def with_numba(levels: StoredLevels, budget: int) -> list[int]:
    return lazy_greedy_compiled(levels.matrix_NT.numpy(), levels.sums_N.numpy(), budget).tolist()


@given(data=st.data())
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_both_paths_equal_plain_greedy_with_ties(dtype: torch.dtype, data: st.DataObject) -> None:
    num_examples = data.draw(st.integers(1, 24))
    num_targets = data.draw(st.integers(1, 24))
    # Few levels give many ties; the highest ones would overflow what is narrower than int64.
    highest = data.draw(st.sampled_from([0, 1, 3, 255, 2**15 - 1, 2**24 - 1]))
    highest = min(highest, torch.iinfo(dtype).max)
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    matrix_NT = torch.randint(0, highest + 1, (num_examples, num_targets), generator=generator)
    budget = data.draw(st.integers(1, num_examples))
    levels = stored(matrix_NT.to(dtype))
    expected = plain_greedy(matrix_NT, budget)
    assert lazy_greedy_torch(levels, budget).tolist() == expected
    assert with_numba(levels, budget) == expected


def test_sums_beyond_32_bits_are_exact() -> None:
    # Two rows of 2^24 - 1 that differ by 1 in one of 300 places: 2^32 apart from 32 bits.
    matrix = torch.full((2, 300), 2**24 - 1, dtype=torch.int32)
    matrix[0, 5] -= 1
    levels = stored(matrix)
    assert levels.sums_N.tolist() == [300 * (2**24 - 1) - 1, 300 * (2**24 - 1)]
    assert lazy_greedy_torch(levels, 1).tolist() == with_numba(levels, 1) == [1]


def test_torch_is_used_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    levels = stored(torch.randint(0, 100, (30, 30), generator=generator).int())
    expected = lazy_greedy(levels, 12)
    assert torch.equal(lazy_greedy(levels, 12), expected)  # nothing that is given is changed
    monkeypatch.setattr(representatives, "can_compile", lambda _: False)
    assert torch.equal(lazy_greedy(levels, 12), expected)


def choose(
    similarity: PairwiseSimilarity, budget: int, *, partitions: int = 0, matrix_bytes: int = 10**6
) -> tuple[Tensor, StoredLevels | ComputedLevels]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(representatives, "MATRIX_BYTES", matrix_bytes)
        return choose_representatives(similarity, budget, partitions=partitions, seed=0)


def greedy_among(matrix_NN: Tensor, ids: list[int], targets: list[int], budget: int) -> list[int]:
    return [ids[row] for row in plain_greedy(matrix_NN[ids][:, targets], budget)]


def test_memory_decides_between_all_pairs_and_partitions() -> None:
    similarity = make_similarity(40)
    whole = choose_representatives(similarity, 5, partitions=1, seed=0)
    parts, _ = choose(similarity, 5, partitions=2, matrix_bytes=1599)
    for partitions, matrix_bytes, expected, computed in [
        *((0, 10**6, whole[0], False), (1, 10**6, whole[0], False)),
        *((0, 1599, parts, True), (2, 10**6, choose(similarity, 5, partitions=2)[0], True)),
    ]:
        chosen_K, levels = choose(similarity, 5, partitions=partitions, matrix_bytes=matrix_bytes)
        assert torch.equal(chosen_K, expected)
        assert isinstance(levels, ComputedLevels) == computed
    assert not torch.equal(parts, choose(similarity, 5, partitions=3)[0])


def test_representatives_are_assigned_at_full_precision() -> None:
    similarity = make_similarity(300)
    # One byte a pair: chosen by 8 bits, of which no finer levels fit.
    chosen_K, levels = choose(similarity, 60, matrix_bytes=90_000)
    nearest_N = levels.rows(chosen_K).argmax(dim=0)
    assert torch.equal(nearest_N, similarity.block(slice(None), chosen_K).argmax(dim=1))
    eight = store_levels(similarity, fit_scale(similarity, "8-bit")).rows(chosen_K)
    assert ((eight == eight.max(dim=0).values).sum(dim=0) > 1).any()


def solve(similarity: PairwiseSimilarity, budget: int, partitions: int, seed: int = 0) -> Tensor:
    generator = derive_generator(seed, "test")
    return partition_greedy(similarity, budget, generator=generator, partitions=partitions)


def parts_of(num_examples: int, partitions: int) -> list[list[int]]:
    """The parts that `solve` draws: even slices of one shuffle."""
    order = torch.randperm(num_examples, generator=derive_generator(0, "test")).tolist()
    edges = [num_examples * part // partitions for part in range(partitions + 1)]
    return [sorted(order[start:stop]) for start, stop in pairwise(edges)]


@pytest.mark.parametrize(
    ("num_examples", "budget", "partitions"), [(60, 7, 2), (61, 5, 4), (40, 10, 4)]
)
def test_partition_greedy_has_a_second_round(
    num_examples: int, budget: int, partitions: int
) -> None:
    similarity = make_similarity(num_examples)
    matrix_NN = everything(similarity).double()
    union = [
        example
        for part in parts_of(num_examples, partitions)
        for example in greedy_among(matrix_NN, part, part, budget)
    ]
    expected = greedy_among(matrix_NN, sorted(union), list(range(num_examples)), budget)
    assert solve(similarity, budget, partitions).tolist() == expected
    assert solve(similarity, budget, partitions, seed=1).tolist() != expected or budget == 10


@pytest.mark.parametrize(
    ("rows", "second", "parts", "expected"),
    [
        # A greedy choice of two takes row 2, which gains 13 alone, and then row 0: 20 of 24.
        ([[6, 6, 0, 0], [0, 0, 6, 6], [0, 5, 5, 3]], [2, 0], [[1, 2], [1, 0]], [1, 0]),
        ([[6, 6, 0, 0], [0, 0, 6, 6], [0, 5, 5, 3]], [2, 0], [[1, 2]], [2, 0]),
        # A better part that chose fewer is filled up, by none that are in it already.
        ([[9, 9], [0, 1], [1, 0], [2, 2]], [1, 2, 3], [[0]], [0, 1, 2]),
        ([[0, 9], [0, 1], [1, 0], [9, 0]], [0, 1, 2], [[3, 0]], [3, 0, 1]),
    ],
)
def test_a_partition_better_than_the_second_round_is_kept(
    rows: list[list[int]], second: list[int], parts: list[list[int]], expected: list[int]
) -> None:
    levels = stored(torch.tensor(rows, dtype=torch.int32))
    choices = [torch.tensor(part) for part in parts]
    assert better_of(levels, torch.tensor(second), choices).tolist() == expected


@pytest.mark.parametrize(("num_examples", "budget"), [(60, 6), (62, 6), (100, 30), (100, 90)])
def test_partition_greedy_respects_its_memory(
    num_examples: int, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def remembering(levels: StoredLevels, count: int) -> Tensor:
        sizes.append(levels.matrix_NT.numel() * levels.matrix_NT.element_size())
        return lazy_greedy(levels, count)

    monkeypatch.setattr(representatives, "lazy_greedy", remembering)
    chosen_K, _ = choose(make_similarity(num_examples), budget, matrix_bytes=900)
    assert len(chosen_K.unique()) == budget
    # Parts of at most 30, and a second round only where it has something to choose from.
    num_parts = -(-num_examples // 30)
    assert len(sizes) == num_parts + (budget < 30)
    assert max(sizes) <= 900


def test_redundancy_counts_duplicates_once() -> None:
    # Of each class ten directions, every one ten times: nine picks carry 8/9 of what is
    # gained beyond the first, and the tenth all.
    features_ND = torch.eye(10).repeat(20, 1)
    labels_N = torch.arange(2).repeat_interleave(100)
    found = redundancy(features_ND, labels_N, 3, generator=torch.Generator())
    per_class = [(one.count, one.examples_for_90) for one in found.per_class]
    assert per_class == [(100, 10), (100, 10), (0, 0)]
    assert (found.examples_for_90, found.share_for_90, found.sampled) == (20, 0.1, 200)
    assert carrying(torch.ones(30, 4)) == 1
    assert carrying(torch.ones(1, 4)) == 1


def test_redundancy_equals_plain_greedy() -> None:
    points = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    unit = torch.nn.functional.normalize(points.double(), dim=1)
    similar = (1 + unit @ unit.T) / 2
    order = plain_greedy(similar, 40)
    values = [float(similar[order[: size + 1]].amax(dim=0).sum()) for size in range(40)]
    wanted = values[0] + 0.9 * (values[-1] - values[0])
    expected = 1 + sum(value < wanted - 1e-4 for value in values)
    assert carrying(points) == expected
    assert expected < 38
    features_ND = torch.randn(1000, 5, generator=torch.Generator().manual_seed(0))
    labels_N = torch.zeros(1000, dtype=torch.int64)
    generator = torch.Generator().manual_seed(0)
    found = redundancy(features_ND, labels_N, 1, generator=generator, most_examples=250)
    assert found.sampled == 250
    assert found.examples_for_90 % 4 == 0
    assert 0 < found.examples_for_90 < 1000
