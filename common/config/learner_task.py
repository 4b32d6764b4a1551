"""Learner task: how to train one learner on its shard; the wire's `LearnerTask` has its fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from lipt.common.config.model_task import ModelTask
from lipt.common.config.run_config import (
    AugmentationConfig,
    Density,
    LearnersConfig,
    PruningMethod,
    RunConfig,
)
from lipt.common.determinism.seeding import derive_seed
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.formats import ColumnsFormat, InputFormat
from lipt.common.targets.values import OtherTarget


@dataclass(frozen=True, kw_only=True)
class LearnerTask(ModelTask):
    """How to train one learner on its shard."""

    learners: LearnersConfig
    augmentation: AugmentationConfig
    pruning_method: PruningMethod
    density: Density
    seed: int

    @classmethod
    def of(
        cls,
        config: RunConfig,
        inputs: InputFormat,
        *,
        num_classes: int,
        other_target: OtherTarget | None,
        index: int,
        density: float,
    ) -> Self:
        """What a run's learner is told; the same for every attempt.

        Args:
            config: the run's.
            inputs: what models are given.
            num_classes: of the models' outputs.
            other_target: what these are, where they are no classes.
            index: the learner's.
            density: the share of weights that it keeps.
        """
        return cls(
            model=config.model,
            num_classes=num_classes,
            learners=config.learners,
            augmentation=config.augmentation,
            pruning_method=config.pruning.method,
            density=density,
            seed=derive_seed(config.seed, "learner", index),
            image=inputs if isinstance(inputs, ImageFormat) else None,
            columns=inputs if isinstance(inputs, ColumnsFormat) else None,
            other_target=other_target,
        )
