"""Plane scores in machine code. Import it only where numba is installed.

Distances are not negative, and such float32 numbers are in the order of their bits read as
whole numbers, of which a compiler takes the smallest of many at a time.

Shapes: N examples, D features, M draws, n of the examples, S of a sample.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lipt.core.selection.compiling import compiled

# Of the neighbours, how many a sample of the distances should have among it.
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
    """Write the sums of absolute differences from a point."""
    for example in range(len(distances_N)):
        distances_N[example] = abs(first_N[example] - x) + abs(second_N[example] - y)


@compiled
def _first_smallest(bits_N: NDArray[np.int32]) -> int:
    """The lowest id of those with the smallest number."""
    smallest = _LARGEST
    for example in range(len(bits_N)):
        smallest = min(smallest, bits_N[example])
    for example in range(len(bits_N)):
        if bits_N[example] == smallest:
            return example
    return 0


@compiled
def _nth_smallest(bits_n: NDArray[np.int32], rank: int, counts: NDArray[np.int64]) -> np.int32:
    """The number of that rank, from 1: digit by digit, 11 bits and twice 10.

    `counts` is room for 2048 of them.
    """
    found = np.int32(0)
    for shift, width in ((20, 11), (10, 10), (0, 10)):
        counts[:] = 0
        for position in range(len(bits_n)):
            # Those that agree in the digits that are known.
            if bits_n[position] >> np.int32(shift + width) == found:
                counts[(bits_n[position] >> np.int32(shift)) & ((1 << width) - 1)] += 1
        digit = 0
        while rank > counts[digit]:
            rank -= counts[digit]
            digit += 1
        found = np.int32((found << np.int32(width)) | digit)
    return found


@compiled
def _bound(bits_N: NDArray[np.int32], rank: int, counts: NDArray[np.int64]) -> np.int32:
    """What the number of that rank hardly exceeds, by every few of the numbers."""
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
    """Write the ids of the numbers up to the bound; how many these are."""
    count = 0
    for example in range(len(bits_N)):
        if bits_N[example] <= bound:
            ids_N[count] = example
            count += 1
    return count


@compiled
def _share(distance: float, least: float) -> float:
    """(least / distance)^4; 1 for what coincides, where the least is 0, too."""
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
    """Add to the scores what the draws give and take."""
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
        # Nobody is their own neighbour.
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
