"""Numba loops: lazy greedy, plane scores and products of gradients.

Import it only if `can_compile`; without numba torch gives the same answers. Distances are not
negative, so their float32 bits, read as integers, keep their order.

Shapes: N candidates, T targets, C classes, D features, M draws, n of the examples, S of a sample, K
budget.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function, *, fastmath: bool | set[str] = False) -> Function:
    """Compile the function, sequential, cached on disk if possible."""
    try:
        return cast("Function", numba.njit(cache=True, nogil=True, fastmath=fastmath)(function))
    except RuntimeError:
        return cast("Function", numba.njit(nogil=True, fastmath=fastmath)(function))


@compiled
def _sum_of_highest(row_T: NDArray[np.int32], best_T: NDArray[np.int32]) -> int:
    # Integers, so the compiler may add many at a time.
    total = np.int64(0)
    for column in range(len(row_T)):
        total += np.int64(max(row_T[column], best_T[column]))
    return int(total)


@compiled
def lazy_greedy_compiled(
    matrix_NT: NDArray[np.int32], first_gains_N: NDArray[np.int64], budget: int
) -> NDArray[np.int64]:
    """Ids in the order of choice."""
    heap = [(-first_gains_N[example], example) for example in range(len(matrix_NT))]
    heapq.heapify(heap)
    best_T = np.zeros(matrix_NT.shape[1], matrix_NT.dtype)
    best_sum = 0
    known_at_N = np.zeros(len(matrix_NT), np.int64)
    chosen_K = np.empty(budget, np.int64)
    for pick in range(budget):
        # Gains only fall: a current one above all old ones is the largest.
        while known_at_N[heap[0][1]] != pick and heap[0][0] < 0:
            example = heap[0][1]
            known_at_N[example] = pick
            gain = _sum_of_highest(matrix_NT[example], best_T) - best_sum
            heapq.heapreplace(heap, (-gain, example))
        loss, example = heapq.heappop(heap)
        chosen_K[pick] = example
        best_sum -= loss
        row_T = matrix_NT[example]
        for column in range(len(row_T)):
            best_T[column] = max(best_T[column], row_T[column])
    return chosen_K


# Number of neighbours expected in a sample of the distances.
_SAMPLED_NEIGHBOURS = 64
_LARGEST = np.int32(2**31 - 1)


@compiled
def _measure(
    first_N: NDArray[np.float32],
    second_N: NDArray[np.float32],
    x: np.float32,
    y: np.float32,
    distances_N: NDArray[np.float32],
) -> None:
    for example in range(len(distances_N)):
        distances_N[example] = abs(first_N[example] - x) + abs(second_N[example] - y)


@compiled
def _first_smallest(bits_N: NDArray[np.int32]) -> int:
    smallest = _LARGEST
    for example in range(len(bits_N)):
        smallest = min(smallest, bits_N[example])
    for example in range(len(bits_N)):
        if bits_N[example] == smallest:
            return example
    return 0


@compiled
def _nth_smallest(bits_n: NDArray[np.int32], rank: int, counts: NDArray[np.int64]) -> np.int32:
    """The number with that rank, from 1, digit by digit; `counts` has 2048 entries."""
    prefix = np.int32(0)
    for shift, width in ((20, 11), (10, 10), (0, 10)):
        counts[:] = 0
        for position in range(len(bits_n)):
            # Numbers that agree in the known digits.
            if bits_n[position] >> np.int32(shift + width) == prefix:
                counts[(bits_n[position] >> np.int32(shift)) & ((1 << width) - 1)] += 1
        digit = 0
        while rank > counts[digit]:
            rank -= counts[digit]
            digit += 1
        prefix = np.int32((prefix << np.int32(width)) | digit)
    return prefix


@compiled
def _bound(bits_N: NDArray[np.int32], rank: int, counts: NDArray[np.int64]) -> np.int32:
    """A probable upper bound of the number with that rank, from a sample."""
    step = max(1, rank // _SAMPLED_NEIGHBOURS)
    sample_S = bits_N[::step].copy()
    expected = rank / step
    # Four deviations above, or all.
    sampled_rank = int(expected + 4 * np.sqrt(expected)) + 1
    if sampled_rank >= len(sample_S):
        return _LARGEST
    return _nth_smallest(sample_S, sampled_rank, counts)


@compiled
def _keep(bits_N: NDArray[np.int32], bound: np.int32, ids_N: NDArray[np.int64]) -> int:
    count = 0
    for example in range(len(bits_N)):
        if bits_N[example] <= bound:
            ids_N[count] = example
            count += 1
    return count


@compiled
def _share(distance: float, least: float) -> float:
    """(least / distance)^4; 1 where both are 0."""
    ratio = 1.0 if distance == least else least / distance
    return (ratio * ratio) * (ratio * ratio)


@compiled
def plane_scores_compiled(
    columns_DN: NDArray[np.float32],
    features_M2: NDArray[np.int64],
    points_M2: NDArray[np.float32],
    num_neighbours: int,
    scores_N: NDArray[np.float64],
) -> None:
    """Add the draws' gains and penalties to the scores."""
    num_examples = columns_DN.shape[1]
    distances_N = np.empty(num_examples, np.float32)
    bits_N = distances_N.view(np.int32)
    ids_N = np.empty(num_examples, np.int64)
    counts = np.empty(2048, np.int64)
    for draw in range(len(features_M2)):
        first_N = columns_DN[features_M2[draw, 0]]
        second_N = columns_DN[features_M2[draw, 1]]
        _measure(first_N, second_N, points_M2[draw, 0], points_M2[draw, 1], distances_N)
        covering = _first_smallest(bits_N)
        scores_N[covering] += 1.0
        if num_neighbours == 0:
            continue
        _measure(first_N, second_N, first_N[covering], second_N[covering], distances_N)
        # Exclude the example itself.
        distances_N[covering] = np.inf
        num_kept = _keep(bits_N, _bound(bits_N, num_neighbours, counts), ids_N)
        if num_kept < num_neighbours:
            num_kept = _keep(bits_N, _LARGEST, ids_N)
        kept_n = ids_N[:num_kept]
        farthest = _nth_smallest(bits_N[kept_n], num_neighbours, counts)
        least = np.float64(distances_N[kept_n].min())
        total = 0.0
        for example in kept_n:
            if bits_N[example] <= farthest:
                total += _share(np.float64(distances_N[example]), least)
        for example in kept_n:
            if bits_N[example] <= farthest:
                scores_N[example] -= _share(np.float64(distances_N[example]), least) / total


# Sums may be reordered for vectorization: gains are compared in float32, which hides the order.
@partial(compiled, fastmath={"reassoc", "contract", "nsz"})
def alignments_compiled(
    errors_NC: NDArray[np.float32],
    features_ND: NDArray[np.float32],
    weight_CD: NDArray[np.float64],
    bias_C: NDArray[np.float64],
) -> NDArray[np.float64]:
    """sum_c e_c (w_c . h + b_c) of every example, summed in float64; N."""
    num_examples, num_features = features_ND.shape
    aligned_N = np.empty(num_examples, np.float64)
    for example in range(num_examples):
        total = 0.0
        for label in range(len(bias_C)):
            product = 0.0
            for feature in range(num_features):
                product += weight_CD[label, feature] * np.float64(features_ND[example, feature])
            total += np.float64(errors_NC[example, label]) * (product + bias_C[label])
        aligned_N[example] = total
    return aligned_N
