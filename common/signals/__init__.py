"""Signals: errors and features of examples, in passes over the data or ranges of it.

Blocks of rows have a bounded size, so that memory does not grow with N.
"""

from __future__ import annotations

from collections.abc import Iterator

BLOCK_BYTES = 64 * 1024**2
# With more narrow rows at a time, what is computed from them leaves a CPU's cache.
CACHED_ROWS = 4096


def row_blocks(
    num_rows: int, row_bytes: int, block_bytes: int = BLOCK_BYTES, most_rows: int | None = None
) -> Iterator[slice]:
    """Consecutive slices of all rows, each of at most `block_bytes` and at least one row."""
    size = max(1, block_bytes // max(1, row_bytes))
    if most_rows is not None:
        size = min(size, most_rows)
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))
