"""Workers' tasks: a learner to train, or a range of examples to score."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field

from lipt.common.config.run_config import (
    NO_ADAPTERS,
    AdaptersConfig,
    AugmentationConfig,
    Density,
    LearnersConfig,
    PruningMethod,
    RunConfig,
)
from lipt.common.determinism import derive_seed
from lipt.common.errors import ConfigError
from lipt.data.inputs.specs import ColumnsFormat, ImageFormat, InputFormat
from lipt.data.targets.kinds import TargetKind
from lipt.data.targets.values import OtherTarget, SingleLabel, Target


@dataclass(frozen=True, kw_only=True)
class ModelTask:
    """A task's model, and either `image` or `columns`; `other_target` is None for classes."""

    model: str
    num_classes: Annotated[int, Field(ge=1)]
    image: ImageFormat | None = None
    columns: ColumnsFormat | None = None
    other_target: OtherTarget | None = None
    adapters: AdaptersConfig = NO_ADAPTERS

    def __post_init__(self) -> None:
        of_one_kind = (self.image is None) != (self.columns is None)
        if not of_one_kind or self.target.num_outputs != self.num_classes:
            raise ConfigError(f"the task contradicts itself: {self}. Use the coordinator's lipt.")

    @property
    def target(self) -> Target:
        return self.other_target or SingleLabel(self.num_classes)

    @property
    def inputs(self) -> InputFormat:
        inputs = self.image or self.columns
        assert inputs is not None  # noqa: S101 - one of them is set
        return inputs


def model_of(config: RunConfig, inputs: InputFormat, target: Target) -> dict[str, Any]:
    """The fields of `ModelTask` of a run's model."""
    return {
        "model": config.model,
        "num_classes": target.num_outputs,
        "image": inputs if isinstance(inputs, ImageFormat) else None,
        "columns": inputs if isinstance(inputs, ColumnsFormat) else None,
        "other_target": None if isinstance(target, SingleLabel) else target,
        "adapters": config.adapters,
    }


@dataclass(frozen=True, kw_only=True)
class LearnerTask(ModelTask):
    """A learner's training task on its shard."""

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
        target: Target,
        *,
        index: int,
        density: float,
    ) -> Self:
        """The task of a run's learner, equal for every attempt."""
        return cls(
            learners=config.learners,
            augmentation=config.augmentation,
            pruning_method=config.pruning.method,
            density=density,
            seed=derive_seed(config.seed, "learner", index),
            **model_of(config, inputs, target),
        )


class ScoredValues(StrEnum):
    """The values of each example that a pass computes.

    SIGNALS: the last layer's error and feature. LOSSES: of the example; with FEATURES the head's
    input, or the mean of a text's. UNPROMPTED: losses of completions without their prompts.
    """

    SIGNALS = "signals"
    LOSSES = "losses"
    LOSSES_AND_FEATURES = "losses_and_features"
    UNPROMPTED = "unprompted"


@dataclass(frozen=True, kw_only=True)
class ScoringTask(ModelTask):
    """A range of examples to score; equal tasks give equal bits on one kind of device.

    `start` and `stop` are positions without the `quarantined` ids, which are ascending. `seed` is
    for values that the weights lack. `nonce` and the positions `proof_ids` ask for a proof that
    the worker has the data.
    """

    fingerprint: Annotated[str, Field(min_length=1, max_length=100)]
    start: Annotated[int, Field(ge=0)]
    stop: Annotated[int, Field(ge=1)]
    batch_size: Annotated[int, Field(ge=1)]
    threads: Annotated[int, Field(ge=1)]
    values: ScoredValues
    half_errors: bool = False
    half_features: bool = False
    quarantined: Annotated[tuple[int, ...], Field(max_length=10_000)] = ()
    seed: int = 0
    nonce: Annotated[str, Field(max_length=100)] = ""
    proof_ids: Annotated[tuple[int, ...], Field(max_length=1000)] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stop <= self.start:
            raise ConfigError(f"the task's range is empty: {self}. Use the coordinator's lipt.")
        is_of_texts = self.target.kind is TargetKind.TOKENS
        if self.values is ScoredValues.UNPROMPTED and not is_of_texts:
            raise ConfigError(f"the task has no prompts: {self}. Use the coordinator's lipt.")

    def __len__(self) -> int:
        return self.stop - self.start
