"""What a run is made of, validated; the wire's `RunConfig` message has the same fields.

Defaults are the paper's (Ro et al. 2023) where it gives a figure.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Density = Annotated[float, Field(gt=0.0, le=1.0)]


class Precision(StrEnum):
    """What a learner computes in."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class WeightEncoding(StrEnum):
    """How a learner's weights travel; all but bfloat16 are bit-exact."""

    BITMASK = "bitmask"
    PLANES = "planes"
    BFLOAT16_PLANES = "bfloat16_planes"


class AugmentationMethod(StrEnum):
    """How a learner's images are augmented."""

    RANDAUGMENT = "randaugment"
    CROP_FLIP = "crop_flip"
    NONE = "none"


class PruningMethod(StrEnum):
    """Which weights a learner drops."""

    MAGNITUDE = "magnitude"
    SNIP = "snip"
    RANDOM = "random"
    NONE = "none"


class SoupMethod(StrEnum):
    """How learners are merged."""

    GREEDY = "greedy"
    UNIFORM = "uniform"


class _Section(BaseModel):
    # What is not finite has no JSON, so a run with it could not be read again.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ValidationConfig(_Section):
    """The split held out of the training set for the soup, stratified by class."""

    fraction: float = Field(default=0.02, gt=0.0, le=0.5)
    min_per_class: int = Field(default=20, ge=1)


class InitializationConfig(_Section):
    """How theta* is made: random or given weights, then a little training."""

    epochs: float = Field(default=0.0, ge=0.0, le=3.0)
    steps: int | None = Field(default=None, ge=0)
    weights_sha256: Sha256 | None = None
    batch_size: int = Field(default=256, ge=1)
    learning_rate: float = Field(default=0.1, gt=0.0)


class LearnersConfig(_Section):
    """What every learner does with its shard: K passes over M minibatches of B examples."""

    num_learners: int = Field(default=10, ge=1, le=10_000)
    num_minibatches: int = Field(default=1, ge=1)
    num_steps: int = Field(default=10, ge=1)
    # States on the way that are sent in beside the result, for strategies that watch training.
    num_snapshots: int = Field(default=0, ge=0, le=1000)
    batch_size: int = Field(default=256, ge=1)
    # Measured from a random theta*: 0.1 leaves ResNet-18 at chance; a small net takes 0.2.
    learning_rate: float = Field(default=0.05, gt=0.0)
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0)
    weight_decay: float = Field(default=5e-4, ge=0.0)
    min_learners: int = Field(default=1, ge=1)
    deadline_seconds: float = Field(default=0.0, ge=0.0)
    max_attempts: int = Field(default=3, ge=1)
    precision: Precision = Precision.AUTO
    cpu_threads: int = Field(default=1, ge=1)
    encoding: WeightEncoding = WeightEncoding.BITMASK

    @model_validator(mode="after")
    def _min_learners_can_arrive(self) -> Self:
        if self.min_learners > self.num_learners:
            raise ValueError(
                f"min_learners {self.min_learners} is more than num_learners "
                f"{self.num_learners}: such a run could never close. Lower min_learners."
            )
        return self

    @model_validator(mode="after")
    def _snapshots_have_steps_between(self) -> Self:
        if self.num_snapshots > self.num_steps - 1:
            raise ValueError(
                f"num_snapshots {self.num_snapshots} is more than the {self.num_steps - 1} states "
                f"between the first and the last of {self.num_steps} steps. Lower num_snapshots, "
                "or raise num_steps."
            )
        return self

    @property
    def snapshot_steps(self) -> tuple[int, ...]:
        """The steps after which a learner is copied: K s / (S + 1) for s = 1..S, rounded.

        Halves round up. All S of them are different, and lie in 1..K - 1.
        """
        parts = self.num_snapshots + 1
        return tuple((2 * self.num_steps * part + parts) // (2 * parts) for part in range(1, parts))


class AugmentationConfig(_Section):
    """RandAugment's strength: `num_ops` operations per image at `magnitude` of 31 bins."""

    method: AugmentationMethod = AugmentationMethod.RANDAUGMENT
    num_ops: int = Field(default=2, ge=0, le=10)
    magnitude: int = Field(default=9, ge=0, le=30)


class PruningConfig(_Section):
    """Each learner's density, the share of weights KEPT, is uniform in [min, max]."""

    method: PruningMethod = PruningMethod.MAGNITUDE
    density_min: Density = 0.85
    density_max: Density = 0.95

    @model_validator(mode="after")
    def _range_is_not_empty(self) -> Self:
        if self.density_min > self.density_max:
            raise ValueError(
                f"density_min {self.density_min} is above density_max {self.density_max}. "
                "Swap them, or set both to one value."
            )
        return self


class SoupConfig(_Section):
    """How the learners are merged and their batch-norm statistics mended."""

    method: SoupMethod = SoupMethod.GREEDY
    num_alphas: int = Field(default=10, ge=1, le=1000)
    reestimate_batch_norm: bool = True
    batch_norm_examples: int = Field(default=512, ge=2)


class RunConfig(_Section):
    """Everything a run's result depends on, besides the data and the library versions."""

    model: str = "resnet18"
    seed: int = Field(default=0, ge=0, lt=2**63)
    validation: ValidationConfig = ValidationConfig()
    initialization: InitializationConfig = InitializationConfig()
    learners: LearnersConfig = LearnersConfig()
    augmentation: AugmentationConfig = AugmentationConfig()
    pruning: PruningConfig = PruningConfig()
    soup: SoupConfig = SoupConfig()
    # Of the coordinator's CPU. Part of the run, because some kernels' sums depend on it:
    # batch statistics of channels-last activations, and MobileNet's forward pass.
    evaluation_threads: int = Field(default=2, ge=1)
