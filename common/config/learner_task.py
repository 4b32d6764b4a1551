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
from lipt.common.images.formats import ImageFormat


@dataclass(frozen=True)
class LearnerTask:
    """How to train one learner on its shard."""

    model: str
    num_classes: Annotated[int, Field(ge=1)]
    image: ImageFormat
    learners: LearnersConfig
    augmentation: AugmentationConfig
    pruning_method: PruningMethod
    density: Density
    seed: int
