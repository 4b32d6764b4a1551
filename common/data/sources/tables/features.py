"""Features of a table: numbers as they are, everything else as categories.

A column is of numbers where all its cells are, but for missing ones. They become the example's
`numbers`, which the pipeline standardizes. Every other column is of categories: a cell's code is
its text's digest, salted with its column's name, modulo the number of buckets, so that files that
are opened apart agree without a vocabulary, and one table of embeddings serves all columns. Two
texts of a column share a code with a probability of 1 in so many buckets.

A missing category is a category. A missing number is the mean of the others in its column of the
same file, which is 0 once standardized; with `missing=marked` every column of numbers is followed
by one that is 1 where it was missing, and else 0.

Shapes: N rows, D columns of numbers, C columns of categories.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.data.sources.tables.cells import Cell, Table, is_missing, named_rows
from lipt.common.errors import DataError

_LARGEST = float(np.finfo(np.float32).max)


def read_numbers(
    table: Table, columns: Sequence[str], *, required: Sequence[str]
) -> dict[str, NDArray[np.float32]]:
    """Those of some columns that are of numbers, not-a-number where a cell is missing.

    Args:
        table: where they are.
        columns: their names.
        required: those that have to be of numbers.

    Returns:
        N values by column.

    Raises:
        DataError: a required column has another cell, or a number is infinite.
    """
    parts: dict[str, list[NDArray[np.float32]]] = {name: [] for name in columns}
    begin = 0
    for chunk in table.chunks(columns):
        for name, cells in zip(columns, chunk, strict=True):
            if name not in parts:
                continue
            values = _numbers(cells)
            if values is None and name in required:
                at, cell = next(
                    (at, cell) for at, cell in enumerate(cells) if _numbers([cell]) is None
                )
                raise DataError(
                    f"{table.name}: the column {name} is to be of numbers, but holds {cell!r:.80} "
                    f"in row {begin + at}. Correct the row, or take the column out of numbers="
                )
            if values is None:
                del parts[name]
            else:
                parts[name].append(_float32(values, table, name, begin))
        begin += len(chunk[0]) if chunk else 0
    found = {name: np.concatenate(values) for name, values in parts.items() if values}
    # A column of which nothing is known holds no number.
    return {
        name: values_N
        for name, values_N in found.items()
        if name in required or not np.isnan(values_N).all()
    }


def numbers_tensor(numbers: Sequence[NDArray[np.float32]], *, marked: bool) -> Tensor:
    """Columns of numbers side by side, N x D, with what was missing filled in.

    Args:
        numbers: D columns, not-a-number where it is missing.
        marked: whether each is followed by one that says where it was missing.
    """
    width = 2 if marked else 1
    values_ND = np.empty((len(numbers[0]), width * len(numbers)), np.float32)
    for place, values_N in enumerate(numbers):
        missing_N = np.isnan(values_N)
        known = values_N[~missing_N].astype(np.float64)
        filled_N = np.where(missing_N, known.mean() if len(known) else 0.0, values_N)
        values_ND[:, width * place] = filled_N
        if marked:
            values_ND[:, width * place + 1] = missing_N
    return torch.from_numpy(values_ND)


def categories_tensor(table: Table, columns: Sequence[str], buckets: int) -> Tensor:
    """Columns of categories side by side, N x C, int64 in 0..buckets-1."""
    parts: list[NDArray[np.int64]] = []
    known: list[dict[str, int]] = [{} for _ in columns]
    for chunk in table.chunks(columns):
        codes_NC = np.empty((len(chunk[0]), len(columns)), np.int64)
        for place, (name, cells) in enumerate(zip(columns, chunk, strict=True)):
            codes = known[place]
            for row, cell in enumerate(cells):
                text = "" if is_missing(cell) else str(cell).strip()
                code = codes.get(text)
                if code is None:
                    code = codes[text] = bucket_of(name, text, buckets)
                codes_NC[row, place] = code
        parts.append(codes_NC)
    return torch.from_numpy(np.concatenate(parts))


def bucket_of(salt: str, text: str, buckets: int) -> int:
    """The bucket of a text, the same in every process: its BLAKE2b digest modulo their number."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=_key(salt)).digest()
    return int.from_bytes(digest, "little") % buckets


def _key(salt: str) -> bytes:
    # A key has at most 64 bytes, and a column's name any number.
    return hashlib.blake2b(salt.encode(), digest_size=32).digest()


def _numbers(cells: Sequence[Cell]) -> list[float] | None:
    try:
        return [float(cell) for cell in cells]  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        pass
    try:
        return [float("nan") if is_missing(cell) else float(cell) for cell in cells]  # type: ignore[arg-type]
    except (ValueError, OverflowError):
        return None


def _float32(values: list[float], table: Table, name: str, begin: int) -> NDArray[np.float32]:
    values_N = np.array(values, dtype=np.float64)
    bad = np.flatnonzero(np.abs(values_N) > _LARGEST)
    if len(bad):
        raise DataError(
            f"{table.name}: the column {name} has numbers that are not finite in float32, the "
            f"first {values_N[bad[0]]:g}, in the rows {named_rows((bad + begin).tolist())}. Give "
            f"finite numbers, or take the column as categories: categories={name}"
        )
    return values_N.astype(np.float32)
