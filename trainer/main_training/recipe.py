"""Recipe of main training: the paper's, with every knob.

Source: LiPT (Ro et al. 2023), section 4: SGD, momentum 0.9, weight decay 5e-4, batch
256, cosine decay from 0.1, 200 epochs, 4-pixel random crop and flip.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from lipt.common.config.run_config import Precision

PositiveInt = Annotated[int, Field(ge=1)]


class Recipe(BaseModel):
    """Main training's settings.

    Attributes:
        epochs: passes over the subset; not used where `steps` is given.
        steps: optimizer steps in their place: what makes subsets of different sizes
            comparable.
        batch_size: examples per step; a subset's last batch of an epoch may be smaller.
        learning_rate: at the end of the warm-up.
        warmup_steps: steps over which the learning rate rises linearly.
        schedule: how it falls afterwards, to 0 or not at all.
        momentum: of SGD.
        nesterov: whether momentum is Nesterov's.
        weight_decay: of all parameters.
        label_smoothing: share of the target that goes to all classes.
        augmentation: of the training images.
        padding: pixels around an image that is cropped.
        precision: bfloat16 autocast, float32, or auto: bfloat16 on CUDA devices that have it.
            CPUs with AVX-512 BF16 train about twice as fast in bfloat16, but not to the
            same bits every time.
        weighted: whether an example's weight in the subset counts in the loss.
        compile: whether `torch.compile` is applied; it pays from minutes of training on.
        seed: of the initial weights, the order, and the augmentation.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: PositiveInt = 200
    steps: PositiveInt | None = None
    batch_size: PositiveInt = 256
    learning_rate: Annotated[float, Field(gt=0)] = 0.1
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    schedule: Literal["cosine", "constant"] = "cosine"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    nesterov: bool = False
    weight_decay: Annotated[float, Field(ge=0)] = 5e-4
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    augmentation: Literal["crop_flip", "crop", "none"] = "crop_flip"
    padding: Annotated[int, Field(ge=0)] = 4
    precision: Precision = Precision.AUTO
    weighted: bool = True
    compile: bool = False
    seed: Annotated[int, Field(ge=0)] = 0

    def num_steps(self, num_examples: int) -> int:
        """Optimizer steps in all, on a subset of this size."""
        if self.steps is not None:
            return self.steps
        return self.epochs * self.steps_per_epoch(num_examples)

    def steps_per_epoch(self, num_examples: int) -> int:
        """Optimizer steps in one pass."""
        full, left = divmod(num_examples, self.batch_size)
        return max(1, full + (left > 1))

    def batches(self, order_N: Tensor) -> list[Tensor]:
        """An epoch's order cut into batches.

        A last example that is left over alone joins the batch before it: it has no
        variance, which batch norm refuses.
        """
        batches = list(torch.split(order_N, self.batch_size))
        if len(batches) > 1 and len(batches[-1]) == 1:
            batches[-2:] = [torch.cat(batches[-2:])]
        return batches

    def learning_rate_at(self, step: int, num_steps: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.learning_rate
        progress = (step - self.warmup_steps) / max(1, num_steps - self.warmup_steps)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))
