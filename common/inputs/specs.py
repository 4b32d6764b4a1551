"""Input specs: what a model is given of a batch, by type and shape, without values.

Shapes: B examples, C x H x W pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import Field

from lipt.common.errors import ConfigError
from lipt.common.inputs.columns import MAX_COLUMNS, Column

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
