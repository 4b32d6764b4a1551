"""Recipe and schedule of main training: optimizer settings, evaluations and checkpoints.

Source: LiPT (Ro et al. 2023), section 4: SGD, momentum 0.9, weight decay 5e-4, batch 256, cosine
decay from 0.1, 200 epochs, 4-pixel random crop and flip of 32x32 images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from torch import Tensor

from lipt.common.config.run_config import Precision
from lipt.common.config.values import explain, validate
from lipt.common.errors import ConfigError
from lipt.data.images.formats import mild_augmentation
from lipt.data.inputs.specs import ImageSpec, InputSpec
from lipt.data.targets.kinds import TargetKind
from lipt.trainer.arguments import require_argument

_OF_ADAMW = 1e-3


class Recipe(BaseModel):
    """Settings of main training."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    epochs: int = Field(default=200, ge=1)
    """Passes over the subset. Not used where `steps` is given."""
    steps: int | None = Field(default=None, ge=1)
    """Optimizer steps, in place of `epochs`: they make subsets of different sizes comparable."""
    batch_size: int = Field(default=256, ge=1)
    """Examples per step. The last batch of an epoch may be smaller."""
    drop_last: bool = False
    """Whether an epoch leaves out a smaller last batch, another one in every epoch: then all steps
    have one shape, for which `compile` compiles once."""
    learning_rate: float = Field(default=0.1, gt=0)
    """Learning rate at the end of the warm-up; 0.001 by default for next tokens, whose optimizer is
    AdamW, with gradients of norm 1 at most."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises linearly."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Whether the learning rate falls to 0 after the warm-up, along a cosine, or stays as it is."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of SGD."""
    nesterov: bool = False
    """Whether the momentum is Nesterov's."""
    weight_decay: float = Field(default=5e-4, ge=0)
    """Weight decay of SGD, on all parameters."""
    max_gradient_norm: float = Field(default=5.0, ge=0)
    """Norm that a step's gradient is scaled down to if it is larger; 0 never scales. Networks
    without batch norm need it: a large first step stops their units from learning."""
    soft_labels: float = Field(default=0.0, ge=0, le=1)
    """Share of the target that is the subset's soft label; above 0 the subset needs some."""
    augmentation: Literal["auto", "crop_flip", "crop", "randaugment", "none"] = "auto"
    """Shifts, and mirror images of half (`crop_flip`); with RandAugment after them. `auto`: from 28
    pixels a side shifts by up to an eighth, and mirror images in colour; nothing else."""
    padding: int = Field(default=4, ge=0)
    """Pixels that an augmented image is shifted by at most; with `auto` in place of its own."""
    precision: Precision = Precision.AUTO
    """`auto` is bfloat16 on CUDA devices that have it, else float32. CPUs may be slower in
    bfloat16: with AVX-512 BF16 and without AMX a step of `resnet18` took 1.4 times as long."""
    weighted: bool = True
    """Whether an example's weight in the subset counts in the loss."""
    compile: bool = False
    """Whether `torch.compile` is applied. It pays from minutes of training on."""
    cuda_graphs: bool = False
    """With `compile` on a CUDA device: whether a step's kernels are recorded once and then started
    together, which pays where the model is small for the device. Takes more of its memory."""
    seed: int = Field(default=0, ge=0)
    """Seed of the initial weights, the order, and the augmentation."""

    @model_validator(mode="wrap")
    @classmethod
    def _refuse(cls, values: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return validate(values)
        except ValidationError as error:
            raise ConfigError(explain(error, cls)) from None

    @classmethod
    def of(cls, given: Recipe | Mapping[str, Any] | None) -> Recipe:
        """Return a recipe with these settings, else the paper's; ConfigError for unknown ones."""
        if given is not None and not isinstance(given, Recipe | Mapping):
            raise ConfigError(
                f"recipe is a {type(given).__name__}. Give a lipt.Recipe or a dictionary, such as "
                '{"steps": 300}.'
            )
        return given if isinstance(given, Recipe) else validate(cls, dict(given or {}))

    def fitted_to(self, inputs: InputSpec, kind: TargetKind = TargetKind.CLASS) -> Recipe:
        """Return the recipe with `auto` resolved for the data's inputs.

        AdamW, which trains on next tokens, gets a learning rate of its own where none was given.
        """
        if kind is TargetKind.TOKENS and "learning_rate" not in self.model_fields_set:
            return self.model_copy(update={"learning_rate": _OF_ADAMW}).fitted_to(inputs)
        if self.augmentation != "auto":
            return self
        if not isinstance(inputs, ImageSpec):
            return self.model_copy(update={"augmentation": "none"})
        padding, mirrored = mild_augmentation(inputs.shape)
        if "padding" in self.model_fields_set:
            padding = self.padding
        method = "crop" if padding else "none"
        if mirrored:
            method = "crop_flip"
        return self.model_copy(update={"augmentation": method, "padding": padding})

    @property
    def augmentation_text(self) -> str:
        """The augmentation as text: `images shifted by up to 4 pixels and mirrored`."""
        if self.augmentation in ("auto", "none"):
            return f"augmentation: {self.augmentation}"
        more = {
            "crop_flip": " and mirrored",
            "randaugment": ", mirrored, and changed by RandAugment",
        }
        pixels = "1 pixel" if self.padding == 1 else f"{self.padding} pixels"
        return f"images shifted by up to {pixels}{more.get(self.augmentation, '')}"

    def num_steps(self, num_examples: int) -> int:
        """Return the optimizer steps of the whole training, for a subset's size."""
        if self.steps is not None:
            return self.steps
        return self.epochs * self.steps_per_epoch(num_examples)

    def steps_per_epoch(self, num_examples: int) -> int:
        """Return the optimizer steps of one epoch."""
        full, left = divmod(num_examples, self.batch_size)
        return max(1, full + (left > 1 and not self.drop_last))

    def batches(self, order_N: Tensor) -> list[Tensor]:
        """Split an epoch's order into batches; a single last example joins the previous batch."""
        batches = list(torch.split(order_N, self.batch_size))
        if self.drop_last:
            full = [batch for batch in batches if len(batch) == self.batch_size]
            return full or batches
        if len(batches) > 1 and len(batches[-1]) == 1:
            batches[-2:] = [torch.cat(batches[-2:])]
        return batches

    def learning_rate_at(self, step: int, num_steps: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.learning_rate
        progress = (step - self.warmup_steps) / max(1, num_steps - self.warmup_steps)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))


def evenly(times: int) -> tuple[float, ...]:
    """Return the marks between equal parts of all steps: 0.25, 0.5 and 0.75 for 4."""
    return tuple(part / times for part in range(1, times))


@dataclass(frozen=True)
class Schedule:
    """Times of main training's evaluations and checkpoints.

    test_at: shares of all steps, in (0, 1), after which the test set is evaluated; and at the end.
    subset_at: the same for the subset, without augmentation; None never evaluates it.
    checkpoint_seconds: time between checkpoints; 0 writes one after every epoch.
    """

    test_at: Sequence[float] = evenly(10)
    subset_at: Sequence[float] | None = evenly(10)
    checkpoint_seconds: float = 60.0

    def __post_init__(self) -> None:
        require_argument("test_at", self.test_at)
        require_argument("subset_at", self.subset_at)
        require_argument("checkpoint_seconds", self.checkpoint_seconds)


def marks(shares: Sequence[float] | None, num_steps: int) -> frozenset[int]:
    """Convert shares to step numbers, with the last step; none where `shares` is None."""
    if shares is None:
        return frozenset()
    # In floating point, 1/49 of 49 steps is slightly below 1.
    return frozenset(math.floor(share * num_steps + 1e-9) for share in (*shares, 1.0))
