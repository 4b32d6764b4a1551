"""What one learner needs to know, besides its bytes: the frozen form of the wire's task."""

from __future__ import annotations

from dataclasses import dataclass

from lipt.common.config.run_config import AugmentationConfig, LearnersConfig, PruningMethod
from lipt.common.images.formats import ImageFormat


@dataclass(frozen=True)
class LearnerTask:
    """How to train one learner on its shard."""

    model: str
    num_classes: int
    image: ImageFormat
    learners: LearnersConfig
    augmentation: AugmentationConfig
    pruning_method: PruningMethod
    density: float
    seed: int
