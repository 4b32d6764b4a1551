"""Blocks: rows in parts of bounded size, so that memory stays flat whatever N is."""

from __future__ import annotations

from collections.abc import Iterator

BLOCK_BYTES = 64 * 1024**2


def row_blocks(num_rows: int, row_bytes: int, block_bytes: int = BLOCK_BYTES) -> Iterator[slice]:
    """Consecutive slices that cover `num_rows` rows, in order.

    Args:
        num_rows: how many there are; none give no block.
        row_bytes: what one row takes while it is worked on.
        block_bytes: what a block may take; one row is the least.
    """
    size = max(1, block_bytes // max(1, row_bytes))
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))
