"""Linear and MLP: for tables and for features that another model has made.

Every column of floating-point numbers is flattened; every whole number whose range is known, such
as a category's, is a row of an embedding that its column's places share.

Shapes: B examples, W values of an example side by side, C classes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lipt.common.errors import ConfigError
from lipt.common.inputs.columns import Column
from lipt.common.inputs.specs import ColumnsSpec, InputSpec
from lipt.common.models.initialization import initialize

_HIDDEN_WIDTH = 256
_EMBEDDING_WIDTH = 16


class SideBySide(nn.Module):
    """What a model is given of an example as one row of numbers.

    Attributes:
        width: W.
    """

    def __init__(self, inputs: InputSpec) -> None:
        """Make an embedding for each column of whole numbers.

        Raises:
            ConfigError: of whole numbers it is not known how many there are.
        """
        super().__init__()
        self._columns = inputs.columns if isinstance(inputs, ColumnsSpec) else ()
        # By place: a column may have no name, or one that no module can have.
        self.embeddings = nn.ModuleDict()
        widths = []
        for place, column in enumerate(self._columns):
            width = math.prod(column.shape)
            if not column.type.dtype.is_floating_point:
                self.embeddings[str(place)] = nn.Embedding(_num_values(column), _EMBEDDING_WIDTH)
                width *= _EMBEDDING_WIDTH
            widths.append(width)
        self.width = sum(widths) if isinstance(inputs, ColumnsSpec) else math.prod(inputs.shape)

    def forward(self, *given: Tensor, **named: Tensor) -> Tensor:
        """Map one tensor, or several by the columns' names, to B x W."""
        if not self._columns:
            return given[0].flatten(1)
        parts = []
        for place, column in enumerate(self._columns):
            values = given[0] if given else named[column.name]
            if str(place) in self.embeddings:
                values = self.embeddings[str(place)](values.long())
            parts.append(values.float().reshape(len(values), -1))
        return torch.cat(parts, dim=1)


class Dense(nn.Module):
    """Layers of one width with ReLU between, and a linear head `fc`; none of them for a line."""

    def __init__(self, inputs: InputSpec, *, num_classes: int, num_hidden: int) -> None:
        super().__init__()
        self.inputs = SideBySide(inputs)
        width = self.inputs.width
        hidden: list[nn.Module] = []
        for _ in range(num_hidden):
            hidden += [nn.Linear(width, _HIDDEN_WIDTH), nn.ReLU()]
            width = _HIDDEN_WIDTH
        self.hidden = nn.Sequential(*hidden)
        self.fc = nn.Linear(width, num_classes)
        initialize(self)

    def forward(self, *given: Tensor, **named: Tensor) -> Tensor:
        """Map one tensor, or several by the columns' names, to logits B x C."""
        logits_BC: Tensor = self.fc(self.hidden(self.inputs(*given, **named)))
        return logits_BC


def linear(*, num_classes: int, inputs: InputSpec) -> nn.Module:
    """Logistic regression."""
    return Dense(inputs, num_classes=num_classes, num_hidden=0)


def mlp(*, num_classes: int, inputs: InputSpec) -> nn.Module:
    """Two hidden layers of 256."""
    return Dense(inputs, num_classes=num_classes, num_hidden=2)


def _num_values(column: Column) -> int:
    if column.type.value == "bool":
        return 2
    if not column.num_values:
        raise ConfigError(
            f"the models linear and mlp cannot take the column {str(column)!r}: of its whole "
            "numbers it is not known how many there are. Give them as float32, or take a model "
            "of your own."
        )
    return column.num_values
