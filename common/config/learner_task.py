"""Learner task: how to train one learner on its shard; the wire's `LearnerTask` has its fields."""

from __future__ import annotations

from dataclasses import dataclass

from lipt.common.config.model_task import ModelTask
from lipt.common.config.run_config import (
    AugmentationConfig,
    Density,
    LearnersConfig,
    PruningMethod,
)


@dataclass(frozen=True, kw_only=True)
class LearnerTask(ModelTask):
    """How to train one learner on its shard."""

    learners: LearnersConfig
    augmentation: AugmentationConfig
    pruning_method: PruningMethod
    density: Density
    seed: int
