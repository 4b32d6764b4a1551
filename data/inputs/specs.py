"""Specs of inputs: images, or named tensors (columns), and their normalization.

A format is a spec with normalization figures; it travels with the run and every task.

Shapes: B examples, C x H x W pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Self

import torch
from pydantic import Field
from torch import Tensor

from lipt.common.errors import ConfigError, LiptError
from lipt.common.text import encodable

# Limits on formats from a peer.
MAX_COLUMNS = 64
MAX_DIMENSIONS = 8
# Each position in the last dimension has a mean.
_MAX_PLACES = 2**20

# Of another code's error in a message.
_MOST_CHARACTERS = 120

# A model's arguments: one tensor, or several by keyword.
Inputs = Tensor | Mapping[str, Tensor]


class ColumnType(StrEnum):
    """The type of a column's values."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    UINT8 = "uint8"
    BOOL = "bool"

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.value)
        return dtype

    @classmethod
    def of(cls, dtype: torch.dtype) -> Self:
        """The type of a tensor's values; ValueError for one that no column has."""
        return cls(str(dtype).removeprefix("torch."))


@dataclass(frozen=True)
class Column:
    """One tensor of every example.

    Attributes:
        name: the model's keyword; empty for a model's only argument.
        type: of its values.
        shape: of one example's; () for a number.
        num_values: whole numbers are in 0..num_values-1; 0 if unknown.
        standardized: by the training examples' means, by position in the last dimension.
    """

    name: Annotated[str, Field(max_length=100)]
    type: ColumnType
    shape: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(max_length=MAX_DIMENSIONS)] = ()
    num_values: Annotated[int, Field(ge=0)] = 0
    standardized: bool = False

    def __post_init__(self) -> None:
        if encodable(self.name) != self.name:
            raise ConfigError(f"the column's name {self.name!r:.80} is not UTF-8. Rename it.")
        if self.standardized and not self.type.dtype.is_floating_point:
            raise ConfigError(
                f"column {self.name!r} of {self.type} cannot be standardized. Give it as floats."
            )

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.type.dtype.itemsize

    @property
    def input_dtype(self) -> torch.dtype:
        """The type of a model's input."""
        return torch.float32 if self.standardized else self.type.dtype

    def __str__(self) -> str:
        """For messages: `tokens int64[128]`."""
        shape = "x".join(map(str, self.shape))
        return f"{self.name} {self.type}[{shape}]".strip()


@dataclass(frozen=True)
class ImageSpec:
    """Images as a model sees them: float32, B x C x H x W."""

    channels: Annotated[int, Field(ge=1)]
    height: Annotated[int, Field(ge=1)]
    width: Annotated[int, Field(ge=1)]

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels, self.height, self.width

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape)

    def zeros(self, size: int, device: torch.device | str = "cpu") -> Tensor:
        return torch.zeros(size, *self.shape, device=device)

    def __str__(self) -> str:
        """For messages: `3x32x32 images`."""
        return f"{self.channels}x{self.height}x{self.width} images"


@dataclass(frozen=True)
class ImageFormat(ImageSpec):
    """A model's images, scaled to [0, 1], then normalized per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        positive = all(deviation > 0 for deviation in self.std)
        if not len(self.mean) == len(self.std) == self.channels or not positive:
            raise ConfigError(
                f"normalization mean {list(self.mean)}, std {list(self.std)} does not fit "
                f"{self.channels} channels."
            )


@dataclass(frozen=True)
class ColumnsSpec:
    """Tensors other than images: one nameless, or several named."""

    columns: Annotated[tuple[Column, ...], Field(min_length=1, max_length=MAX_COLUMNS)]

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if len(set(names)) < len(names) or (len(names) > 1 and "" in names):
            raise ConfigError(
                f"the tensors of an example are named {names}, but several need names that differ. "
                "Return a dictionary of tensors, or one tensor."
            )

    @property
    def num_bytes(self) -> int:
        return sum(column.num_bytes for column in self.columns)

    def zeros(self, size: int, device: torch.device | str = "cpu") -> Inputs:
        batch = {
            column.name: torch.zeros(size, *column.shape, dtype=column.input_dtype, device=device)
            for column in self.columns
        }
        return batch.get("", batch)

    def __str__(self) -> str:
        """For messages: `tokens int64[128], mask bool[128]`."""
        return ", ".join(map(str, self.columns))


InputSpec = ImageSpec | ColumnsSpec


def call_model(model: Callable[..., Any], inputs: Inputs) -> Tensor:
    """A model's logits, from one positional tensor or several keywords."""
    args, keywords = arguments_of(inputs)
    with model_errors(model):
        return logits_of(model(*args, **keywords))


def tokens_in(inputs: Inputs) -> Tensor:
    """The tokens of texts, B x L: the only tensor of a model's inputs, or the first by name."""
    positional, named = arguments_of(inputs)
    tokens_BL: Tensor = positional[0] if positional else next(iter(named.values()))
    return tokens_BL


@contextmanager
def model_errors(model: Callable[..., Any]) -> Iterator[None]:
    """Raise what a user's model raises as a ConfigError."""
    try:
        yield
    except LiptError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{type(model).__name__} fails on a batch with {shown_error(error)}. Try it alone on "
            "such a batch, in training and in evaluation mode."
        ) from error


def shown_error(error: Exception) -> str:
    """An error of other code in a message: its class, and its first sentence in one line."""
    text = " ".join(str(error).split()).partition(". ")[0].rstrip(".")
    return f"{type(error).__name__}: {text[:_MOST_CHARACTERS]}"


def arguments_of(inputs: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    return ((), dict(inputs)) if isinstance(inputs, Mapping) else ((inputs,), {})


def logits_of(outputs: Any) -> Tensor:
    """The logits, also in a dictionary or in outputs of Hugging Face's models."""
    named = isinstance(outputs, Mapping) and "logits" in outputs
    output: Any = outputs["logits"] if named else outputs
    logits: Tensor = getattr(output, "logits", output)
    return in_full(logits) if isinstance(logits, Tensor) else logits


def in_full(values: Tensor) -> Tensor:
    """Values of a narrower floating-point type as float32."""
    narrow = values.is_floating_point() and values.dtype.itemsize < torch.float32.itemsize
    return values.float() if narrow else values


Figures = Annotated[tuple[float, ...], Field(max_length=_MAX_PLACES)]


@dataclass(frozen=True)
class ColumnFormat:
    """A column, with any means and deviations by position in the last dimension."""

    column: Column
    mean: Figures = ()
    std: Figures = ()

    def __post_init__(self) -> None:
        places = num_places(self.column) if self.column.standardized else 0
        positive = all(deviation > 0 for deviation in self.std)
        if not len(self.mean) == len(self.std) == places or not positive:
            raise ConfigError(
                f"{len(self.mean)} means and {len(self.std)} deviations do not fit the column "
                f"{self.column}: it needs {places} of each, and deviations above 0."
            )


@dataclass(frozen=True)
class ColumnsFormat:
    """Columns, standardized or not."""

    columns: Annotated[tuple[ColumnFormat, ...], Field(min_length=1, max_length=MAX_COLUMNS)]

    def __post_init__(self) -> None:
        _ = self.spec  # checks the names

    @cached_property
    def spec(self) -> ColumnsSpec:
        return ColumnsSpec(tuple(column_format.column for column_format in self.columns))


InputFormat = ImageFormat | ColumnsFormat


def spec_of(inputs: InputFormat) -> InputSpec:
    return ImageSpec(*inputs.shape) if isinstance(inputs, ImageFormat) else inputs.spec


def num_places(column: Column) -> int:
    """The number of means of a standardized column."""
    return column.shape[-1] if column.shape else 1
