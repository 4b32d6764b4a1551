"""Specs of examples: names, shapes and dtypes of tensors, and their formats."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import Field

from lipt.common.errors import ConfigError
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.columns import MAX_COLUMNS, Column

# Input specs: what a model is given of a batch, by type and shape, without values.
#
# Shapes: B examples, C x H x W pixels.

if TYPE_CHECKING:  # which a client that sends no task would wait for
    import torch
    from torch import Tensor

# What a model is given: one tensor, or several by the keywords that it takes them by.
Inputs: TypeAlias = "Tensor | Mapping[str, Tensor]"


@dataclass(frozen=True)
class ImageSpec:
    """Images as a model sees them: float32, B x C x H x W."""

    channels: Annotated[int, Field(ge=1)]
    height: Annotated[int, Field(ge=1)]
    width: Annotated[int, Field(ge=1)]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.channels, self.height, self.width

    @property
    def num_bytes(self) -> int:
        """What one stored example takes: a byte a pixel."""
        return math.prod(self.shape)

    def zeros(self, size: int, device: torch.device | str = "cpu") -> Tensor:
        """A batch of inputs without content, to try a model on."""
        import torch  # noqa: PLC0415 - see above

        return torch.zeros(size, *self.shape, device=device)

    def __str__(self) -> str:
        """As messages have it: `3x32x32 images`."""
        return f"{self.channels}x{self.height}x{self.width} images"


@dataclass(frozen=True)
class ColumnsSpec:
    """Tensors of other kinds than images: one without a name, or several with names."""

    columns: Annotated[tuple[Column, ...], Field(min_length=1, max_length=MAX_COLUMNS)]

    def __post_init__(self) -> None:
        """Refuse columns that a model could not be given together.

        Raises:
            ConfigError: two have the same name, or one of several has none.
        """
        names = [column.name for column in self.columns]
        if len(set(names)) < len(names) or (len(names) > 1 and "" in names):
            raise ConfigError(
                f"the tensors of an example are named {names}, but several need names that "
                "differ. Return a dictionary of tensors, or one tensor."
            )

    @property
    def num_bytes(self) -> int:
        """What one stored example takes."""
        return sum(column.num_bytes for column in self.columns)

    def zeros(self, size: int, device: torch.device | str = "cpu") -> Inputs:
        """A batch of inputs without content, to try a model on."""
        import torch  # noqa: PLC0415 - see above

        batch = {
            column.name: torch.zeros(size, *column.shape, dtype=column.type.dtype, device=device)
            for column in self.columns
        }
        return batch.get("", batch)

    def __str__(self) -> str:
        """As messages have it: `tokens int64[128], mask bool[128]`."""
        return ", ".join(map(str, self.columns))


InputSpec = ImageSpec | ColumnsSpec


def call_model(model: Callable[..., Any], inputs: Inputs) -> Tensor:
    """A model's logits: one tensor is its only argument, several are keywords."""
    args, keywords = arguments_of(inputs)
    return logits_of(model(*args, **keywords))


def arguments_of(inputs: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """What a model is called with: its only argument, or keywords."""
    return ((), dict(inputs)) if isinstance(inputs, Mapping) else ((inputs,), {})


def logits_of(outputs: Any) -> Tensor:
    """The logits; what Hugging Face's models return has them by that name."""
    logits: Tensor = getattr(outputs, "logits", outputs)
    return logits


# Input formats: what a run's models are given, with the figures that its values are scaled by.
#
# A format travels with the run and with each learner's task, so that all peers compute alike.

# A place in the last dimension has a mean of its own; more are never sent.
_MAX_PLACES = 2**20

Figures = Annotated[tuple[float, ...], Field(max_length=_MAX_PLACES)]


@dataclass(frozen=True)
class ColumnFormat:
    """A column, and how its values are standardized.

    Attributes:
        column: what it is.
        mean, std: of the training examples' values, by place in the last dimension; one of each
            for a number; none where the column is not standardized.
    """

    column: Column
    mean: Figures = ()
    std: Figures = ()

    def __post_init__(self) -> None:
        """Refuse figures that the column's values cannot be scaled by.

        Raises:
            ConfigError: not one mean and one positive deviation for each place.
        """
        places = num_places(self.column) if self.column.standardized else 0
        positive = all(deviation > 0 for deviation in self.std)
        if not len(self.mean) == len(self.std) == places or not positive:
            raise ConfigError(
                f"{len(self.mean)} means and {len(self.std)} deviations do not fit the column "
                f"{self.column}: it needs {places} of each, and deviations above 0."
            )


@dataclass(frozen=True)
class ColumnsFormat:
    """What a model is given of examples that are no images: their columns, standardized or not."""

    columns: Annotated[tuple[ColumnFormat, ...], Field(min_length=1, max_length=MAX_COLUMNS)]

    def __post_init__(self) -> None:
        """Refuse columns that a model could not be given together.

        Raises:
            ConfigError: see `ColumnsSpec`.
        """
        _ = self.spec

    @cached_property
    def spec(self) -> ColumnsSpec:
        """The columns by type and shape."""
        return ColumnsSpec(tuple(one.column for one in self.columns))


InputFormat = ImageFormat | ColumnsFormat


def spec_of(inputs: InputFormat) -> InputSpec:
    """A format without its figures."""
    return ImageSpec(*inputs.shape) if isinstance(inputs, ImageFormat) else inputs.spec


def num_places(column: Column) -> int:
    """How many means a standardized column has."""
    return column.shape[-1] if column.shape else 1
