"""Model task: what a worker's model is, what it is given and what it gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from lipt.common.errors import ConfigError
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.formats import ColumnsFormat, InputFormat
from lipt.common.targets.single_label import SingleLabel
from lipt.common.targets.target import Target
from lipt.common.targets.values import OtherTarget


@dataclass(frozen=True, kw_only=True)
class ModelTask:
    """What every task says of its model.

    What its examples are is either `image` or `columns`. `num_classes` is the number of the
    model's outputs, which are classes where `other_target` says nothing else.
    """

    model: str
    num_classes: Annotated[int, Field(ge=1)]
    image: ImageFormat | None = None
    columns: ColumnsFormat | None = None
    other_target: OtherTarget | None = None

    def __post_init__(self) -> None:
        """Refuse a task of which it is not sure what its examples are.

        Raises:
            ConfigError: it says both, or nothing; or how many outputs there are in two ways.
        """
        if self.target.num_outputs != self.num_classes:
            raise ConfigError(
                f"the task says {self.num_classes} outputs and targets of "
                f"{self.target.num_outputs}. Use the lipt of the coordinator."
            )
        if (self.image is None) == (self.columns is None):
            said = "both" if self.image else "neither"
            raise ConfigError(
                f"the task says {said} of image and columns, of which it needs one. Use the "
                "lipt of the coordinator."
            )

    @property
    def target(self) -> Target:
        """What its model is to give."""
        return self.other_target or SingleLabel(self.num_classes)

    @property
    def inputs(self) -> InputFormat:
        """What its model is given."""
        inputs = self.image or self.columns
        assert inputs is not None  # noqa: S101 - one of them is set
        return inputs
