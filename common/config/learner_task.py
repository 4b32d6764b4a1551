"""Learner task: how to train one learner on its shard; the wire's `LearnerTask` has its fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from lipt.common.config.run_config import (
    AugmentationConfig,
    Density,
    LearnersConfig,
    PruningMethod,
)
from lipt.common.errors import ConfigError
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.formats import ColumnsFormat, InputFormat


@dataclass(frozen=True)
class LearnerTask:
    """How to train one learner on its shard.

    What its examples are is either `image` or `columns`.
    """

    model: str
    num_classes: Annotated[int, Field(ge=1)]
    learners: LearnersConfig
    augmentation: AugmentationConfig
    pruning_method: PruningMethod
    density: Density
    seed: int
    image: ImageFormat | None = None
    columns: ColumnsFormat | None = None

    def __post_init__(self) -> None:
        """Refuse a task of which it is not sure what its examples are.

        Raises:
            ConfigError: it says both, or nothing.
        """
        if (self.image is None) == (self.columns is None):
            said = "both" if self.image else "neither"
            raise ConfigError(
                f"the task says {said} of image and columns, of which it needs one. Use the "
                "lipt of the coordinator."
            )

    @property
    def inputs(self) -> InputFormat:
        """What its model is given."""
        inputs = self.image or self.columns
        assert inputs is not None  # noqa: S101 - one of them is set
        return inputs
