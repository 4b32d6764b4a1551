"""Facility location: choose examples that together are as similar to all others as possible.

The objective sums each example's similarity with its most similar chosen one. It is monotone and
submodular: greedy reaches 1 - 1/e of the optimum, lazily, as an old gain bounds the new one.
Similarities (times weights, if any) are stored as one of 2^b evenly spaced integer levels, so sums
and ties do not depend on their order. b = 24 has float32's resolution.

Partition greedy (GreeDi) is used where the matrix of all pairs does not fit. Each of P random parts
chooses w of its examples, then K are chosen among these, or the best part's own choice if it is
better. If the union would not fit, parts choose fewer. docs/large-data.md has the bound.

Shapes: N examples, P parts, n and m of the examples, D features, K budget, B evaluated together, M
candidates of the second round, T targets (all examples, except in the second round).
Source: Minoux 1978 (lazy greedy); Mirzasoleiman et al. 2013, "Distributed Submodular Maximization".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.core.diagnosis.findings import ClassRedundancy, Redundancy
from lipt.core.passes import row_blocks
from lipt.core.selection.pairs import PairwiseSimilarity, represented, scaled_cosine, weighted
from lipt.core.selection.vectors import Vectors, can_compile
from lipt.data.groups import members

Partitions = Annotated[
    int,
    Field(ge=0, le=65_536),
    "random parts to choose in first, in two rounds; 1 is exact, 0 is as memory needs",
]
Precision = Literal["24-bit", "16-bit", "8-bit"]

# Type and highest level, finest first. torch has no unsigned 16-bit arithmetic: 15 bits are used.
_TYPES: dict[Precision, tuple[torch.dtype, int]] = {
    "24-bit": (torch.int32, 2**24 - 1),
    "16-bit": (torch.int16, 2**15 - 1),
    "8-bit": (torch.uint8, 2**8 - 1),
}
# 52,440 examples with 8-bit levels.
MATRIX_BYTES = 2_750_000_000
# Above these sizes a coarser matrix is as good, and faster to read.
_FINE_BYTES: dict[Precision, int] = {"24-bit": 2**28, "16-bit": 2**30}
# Sampled examples whose pairwise similarities show the range.
_NUM_OBSERVED = 1024
# A tile of products stays in a CPU's cache.
_CPU_TILE = 512
_GPU_TILE = 4096
# Examples whose bounds are refreshed together.
_BATCH_SIZE = 16


def affordable_precision(num_rows: int, num_columns: int) -> Precision | None:
    """The finest levels whose matrix fits; None if none does."""
    for precision, (dtype, _) in _TYPES.items():
        limit = min(MATRIX_BYTES, _FINE_BYTES.get(precision, MATRIX_BYTES))
        if num_rows * num_columns * dtype.itemsize <= limit:
            return precision
    return None


@dataclass(frozen=True)
class Scale:
    """The levels: 0 for `lowest` and less, `num_levels - 1` for `highest`."""

    lowest: float
    highest: float
    precision: Precision

    def levels(self, similarities_nm: Tensor) -> Tensor:
        """The nearest level of each similarity; overwrites the input."""
        dtype, top = _TYPES[self.precision]
        reach = self.highest - self.lowest
        # With an empty range all similarities are equal.
        factor = top / reach if reach > 0 else 0.0
        similarities_nm.sub_(self.lowest).mul_(factor).round_().clamp_(0, top)
        return similarities_nm.to(dtype)


@dataclass(frozen=True)
class StoredLevels:
    """Levels of N examples with T others, rows contiguous, and the rows' sums, int64."""

    matrix_NT: Tensor
    sums_N: Tensor

    def __len__(self) -> int:
        return len(self.matrix_NT)

    def rows(self, ids_n: Tensor) -> Tensor:
        return self.matrix_NT[ids_n]


@dataclass(frozen=True)
class ComputedLevels:
    """Levels of pairs, computed on request."""

    similarity: PairwiseSimilarity
    scale: Scale

    def __len__(self) -> int:
        return len(self.similarity)

    def rows(self, ids_n: Tensor) -> Tensor:
        row_bytes = 8 * max(len(ids_n), self.similarity.width)
        return torch.cat(
            [
                self.scale.levels(represented(self.similarity, ids_n, columns))
                for columns in row_blocks(len(self), row_bytes)
            ],
            dim=1,
        )


def fit_scale(similarity: PairwiseSimilarity, precision: Precision) -> Scale:
    """Levels between the similarity's bounds; 8-bit ones from the lower quartile of a sample."""
    lowest = similarity.lowest
    if precision == "8-bit":
        step = max(1, len(similarity) // _NUM_OBSERVED)
        observed_n = torch.arange(0, len(similarity), step, device=similarity.device)
        observed = represented(similarity, observed_n, observed_n).flatten().sort().values
        quartile, least = float(observed[len(observed) // 4]), float(observed[0])
        # Where most pairs are equal, the differences lie below the quartile.
        lowest = quartile if quartile < float(observed[-1]) else least
    return Scale(min(lowest, similarity.highest), similarity.highest, precision)


def store_levels(similarity: PairwiseSimilarity, scale: Scale) -> StoredLevels:
    """The levels of all pairs, each pair compared once."""
    num_examples, device = len(similarity), similarity.device
    matrix_NN = _room((num_examples, num_examples), scale.precision, device)
    sums_N = torch.zeros(num_examples, dtype=torch.int64, device=device)
    tiles = _even_tiles(num_examples, device)
    for number, rows in enumerate(tiles):
        for columns in tiles[number:]:
            levels_nm, levels_mn = _both_ways(similarity, scale, rows, columns)
            matrix_NN[rows, columns] = levels_nm
            sums_N[rows] += levels_nm.sum(dim=1, dtype=torch.int64)
            if rows != columns:
                matrix_NN[columns, rows] = levels_mn.contiguous()
                sums_N[columns] += levels_mn.sum(dim=1, dtype=torch.int64)
    return StoredLevels(matrix_NN, sums_N)


def _both_ways(
    similarity: PairwiseSimilarity, scale: Scale, rows: slice, columns: slice
) -> tuple[Tensor, Tensor]:
    similarities_nm = similarity.block(rows, columns)
    if rows == columns:
        # Products below the diagonal round differently, so mutual nearest neighbours would not tie.
        similarities_nm = similarities_nm.triu() + similarities_nm.triu(diagonal=1).T
    if similarity.weights_N is None:
        levels_nm = scale.levels(similarities_nm)
        return levels_nm, levels_nm.T
    return (
        scale.levels(weighted(similarity, similarities_nm, rows)),
        scale.levels(weighted(similarity, similarities_nm.T, columns)),
    )


def store_levels_between(
    similarity: PairwiseSimilarity, scale: Scale, candidates_N: Tensor, targets_T: Tensor
) -> StoredLevels:
    """Levels of candidates with targets, both given by ids."""
    device = similarity.device
    shape = (len(candidates_N), len(targets_T))
    matrix_NT = _room(shape, scale.precision, device)
    sums_N = torch.zeros(len(candidates_N), dtype=torch.int64, device=device)
    for rows in _even_tiles(len(candidates_N), device):
        for columns in _even_tiles(len(targets_T), device):
            levels_nm = scale.levels(
                represented(similarity, candidates_N[rows], targets_T[columns])
            )
            matrix_NT[rows, columns] = levels_nm
            sums_N[rows] += levels_nm.sum(dim=1, dtype=torch.int64)
    return StoredLevels(matrix_NT, sums_N)


def _room(shape: tuple[int, int], precision: Precision, device: torch.device) -> Tensor:
    """An uninitialized matrix; on a CPU numpy's, which uses huge pages."""
    dtype, _ = _TYPES[precision]
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.empty(shape, np.dtype(str(dtype).removeprefix("torch."))))


def _even_tiles(num_rows: int, device: torch.device) -> list[slice]:
    """Slices of nearly equal length, since products of a few rows round differently."""
    count = -(-num_rows // (_CPU_TILE if device.type == "cpu" else _GPU_TILE))
    edges = [num_rows * number // count for number in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def lazy_greedy(levels: StoredLevels, budget: int) -> Tensor:
    """Choose the examples with the largest gains, ties to the lowest id; K int64."""
    if not can_compile(levels.matrix_NT.device):
        return lazy_greedy_torch(levels, budget)
    from lipt.core.selection.compiled_loops import lazy_greedy_compiled  # noqa: PLC0415 - numba

    return torch.from_numpy(
        lazy_greedy_compiled(levels.matrix_NT.numpy(), levels.sums_N.numpy(), budget)
    )


def lazy_greedy_torch(levels: StoredLevels, budget: int) -> Tensor:
    """`lazy_greedy` without compiled code, on any device; bounds are refreshed in batches."""
    matrix_NT = levels.matrix_NT
    device = matrix_NT.device
    bounds_N = levels.sums_N.clone()
    current_N = torch.ones(len(levels), dtype=torch.bool, device=device)
    best_T = torch.zeros_like(matrix_NT[0])
    chosen_K = torch.empty(budget, dtype=torch.int64, device=device)
    for pick in range(budget):
        top = bounds_N.argmax()
        while not current_N[top] and bounds_N[top] > 0:
            stale_N = bounds_N.masked_fill(current_N, -1)
            ids_B = stale_N.topk(min(_BATCH_SIZE, len(levels))).indices
            ids_B = ids_B[stale_N[ids_B] >= 0]
            sums_B = torch.maximum(matrix_NT[ids_B], best_T).sum(dim=1, dtype=torch.int64)
            bounds_N[ids_B] = sums_B - best_T.sum(dtype=torch.int64)
            current_N[ids_B] = True
            top = bounds_N.argmax()
        chosen_K[pick] = top
        torch.maximum(best_T, matrix_NT[top], out=best_T)
        # Below every bound.
        bounds_N[top] = -1
        current_N.fill_(False)
    return chosen_K


def choose_representatives(
    similarity: PairwiseSimilarity, budget: int, *, partitions: int, seed: int
) -> tuple[Tensor, StoredLevels | ComputedLevels]:
    """Choose `budget` of N examples by greedy facility location; K int64 in the order of choice.

    One partition compares all pairs whatever the memory; 0 does so only if they fit in
    `MATRIX_BYTES`. The returned levels assign examples to the chosen ones, and are never 8-bit.
    """
    affordable = affordable_precision(len(similarity), len(similarity))
    computed = ComputedLevels(similarity, fit_scale(similarity, "24-bit"))
    if partitions > 1 or not (partitions or affordable):
        generator = derive_generator(seed, "facility-location-parts")
        chosen_K = partition_greedy(similarity, budget, generator=generator, partitions=partitions)
        return chosen_K, computed
    precision = affordable or "8-bit"
    stored = store_levels(similarity, fit_scale(similarity, precision))
    return lazy_greedy(stored, budget), computed if precision == "8-bit" else stored


def partition_greedy(
    similarity: PairwiseSimilarity,
    budget: int,
    *,
    generator: torch.Generator,
    partitions: int = 0,
) -> Tensor:
    """Choose K examples in two rounds, with matrices up to `MATRIX_BYTES`; K int64."""
    # Maximum number of examples that fit in a square matrix of 8-bit levels.
    num_examples, capacity = len(similarity), max(1, math.isqrt(MATRIX_BYTES))
    num_parts = min(num_examples, max(2, partitions, -(-num_examples // capacity)))
    edges = [num_examples * part // num_parts for part in range(num_parts + 1)]
    shares = [
        budget * stop // num_examples - budget * start // num_examples
        for start, stop in pairwise(edges)
    ]
    wide = min(budget, capacity // num_parts)
    if wide < budget and wide <= max(shares):
        counts = shares
    else:
        counts = [min(stop - start, wide) for start, stop in pairwise(edges)]
    shuffled_N = torch.randperm(num_examples, generator=generator).to(similarity.device)
    parts = [shuffled_N[start:stop].sort().values for start, stop in pairwise(edges)]
    choices = [
        part_n[_greedy(similarity.take(part_n), count)]
        for part_n, count in zip(parts, counts, strict=True)
    ]
    union_M = torch.cat(choices)
    if len(union_M) == budget:
        return union_M
    candidates_M = union_M.sort().values
    num_targets = min(num_examples, max(1, MATRIX_BYTES // len(candidates_M)))
    targets_T = torch.randperm(num_examples, generator=generator)[:num_targets]
    # At least one row is stored, whatever its size.
    precision = affordable_precision(len(candidates_M), num_targets) or "8-bit"
    levels = store_levels_between(
        similarity,
        fit_scale(similarity, precision),
        candidates_M,
        targets_T.sort().values.to(similarity.device),
    )
    places = [torch.searchsorted(candidates_M, choice_n) for choice_n in choices]
    return candidates_M[better_of(levels, lazy_greedy(levels, budget), places)]


def better_of(levels: StoredLevels, chosen_K: Tensor, choices: Sequence[Tensor]) -> Tensor:
    """The chosen rows, or the best part's choice, filled up by them, if that is better."""
    values = [_value(levels, choice_n) for choice_n in choices]
    if max(values) <= _value(levels, chosen_K):
        return chosen_K
    best_n = choices[values.index(max(values))]
    rest_k = chosen_K[~torch.isin(chosen_K, best_n)]
    return torch.cat([best_n, rest_k])[: len(chosen_K)]


def _value(levels: StoredLevels, ids_n: Tensor) -> int:
    best_T = torch.zeros_like(levels.matrix_NT[0])
    row_bytes = len(best_T) * best_T.element_size()
    for rows in row_blocks(len(ids_n), row_bytes):
        torch.maximum(best_T, levels.rows(ids_n[rows]).amax(dim=0), out=best_T)
    return int(best_T.sum(dtype=torch.int64))


def _greedy(part: PairwiseSimilarity, count: int) -> Tensor:
    if count in {0, len(part)}:
        return torch.arange(count, device=part.device)
    precision = affordable_precision(len(part), len(part)) or "8-bit"
    return lazy_greedy(store_levels(part, fit_scale(part, precision)), count)


# Redundancy counts the greedily chosen examples of a class that carry this share of the gain beyond
# the first. Large classes are sampled: sampled examples are farther apart, so it is an upper bound.
CARRIED = 0.9
_MOST_COMPARED = 10_000
_FEWEST_OF_CLASS = 200


def redundancy(
    features_ND: Tensor,
    labels_N: Tensor,
    num_classes: int,
    *,
    generator: torch.Generator,
    most_examples: int = _MOST_COMPARED,
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> Redundancy:
    """The representatives of each class by cosine, counted in samples of large ones."""
    most_of_class = max(_FEWEST_OF_CLASS, most_examples // max(1, num_classes))
    per_class, total, sampled = [], 0, 0
    for label, of_class in enumerate(members(labels_N, num_classes)):
        ids, count = of_class, len(of_class)
        if count > most_of_class:
            ids = ids[torch.randperm(count, generator=generator)[:most_of_class].sort().values]
        examples = math.ceil(count * carrying(features_ND[ids]) / len(ids)) if count else 0
        per_class.append(ClassRedundancy(label=label, count=count, examples_for_90=examples))
        total, sampled = total + examples, sampled + len(ids)
        on_progress(label + 1, num_classes)
    return Redundancy(
        share_for_90=total / len(labels_N),
        examples_for_90=total,
        per_class=tuple(per_class),
        sampled=sampled,
    )


def carrying(features_nD: Tensor) -> int:
    """Number of examples that carry `CARRIED` of the gain; at least one."""
    similarity = scaled_cosine(Vectors(features_nD))
    levels = store_levels(similarity, fit_scale(similarity, "24-bit"))
    best_n = torch.zeros_like(levels.matrix_NT[0])
    values_n = torch.empty(len(levels), dtype=torch.float64)
    for place, row in enumerate(lazy_greedy(levels, len(levels)).tolist()):
        torch.maximum(best_n, levels.matrix_NT[row], out=best_n)
        values_n[place] = best_n.sum(dtype=torch.int64)
    # The first pick's value is no gain: any choice has about as much.
    needed_value = values_n[0] + CARRIED * (values_n[-1] - values_n[0])
    return 1 + int((values_n < needed_value).sum())
