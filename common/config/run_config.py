"""Run configuration; the wire's `RunConfig` has the same fields.

The preset `paper` has the values that the paper (Ro et al. 2023) states; defaults differ where
others were measured to be better. `mixture` is of runs whose learners answer `lipt mixture`, and
`mixture-text` of those that train causal models.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Density = Annotated[float, Field(gt=0.0, le=1.0)]


class Precision(StrEnum):
    """Number format of training."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class LearnerOptimizer(StrEnum):
    """Optimizer of a learner."""

    AUTO = "auto"
    SGD = "sgd"
    ADAMW = "adamw"


class WeightEncoding(StrEnum):
    """Form of a learner's weights on the wire; only BFLOAT16_PLANES rounds."""

    BITMASK = "bitmask"
    PLANES = "planes"
    BFLOAT16_PLANES = "bfloat16_planes"


class AugmentationMethod(StrEnum):
    """Augmentation of a learner's images."""

    RANDAUGMENT = "randaugment"
    CROP_FLIP = "crop_flip"
    NONE = "none"


class ShardRule(StrEnum):
    """Rule by which learners' shards are drawn."""

    RANDOM = "random"
    SOURCE = "source"


class PruningMethod(StrEnum):
    """Rule by which a learner drops weights."""

    MAGNITUDE = "magnitude"
    SNIP = "snip"
    RANDOM = "random"
    NONE = "none"


class SoupMethod(StrEnum):
    """Rule by which learners are merged."""

    GREEDY = "greedy"
    INTERPOLATION = "interpolation"
    UNIFORM = "uniform"
    SIMPLEX = "simplex"


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Override nested settings of `base` with the leaves of `over`."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged


class SettingsGroup(BaseModel):
    """A group of settings."""

    # JSON has no infinity or NaN, so such a run could not be read again.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )
    # Pairs of settings of which the first may not be the larger.
    ordered: ClassVar[tuple[tuple[str, str], ...]] = ()

    @model_validator(mode="after")
    def _is_in_order(self) -> Self:
        for lower, upper in self.ordered:
            low, high = getattr(self, lower), getattr(self, upper)
            if low > high:
                raise ValueError(
                    f"{lower} {low} is more than {upper} {high}. Lower {lower}, or raise {upper}."
                )
        return self


class ValidationConfig(SettingsGroup):
    """The split held out of the training set for the soup, stratified by class."""

    fraction: float = Field(default=0.02, gt=0.0, le=0.5)
    """Share of each class that is held out."""
    min_per_class: int = Field(default=20, ge=1)
    """Fewest examples held out of a class, though never more than half of it."""


class InitializationConfig(SettingsGroup):
    """Initialization of theta*, the weights that every learner starts from."""

    epochs: float = Field(default=0.0, ge=0.0, le=3.0)
    """Epochs that theta* is trained for, on the whole training split. 0 leaves it untrained."""
    steps: int | None = Field(default=None, ge=0, examples=[100])
    """Optimizer steps that theta* is trained for, in place of `epochs`."""
    weights_sha256: Sha256 | None = Field(default=None, examples=["<64 hexadecimal digits>"])
    """SHA-256 of the safetensors blob that theta* begins with, in place of random weights. The flag
    `--initial-weights FILE` of lipt run start uploads it."""
    new_head: bool = False
    """Whether those weights are of a model with other classes: its head is left out, and a new one
    is drawn from the run's seed."""
    batch_size: int = Field(default=256, ge=1)
    """Examples per optimizer step of theta*'s training."""
    learning_rate: float = Field(default=0.1, gt=0.0, le=3e38)
    """Constant learning rate of theta*'s training."""


class LearnersConfig(SettingsGroup):
    """Training of every learner on its shard: K passes over M minibatches of B examples."""

    shards: ShardRule = ShardRule.RANDOM
    """`random` shards are disjoint; `source` trains two learners on each source of the data, which
    its name gives (`csv:PATH?label=COLUMN&source=COLUMN`), and draws small sources again."""
    worker_sources: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = Field(
        default=(), max_length=64, examples=[["clinic"]]
    )
    """More sources with `shards` by source: workers hold their data (`lipt-worker --source NAME`),
    which never leaves them."""
    num_learners: int = Field(default=2, ge=1, le=10_000)
    """n: number of learners, each trained on its own shard. Two long ones know more than the
    paper's ten short ones, for the same work."""
    num_minibatches: int = Field(default=32, ge=1)
    """M: number of minibatches in a learner's shard."""
    num_steps: int = Field(default=10, ge=1)
    """K: number of passes of a learner over its minibatches. Many more overfit a small shard."""
    num_snapshots: int = Field(default=0, ge=0, le=1000)
    """States that a learner sends in, the last one before pruning: what `forgetting`, `aum`, `dual`
    see; 0: its pruned end alone. At most `num_steps`, each as large as a dense result."""
    batch_size: int = Field(default=64, ge=1)
    """B: examples in a minibatch."""
    accumulation_steps: int = Field(default=1, ge=1)
    """Parts that a minibatch is computed in, one after another, for one step: less memory, and the
    same gradient. At most `batch_size`."""
    optimizer: LearnerOptimizer = LearnerOptimizer.AUTO
    """`auto` is AdamW for next tokens, else SGD. AdamW scales gradients down to the norm 1."""
    learning_rate: float = Field(default=0.05, gt=0.0, le=3e38)
    """Constant learning rate. From a random theta*, SGD with 0.1 leaves `resnet18` at chance, while
    `resnet8` gains from 0.2."""
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Momentum: of SGD, or of AdamW's mean gradient."""
    weight_decay: float = Field(default=5e-4, ge=0.0)
    """Weight decay of the optimizer."""
    min_learners: int = Field(default=1, ge=1)
    """Fewest learners that make a soup: a run that gets fewer fails. At most `num_learners`."""
    deadline_seconds: float = Field(default=0.0, ge=0.0)
    """How long a run waits for learners, from its first assignment on; then it goes on with those
    that are in. 0 waits for all; else it should outlast a lease."""
    max_attempts: int = Field(default=3, ge=1)
    """Attempts at a learner before it counts as failed."""
    redundancy: int = Field(default=1, ge=1, le=2)
    """Workers that must submit the same learner, to the bit, before it counts. 2 finds a
    faulty one, at twice the training; they need certificates or tokens of their own."""
    precision: Precision = Precision.AUTO
    """Number format of a learner's training. `auto` is bfloat16 on CUDA devices that have it, else
    float32: on workers of mixed kinds one seed is no longer one soup."""
    cpu_threads: int = Field(default=1, ge=1)
    """Threads for training on a CPU. Part of the run, because the sums in a convolution's gradient
    depend on their number."""
    encoding: WeightEncoding = WeightEncoding.BITMASK
    """How a learner's weights travel. `planes` is as exact as `bitmask`, a fifth smaller and slower
    to make; `bfloat16_planes` rounds, to a third of the size."""
    frozen: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = Field(
        default=(), max_length=100, examples=[["layer1.*", "conv1.*"]]
    )
    """Layers that stay as they are in theta*: globs over the names of parameters, such as
    `layer1.*`, or `all-but-head`. They are not trained, not pruned, and do not travel back."""

    ordered = (
        ("min_learners", "num_learners"),
        ("num_snapshots", "num_steps"),
        ("accumulation_steps", "batch_size"),
    )

    @property
    def snapshot_steps(self) -> tuple[int, ...]:
        """The steps after which snapshots are taken: K s / S for s = 1..S, halves rounded up.

        All are distinct, and the last is K.
        """
        parts = self.num_snapshots
        return tuple(
            (2 * self.num_steps * part + parts) // (2 * parts) for part in range(1, parts + 1)
        )


class AugmentationConfig(SettingsGroup):
    """Augmentation of the images that a learner trains on."""

    method: AugmentationMethod = AugmentationMethod.RANDAUGMENT
    """`randaugment` distorts each image by random operations; `crop_flip` shifts it by up to 4
    pixels and mirrors half of them."""
    num_ops: int = Field(default=2, ge=0, le=10)
    """Operations that RandAugment applies to an image."""
    magnitude: int = Field(default=9, ge=0, le=30)
    """Strength of RandAugment's operations."""


class PruningConfig(SettingsGroup):
    """Pruning of a learner to its density, the share of weights that it KEEPS."""

    method: PruningMethod = PruningMethod.MAGNITUDE
    """Which weights are dropped: the smallest (`magnitude`), those that the loss depends on least
    (`snip`), any (`random`), or none at all."""
    density_min: Density = 0.85
    """Lowest density. Each learner gets its own, uniform from here to `density_max`."""
    density_max: Density = 0.95
    """Highest density."""

    ordered = (("density_min", "density_max"),)


class SoupConfig(SettingsGroup):
    """Merging of the learners, and re-estimation of batch-norm statistics."""

    method: SoupMethod = SoupMethod.GREEDY
    """`greedy` averages learners that do not lower validation accuracy, `interpolation` mixes each
    in at the best ratio, as the paper does, `uniform` averages all, `simplex` fits weights."""
    num_alphas: int = Field(default=10, ge=1, le=1000)
    """Ratios that `interpolation` tries for each learner: 1/num_alphas, 2/num_alphas, ..., 1."""
    reestimate_batch_norm: bool = True
    """Whether batch-norm statistics are estimated again before every evaluation, and for theta_p.
    """
    batch_norm_examples: int = Field(default=512, ge=2)
    """Training images that batch-norm statistics are estimated from."""


# All linear layers but the head.
ALL_LINEAR = "all-linear"


class AdaptersConfig(SettingsGroup):
    """LoRA adapters in place of training all weights: one factor of each is trained and sent."""

    rank: int = Field(default=0, ge=0, le=4096, examples=[8])
    """Rank of the adapters. 0 trains all weights; else the extra `lm` is needed."""
    alpha: float = Field(default=16.0, gt=0.0, le=1e6)
    """Scale of the adapters: what one adds is multiplied by `alpha` / `rank`."""
    target_modules: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = Field(
        default=(ALL_LINEAR,), min_length=1, max_length=100, examples=[["q_proj", "v_proj"]]
    )
    """Linear layers with adapters, by the ends of their names; `all-linear` is all but the head."""


NO_ADAPTERS = AdaptersConfig()


class RunConfig(SettingsGroup):
    """Everything a run's result depends on, besides the data and the library versions."""

    model: str = "resnet18"
    """The model: `resnet8` (for CPUs), `resnet18`, `wrn28_10`, `torchvision:NAME`; `mlp`, `linear`,
    `text:tiny`; `package.module:factory`. For next tokens: `text:causal`, `causal:FOLDER`."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Everything random is drawn from it: on one kind of device one seed gives one soup and one
    subset, whatever the workers do."""
    validation: ValidationConfig = ValidationConfig()
    initialization: InitializationConfig = InitializationConfig()
    learners: LearnersConfig = LearnersConfig()
    augmentation: AugmentationConfig = AugmentationConfig()
    pruning: PruningConfig = PruningConfig()
    soup: SoupConfig = SoupConfig()
    adapters: AdaptersConfig = NO_ADAPTERS
    # The kernels: batch statistics of channels-last activations, and MobileNet's forward pass.
    evaluation_threads: int = Field(default=2, ge=1)
    """Threads for the signals on a CPU, and mixtures scored at a time for the soup, each with a
    copy of the model; raise it on a large head node. Sums in the signals depend on it."""

    @property
    def network(self) -> tuple[str, AdaptersConfig]:
        """The network that is built: weights of the same bytes are another one at another alpha."""
        return self.model, self.adapters


# One pass of plain training: what a learner shares with its source matters, not how well it does.
_MIXTURE: dict[str, Any] = {
    "initialization": {"batch_size": 64, "learning_rate": 0.05, "steps": 800},
    "learners": {"shards": "source", "num_minibatches": 60, "num_steps": 1, "batch_size": 64},
    "augmentation": {"method": "none"},
    "pruning": {"method": "none", "density_min": 1.0, "density_max": 1.0},
    "soup": {"method": "simplex"},
}
# By AdamW, whose first steps go far: longer learners leave the region where they merge.
_OF_TEXTS: dict[str, Any] = {
    "initialization": {"learning_rate": 2e-3},
    "learners": {"num_minibatches": 20, "learning_rate": 1e-3},
}
# A choice for a target looks at theta* alone: the run's learner is as short as can be.
_FOR_TARGETS: dict[str, Any] = {
    "initialization": {"steps": 400},
    "learners": {"shards": "random", "num_learners": 1, "num_minibatches": 1},
    "soup": {"method": "uniform"},
}
_MIXTURE_TEXT = merge(_MIXTURE, _OF_TEXTS)
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # Ro et al. 2023; M = 1 is that of CIFAR-10, with 5 for CIFAR-100 and 10 for ImageNet.
        "paper": {
            "learners": {
                "num_learners": 10,
                "num_minibatches": 1,
                "num_steps": 10,
                "batch_size": 256,
            },
            "augmentation": {"method": "randaugment", "magnitude": 9},
            "pruning": {"method": "magnitude", "density_min": 0.85, "density_max": 0.95},
            "soup": {"method": "interpolation", "num_alphas": 10},
        },
        "mixture": _MIXTURE,
        "mixture-text": _MIXTURE_TEXT,
        "target": merge(_MIXTURE, _FOR_TARGETS),
        "target-text": merge(_MIXTURE_TEXT, _FOR_TARGETS),
    }
)
"""Named settings of a run, nested as in `RunConfig`; a user's own go over them with `merge`."""


def preset_of(
    purpose: Literal["mixture", "target"], *, of_texts: bool, comes_trained: bool = False
) -> Mapping[str, Any]:
    """Settings for mixtures of sources or choices for targets, of causal texts or other data.

    A theta* that comes trained is taken as it is.
    """
    preset = PRESETS[f"{purpose}-text" if of_texts else purpose]
    return merge(preset, {"initialization": {"steps": 0}}) if comes_trained else preset
