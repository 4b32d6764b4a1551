"""Columns: examples that are no images, as one tensor or several by name.

All examples' tensors of one name are a column, of one type and shape; what is shorter in some of
them is padded with zeros at its end where it is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from lipt.common.errors import ConfigError

if TYPE_CHECKING:  # which a client that sends no task would wait for
    import torch

# More than any model takes; what travels is compared with it.
MAX_COLUMNS = 64
MAX_DIMENSIONS = 8


class ColumnType(StrEnum):
    """What the values of a column are."""

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
        """PyTorch's."""
        import torch  # noqa: PLC0415 - see above

        dtype: torch.dtype = getattr(torch, self.value)
        return dtype

    @property
    def is_floating(self) -> bool:
        """Whether its values are floating-point numbers."""
        return "float" in self.value


@dataclass(frozen=True)
class Column:
    """One tensor of every example.

    Attributes:
        name: the keyword that the model takes it by; empty where an example is one tensor,
            which the model takes as its only argument.
        type: of its values.
        shape: of one example's; () for a number.
        num_values: of whole numbers, such as tokens or categories: all of them are in
            0..num_values-1; 0 where nothing is known of them.
        standardized: whether its values are given to the model less their mean and divided by
            their deviation, which are those of the training examples, by place in the last
            dimension.
    """

    name: Annotated[str, Field(max_length=100)]
    type: ColumnType
    shape: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(max_length=MAX_DIMENSIONS)]
    num_values: Annotated[int, Field(ge=0)] = 0
    standardized: bool = False

    def __post_init__(self) -> None:
        """Refuse to standardize what has no mean.

        Raises:
            ConfigError: it is standardized and not of floating-point numbers.
        """
        if self.standardized and not self.type.is_floating:
            raise ConfigError(
                f"column {self.name!r} of {self.type} cannot be standardized: only floating-point "
                "numbers can. Give it as float32."
            )

    @property
    def num_bytes(self) -> int:
        """Of one example."""
        return math.prod(self.shape) * self.type.dtype.itemsize

    def __str__(self) -> str:
        """As messages have it: `tokens int64[128]`."""
        shape = "x".join(map(str, self.shape))
        return f"{self.name} {self.type}[{shape}]".strip()
