"""Column values: features of examples that are no images, and nothing is trained.

Floating-point values are features as they are. Whole numbers that count from 0 stand for words or
categories: how often each is there counts, at each place on its own where there are few places,
and among all of them else, as in a text. Too many features of one column are projected at random,
which keeps their inner products about.

Shapes: B examples of a batch, V values of an example, S kinds of values, W features of a column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.inputs.specs import Column

# Features of one column that are not projected, and of one that is.
_MAX_WIDTH, _PROJECTED = 1024, 512
# Categories of a table have a place each, words of a text have not.
_MAX_PLACES = 32
# Kinds of values that have a random vector each; larger numbers share theirs.
_MAX_KINDS = 2**17
# Fewer are a number: a mask, a flag.
_MIN_KINDS = 3


@dataclass(frozen=True)
class ColumnValues:
    """Features of one column.

    column: what it is.
    kinds: how many values its whole numbers have; 0 takes them as numbers.
    projection: to fewer features; W x features where values are numbers, S x features else.
    """

    column: Column
    kinds: int
    projection: Tensor | None

    def __call__(self, values_B: Tensor) -> Tensor:
        """B x features, float32, on the CPU."""
        flat_BV = values_B.reshape(len(values_B), -1)
        if not self.kinds:
            numbers_BV = flat_BV.float()
            return numbers_BV if self.projection is None else numbers_BV @ self.projection
        places = flat_BV.shape[1]
        kinds_BV = flat_BV.long() % _MAX_KINDS
        if places <= _MAX_PLACES:
            kinds_BV = kinds_BV + self.kinds * torch.arange(places)
        if self.projection is not None:
            return functional.embedding_bag(kinds_BV, self.projection, mode="sum")
        counts_BS = torch.zeros(len(flat_BV), _num_kinds(self.kinds, places))
        return counts_BS.scatter_add_(1, kinds_BV, torch.ones_like(kinds_BV, dtype=torch.float32))


def column_values(
    columns: tuple[Column, ...],
    largest: Callable[[Column], int],
    generator_of: Callable[[str], torch.Generator],
) -> Callable[[Mapping[str, Tensor]], Tensor]:
    """What takes features of stored columns.

    Args:
        columns: of the data.
        largest: the largest value of a column of whole numbers, -1 where some are below 0.
        generator_of: draws a column's projection, by its name.
    """
    parts = [_values_of(column, largest, generator_of) for column in columns]

    def features(stored_B: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([part(stored_B[part.column.name]) for part in parts], dim=1)

    return features


def _values_of(
    column: Column,
    largest: Callable[[Column], int],
    generator_of: Callable[[str], torch.Generator],
) -> ColumnValues:
    places = math.prod(column.shape)
    kinds = 0 if _are_numbers(column) else column.num_values or largest(column) + 1
    kinds = min(kinds, _MAX_KINDS) if kinds >= _MIN_KINDS else 0
    width = _num_kinds(kinds, places) if kinds else places
    if width <= _MAX_WIDTH:
        return ColumnValues(column, kinds, None)
    generator = generator_of(column.name)
    drawn = torch.randn(width, _PROJECTED, generator=generator) / _PROJECTED**0.5
    return ColumnValues(column, kinds, drawn)


def _are_numbers(column: Column) -> bool:
    return column.type.is_floating or column.type.dtype in {torch.bool, torch.uint8}


def _num_kinds(kinds: int, places: int) -> int:
    return kinds * places if places <= _MAX_PLACES else kinds
