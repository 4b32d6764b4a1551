"""Loading of columns: examples that are no images made into a data set, every value looked at.

Shapes: N examples, B of a block, V values of one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lipt.common.data.dataset import Dataset
from lipt.common.data.fingerprinting import fingerprint
from lipt.common.data.sources.rows import ColumnRows, require_labels
from lipt.common.errors import ConfigError, DataError
from lipt.common.inputs.columns import Column
from lipt.common.inputs.specs import ColumnsSpec

# Of values that are looked at together: what comes of them takes memory as well.
_BLOCK_VALUES = 2**24


def load_columns(
    rows: ColumnRows, *, image_size: int | None, read_all: Callable[[], str] | None = None
) -> Dataset:
    """Check every value and make a data set of them.

    Args:
        rows: where the examples come from.
        image_size: has to be None.
        read_all: as in `Dataset`.

    Raises:
        ConfigError: an image size was asked for, or the columns cannot be given together.
        DataError: there are no rows, a value is not finite or outside its column's range, or a
            label is no class's number.
    """
    if image_size is not None:
        raise ConfigError(
            f"{rows.source} holds no images, so there is none to scale to {image_size} pixels. "
            "Leave the image size out."
        )
    if len(rows) == 0:
        raise DataError(f"{rows.source} holds no examples. Open data with at least one per class.")
    for column in rows.columns:
        _require_values(rows.tensors[column.name], column, len(rows), rows.source)
    require_labels(rows.labels_N, len(rows.class_names), rows.source)
    num_classes = len(rows.class_names)
    digest = fingerprint(rows.labels_N, num_classes, rows.raw, targets=rows.targets)
    return Dataset(rows, digest, ColumnsSpec(rows.columns), stamp=rows.stamp, read_all=read_all)


def _require_values(values_N: Tensor, column: Column, num_rows: int, source: str) -> None:
    if values_N.dtype != column.type.dtype or tuple(values_N.shape) != (num_rows, *column.shape):
        raise DataError(
            f"{source}: column {column} of {num_rows} rows holds {values_N.dtype} of shape "
            f"{tuple(values_N.shape)}. Read it as what it is."
        )
    flat_NV = values_N.reshape(num_rows, -1)
    if values_N.is_floating_point():
        bad_N = _each(flat_NV, lambda block_BV: ~block_BV.isfinite())
        what = "a value that is not finite"
        remedy = "Fill in or remove what is missing."
    elif column.num_values:
        bad_N = _each(flat_NV, lambda block_BV: (block_BV < 0) | (block_BV >= column.num_values))
        what = f"a value outside 0..{column.num_values - 1}"
        remedy = "Number the values from 0, and say how many there are."
    else:
        return
    if bool(bad_N.any()):
        row = int(bad_N.to(torch.uint8).argmax())
        named = f"column {column.name!r}" if column.name else "its tensor"
        raise DataError(f"{source}: row {row} has {what} in {named}. {remedy}")


def _each(flat_NV: Tensor, is_bad: Callable[[Tensor], Tensor]) -> Tensor:
    """Whether a row has a bad value; N, looked at in blocks."""
    size = max(1, _BLOCK_VALUES // max(1, flat_NV.shape[1]))
    starts = range(0, len(flat_NV), size)
    return torch.cat([is_bad(flat_NV[start : start + size]).any(dim=1) for start in starts])
