"""Lazy greedy in machine code. Import it only where numba is installed.

Shapes: N examples to choose from, T to be represented, K budget.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lipt.core.selection.compiling import compiled


@compiled
def _sift_down(
    heap_N: NDArray[np.int64], size: int, gains_N: NDArray[np.int64], position: int
) -> None:
    """Let the example at `position` sink below all with larger gain, or equal and lower id."""
    example = heap_N[position]
    gain = gains_N[example]
    while True:
        child = 2 * position + 1
        if child >= size:
            break
        other = child + 1
        if other < size:
            left, right = heap_N[child], heap_N[other]
            if gains_N[right] > gains_N[left] or (gains_N[right] == gains_N[left] and right < left):
                child = other
        below = heap_N[child]
        if gains_N[below] < gain or (gains_N[below] == gain and below > example):
            break
        heap_N[position] = below
        position = child
    heap_N[position] = example


@compiled
def _sum_of_highest(row_T: NDArray[np.int32], best_T: NDArray[np.int32]) -> int:
    """Sum of the higher of the two: whole numbers, so the compiler may add many at a time."""
    total = np.int64(0)
    for column in range(len(row_T)):
        total += np.int64(max(row_T[column], best_T[column]))
    return int(total)


@compiled
def lazy_greedy_compiled(
    matrix_NT: NDArray[np.int32], gains_N: NDArray[np.int64], budget: int
) -> NDArray[np.int64]:
    """Ids in the order of choice, by levels of any integer type.

    `gains_N` is what each example gains as the first; overwritten.
    """
    num_examples = len(matrix_NT)
    size = num_examples
    heap_N = np.arange(num_examples)
    for position in range(size // 2 - 1, -1, -1):
        _sift_down(heap_N, size, gains_N, position)
    best_T = np.zeros(matrix_NT.shape[1], matrix_NT.dtype)
    best_sum = 0
    known_at_N = np.zeros(num_examples, np.int64)
    chosen_K = np.empty(budget, np.int64)
    for pick in range(budget):
        top = heap_N[0]
        # Gains only fall: one that is up to date and above all others' old ones is the largest.
        while known_at_N[top] != pick and gains_N[top] > 0:
            gains_N[top] = _sum_of_highest(matrix_NT[top], best_T) - best_sum
            known_at_N[top] = pick
            _sift_down(heap_N, size, gains_N, 0)
            top = heap_N[0]
        chosen_K[pick] = top
        best_sum += gains_N[top]
        size -= 1
        heap_N[0] = heap_N[size]
        if size:
            _sift_down(heap_N, size, gains_N, 0)
        row_T = matrix_NT[top]
        for column in range(len(row_T)):
            best_T[column] = max(best_T[column], row_T[column])
    return chosen_K
