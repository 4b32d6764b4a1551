"""Input formats: what a run's models are given, with the figures that its values are scaled by.

A format travels with the run and with each learner's task, so that all peers compute alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from pydantic import Field

from lipt.common.errors import ConfigError
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.columns import MAX_COLUMNS, Column
from lipt.common.inputs.specs import ColumnsSpec, ImageSpec, InputSpec

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
