"""Columns: what tensors are in record batches, and the other way round.

Shapes: N rows, D numbers of each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lipt.common.errors import DataError
from lipt.common.imports.extras import import_extra


def pyarrow() -> Any:
    """The module.

    Raises:
        MissingExtraError: it is not installed.
    """
    return import_extra("pyarrow", package="pyarrow", extra="parquet", needed_for="lipt.arrow")


def column_of(batch: Any, name: str) -> Any:
    """A column of a record batch, or of a table in one piece.

    Raises:
        DataError: there is none of that name, or it has nulls.
    """
    if name not in batch.schema.names:
        raise DataError(
            f"the batch has the columns {', '.join(batch.schema.names)}, and no {name!r}. Rename "
            "the one that it is."
        )
    column = batch.column(name)
    if hasattr(column, "combine_chunks"):
        column = column.combine_chunks()
    if column.null_count:
        raise DataError(f"{column.null_count} values of {name!r} are null. Leave out their rows.")
    return column


def whole_numbers(batch: Any, name: str) -> Tensor:
    """A column of whole numbers; N int64.

    Raises:
        DataError: as `column_of`, or it has others.
    """
    column = column_of(batch, name)
    if not pyarrow().types.is_integer(column.type):
        raise DataError(f"the column {name!r} is {column.type}. Make it one of whole numbers.")
    return torch.from_numpy(column.to_numpy(zero_copy_only=False).astype("int64"))


def matrix_of(batch: Any, name: str) -> Tensor:
    """A column of lists of one length; N x D, of the lists' own type.

    Raises:
        DataError: as `column_of`, or it has no lists of numbers, or these differ in length.
    """
    column, types = column_of(batch, name), pyarrow().types
    if not is_list(column.type) or not types.is_primitive(column.type.value_type):
        raise DataError(f"the column {name!r} is {column.type}. Make it lists of numbers.")
    flat = column.flatten()
    num_rows = len(column)
    width = len(flat) // max(1, num_rows)
    # Of the same sum, lists may still differ.
    compute = import_extra(
        "pyarrow.compute", package="pyarrow", extra="parquet", needed_for="lipt.arrow"
    )
    lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False)
    if flat.null_count or bool((lengths != width).any()):
        raise DataError(f"the lists of {name!r} differ in length, or hold nulls. Make them whole.")
    return torch.from_numpy(flat.to_numpy(zero_copy_only=False).copy()).view(num_rows, width)


def lists_of(matrix_ND: Tensor) -> Any:
    """A column of lists, one a row."""
    pa, (num_rows, width) = pyarrow(), matrix_ND.shape
    # Of lists of a fixed size Spark knows nothing.
    offsets = torch.arange(num_rows + 1, dtype=torch.int32) * width
    return pa.ListArray.from_arrays(offsets.numpy(), pa.array(matrix_ND.reshape(-1).numpy()))


def is_list(kind: Any) -> bool:
    """Whether an Arrow type is one of lists."""
    types = pyarrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
