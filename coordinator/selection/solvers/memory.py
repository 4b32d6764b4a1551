"""Memory plan: how fine a matrix of all pairs may be, and when there can be none.

Shapes: N examples.
"""

from __future__ import annotations

import math

from lipt.coordinator.selection.solvers.levels import LEVEL_BYTES, Precision

# 52,440 examples with 8-bit levels.
MATRIX_BYTES = 2_750_000_000
# Beyond these a coarser matrix is as good and faster, as reading it is what takes time.
_FINE_BYTES: dict[Precision, int] = {"24-bit": 2**28, "16-bit": 2**30}


def affordable_precision(num_rows: int, num_columns: int, matrix_bytes: int) -> Precision | None:
    """The finest levels whose matrix may be held; None where not even the coarsest may."""
    for precision, level_bytes in LEVEL_BYTES.items():
        limit = min(matrix_bytes, _FINE_BYTES.get(precision, matrix_bytes))
        if num_rows * num_columns * level_bytes <= limit:
            return precision
    return None


def most_examples(matrix_bytes: int) -> int:
    """How many examples can all be compared with each other, by the coarsest levels."""
    return max(1, math.isqrt(matrix_bytes // min(LEVEL_BYTES.values())))
