"""Columns of a user's data set: rows of tensors, or of dictionaries of tensors, put together.

What is shorter than the longest along its first dimension is padded with zeros at its end.
Attributes of the data set may say more: `collate` makes a batch of a list of examples, and is
called with one at a time; `standardize` is True, or names the columns that are; `num_values`
says how many values the whole numbers of a column may have, by its name or for all.

Shapes: N examples.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from lipt.common.data.parallel import Progress, map_rows
from lipt.common.data.sources.rows import ColumnRows
from lipt.common.data.sources.user_labels import (
    class_names_of,
    given_in_rows,
    given_in_targets,
)
from lipt.common.data.sources.user_rows import is_image, length_of, read_row
from lipt.common.errors import DataError
from lipt.common.inputs.columns import MAX_COLUMNS, MAX_DIMENSIONS, Column, ColumnType
from lipt.common.inputs.specs import ColumnsSpec

logger = logging.getLogger(__name__)

_TYPES = {kind.dtype: kind for kind in ColumnType}
_UNNAMED = ""


def column_rows(source: str, data: Any, progress: Progress | None = None) -> ColumnRows:
    """All rows of a user's data set, in memory.

    Args:
        source: the name under which it was opened.
        data: map-style, with at least one row.
        progress: called with (done, total) rows.

    Raises:
        ConfigError: it is not map-style, or its attributes do not fit.
        DataError: a row cannot be used; the message names it.
    """
    num_rows = length_of(source, data)
    names, targets = class_names_of(data), getattr(data, "targets", None)
    collate = getattr(data, "collate", None)
    parts: dict[str, list[Tensor]] = {}
    labels: list[Any] = []

    def read(row: int) -> tuple[dict[str, Tensor], Any]:
        example, label = read_row(source, data, row)
        return _tensors_of(example, collate, source, row), label

    for row, (tensors, label) in enumerate(
        map_rows(read, range(num_rows), num_threads=1, progress=progress)
    ):
        if row == 0:
            _require_same_twice(tensors, read(0)[0], source)
            parts = {name: [] for name in tensors}
        if tensors.keys() != parts.keys():
            raise DataError(
                f"{source}: row {row} has the tensors {_named(tensors)}, row 0 {_named(parts)}. "
                "Give every row the same ones."
            )
        for name, tensor in tensors.items():
            parts[name].append(tensor)
        labels.append(label)
    stacked = {name: _stacked(name, tensors, source) for name, tensors in parts.items()}
    if targets is not None:
        given = given_in_targets(targets, names, num_rows, source)
    else:
        given = given_in_rows(labels, names, source)
    columns = _columns_of(stacked, data, source)
    return ColumnRows(source, given.names, given.labels_N, columns, stacked, targets=given.targets)


def bytes_of_first(source: str, data: Any) -> int:
    """What row 0 takes as columns; 0 where it is an image, or there is none.

    Raises:
        ConfigError: `data` is not map-style.
        DataError: the row cannot be used.
    """
    if length_of(source, data) == 0:
        return 0
    example, _ = read_row(source, data, 0)
    if is_image(example):
        return 0
    tensors = _tensors_of(example, getattr(data, "collate", None), source, 0)
    return sum(tensor.nbytes for tensor in tensors.values())


def _tensors_of(
    example: Any, collate: Callable[..., Any] | None, source: str, row: int
) -> dict[str, Tensor]:
    if collate is not None:
        try:
            example = collate([example])
        except Exception as error:
            raise DataError(
                f"{source}: its collate failed on row {row} with {type(error).__name__}: {error}. "
                "It is given a list of one example, without its label, and returns a batch of it."
            ) from error
    named: Mapping[str, Any] = example if isinstance(example, Mapping) else {_UNNAMED: example}
    tensors = {
        str(name): _tensor_of(value, str(name), source, row) for name, value in named.items()
    }
    if collate is None:
        return tensors
    for name, tensor in tensors.items():
        if tensor.ndim == 0 or len(tensor) != 1:
            raise DataError(
                f"{source}: its collate makes {_what(name)} of shape {tuple(tensor.shape)} of one "
                "example. Let the first dimension be that of the examples."
            )
    return {name: tensor[0] for name, tensor in tensors.items()}


def _tensor_of(value: Any, name: str, source: str, row: int) -> Tensor:
    if isinstance(value, str | bytes):
        raise DataError(
            f"{source}: {_what(name)} of row {row} is text, {value!r:.60}. Return the numbers of "
            "its tokens, or, where it is a file of an image, the opened image."
        )
    try:
        tensor = torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{source}: {_what(name)} of row {row} is a {type(value).__name__}, and no tensor "
            f"({error}). Return a tensor, an array or a list of numbers."
        ) from error
    if tensor.dtype not in _TYPES or tensor.is_sparse or tensor.ndim > MAX_DIMENSIONS:
        raise DataError(
            f"{source}: {_what(name)} of row {row} is {tensor.dtype} of {tensor.ndim} dimensions. "
            f"Return one of {', '.join(ColumnType)}, dense, of at most {MAX_DIMENSIONS}."
        )
    return tensor


def _stacked(name: str, tensors: list[Tensor], source: str) -> Tensor:
    """All rows' tensors of a column, N x shape, padded at their ends."""
    first = tensors[0]
    for row, tensor in enumerate(tensors):
        if tensor.dtype != first.dtype:
            raise DataError(
                f"{source}: {_what(name)} of row {row} is {tensor.dtype}, and {first.dtype} in row "
                "0. Give all rows the same type."
            )
        if tensor.ndim != first.ndim or tensor.shape[1:] != first.shape[1:]:
            raise DataError(
                f"{source}: {_what(name)} of row {row} has the shape {tuple(tensor.shape)}, and "
                f"{tuple(first.shape)} in row 0. Only lengths along the first dimension may "
                "differ: they are padded with zeros."
            )
    if first.ndim == 0:
        return torch.stack(tensors)
    longest = max(len(tensor) for tensor in tensors)
    stacked = torch.zeros((len(tensors), longest, *first.shape[1:]), dtype=first.dtype)
    if stacked[0].numel() == 0:
        raise DataError(f"{source}: {_what(name)} is empty in all rows. Leave it out.")
    for row, tensor in enumerate(tensors):
        stacked[row, : len(tensor)] = tensor
    shortest = min(len(tensor) for tensor in tensors)
    if shortest < longest:
        logger.info(
            "%s: %s is %d to %d long; shorter ones are padded with zeros at their ends",
            source,
            _what(name),
            shortest,
            longest,
        )
    return stacked


def _columns_of(stacked: Mapping[str, Tensor], data: Any, source: str) -> tuple[Column, ...]:
    if len(stacked) > MAX_COLUMNS:
        raise DataError(
            f"{source}: an example has {len(stacked)} tensors, at most {MAX_COLUMNS} are taken. "
            "Put them together."
        )
    standardize: Any = getattr(data, "standardize", False)
    num_values: Any = getattr(data, "num_values", 0)
    given = set(standardize) if isinstance(standardize, list | tuple | set) else set()
    given |= set(num_values) if isinstance(num_values, Mapping) else set()
    if unknown := sorted(given - set(stacked)):
        raise DataError(
            f"{source}: there is no column {unknown[0]!r} to standardize or to number; there are "
            f"{_named(stacked)}."
        )
    columns = []
    for name, tensor in stacked.items():
        floating = tensor.is_floating_point()
        by_name = num_values.get(name, 0) if isinstance(num_values, Mapping) else num_values
        columns.append(
            Column(
                name,
                _TYPES[tensor.dtype],
                tuple(tensor.shape[1:]),
                num_values=0 if floating else int(by_name),
                standardized=floating if standardize is True else name in (standardize or ()),
            )
        )
    return ColumnsSpec(tuple(columns)).columns


def _require_same_twice(
    tensors: Mapping[str, Tensor], again: Mapping[str, Tensor], source: str
) -> None:
    same = tensors.keys() == again.keys() and all(
        torch.equal(tensor, again[name]) for name, tensor in tensors.items()
    )
    # What is not finite equals nothing, and is refused by its row later.
    finite = all(bool(tensor.isfinite().all()) for tensor in tensors.values())
    if finite and not same:
        raise DataError(
            f"{source}: row 0 differs between two reads. Leave random transforms out of the "
            "data set: the workers augment."
        )


def _what(name: str) -> str:
    return f"the tensor {name!r}" if name else "the tensor"


def _named(tensors: Mapping[str, object]) -> str:
    return ", ".join(map(repr, tensors)) or "nothing"
