"""Gradient matching: settings, distance, augmentation, and networks.

Shapes: B examples, R outputs of a layer, N synthetic images, C channels, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from lipt.common.determinism import derive_generator, derive_seed
from lipt.common.errors import ConfigError
from lipt.common.images.crop_flip import crop_flip
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.specs import ImageSpec
from lipt.common.models import build_model
from lipt.trainer.distillation.synthetic import SyntheticSet


class Distillation(BaseModel):
    """Settings of the synthetic images."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    per_class: int = Field(ge=1)
    """Synthetic images of each class, all stages together."""
    stages: int = Field(default=1, ge=1)
    """Stages, each with its share of the images; 1 is ordinary gradient matching."""
    networks: int = Field(default=10, ge=1)
    """Networks that a stage's images are matched with, one after another, each with first weights
    of its own, and the same ones in every stage."""
    matches: int = Field(default=10, ge=1)
    """Matches with each network, each with other real images."""
    steps_between: int = Field(default=5, ge=0)
    """Steps that a network is trained on all images so far between two matches."""
    steps_before: int = Field(default=50, ge=0)
    """Steps that a network is trained on the images of each stage before, and those before it."""
    learning_rate: float = Field(default=0.01, gt=0)
    """Learning rate of the networks."""
    image_learning_rate: float = Field(default=0.01, gt=0)
    """Learning rate of the images, whose pixels are from 0 to 1: about how far Adam moves each."""
    real_batch: int = Field(default=64, ge=1)
    """Real images of each class in a match."""
    discard: float = Field(default=0.0, ge=0, lt=1)
    """Share of each class's real images that stages after the first leave out: those with the
    lowest losses after training on the images so far."""
    augmentation: Literal["crop_flip", "crop", "none"] = "crop_flip"
    """How real and synthetic images are augmented alike: shifted and perhaps mirrored, or only
    shifted."""
    padding: int = Field(default=4, ge=0)
    """Pixels that an augmented image is shifted by at most."""
    seed: int = Field(default=0, ge=0)
    """Seed of the first images, the networks, and all draws."""

    @model_validator(mode="after")
    def _stages_are_equal(self) -> Self:
        if self.per_class % self.stages:
            raise ValueError(
                f"{self.per_class} images per class do not go into {self.stages} equal stages. "
                "Give a multiple of the stages."
            )
        return self

    @property
    def per_stage(self) -> int:
        """Images of each class in a stage."""
        return self.per_class // self.stages


def gradients(
    model: nn.Module,
    inputs_B: Tensor,
    labels_B: Tensor,
    weights_B: Tensor,
    *,
    differentiable: bool = False,
) -> tuple[Tensor, ...]:
    """The gradient of the weighted mean cross-entropy by each weight of two dimensions or more.

    The model must treat each example of a batch alone; where `differentiable`, the gradients can be
    differentiated by `inputs_B`.
    """
    losses_B = functional.cross_entropy(model(inputs_B), labels_B, reduction="none")
    loss = (losses_B * weights_B).sum() / weights_B.sum()
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    return torch.autograd.grad(loss, matrices, create_graph=differentiable)


def distance(real: Sequence[Tensor], synthetic: Sequence[Tensor]) -> Tensor:
    """The distance of two gradients, 0-d: the sum of 1 - cos over layers and their R rows.

    A row of zeros counts 1. Biases and normalizations are left out.

    Source: Zhao, Mopuri and Bilen 2021, "Dataset Condensation with Gradient Matching"
    (arXiv:2006.05929), equation 10.
    """
    similarities = [
        functional.cosine_similarity(one.flatten(1), other.flatten(1))
        for one, other in zip(real, synthetic, strict=True)
    ]
    return torch.cat([1 - rows_R for rows_R in similarities]).sum()


@dataclass(frozen=True)
class Augmentation:
    """A crop out of the image padded with black, and whether it is mirrored.

    It is drawn once for both batches of a match, and differentiable by the pixels. `top` and
    `left` are in 0..2 padding.

    Source: Zhao and Bilen 2021, "Dataset Condensation with Differentiable Siamese Augmentation"
    (arXiv:2102.08259); of its transformations, the two that main training has.
    """

    padding: int
    top: int
    left: int
    mirrored: bool

    @classmethod
    def drawn(cls, settings: Distillation, generator: torch.Generator) -> Augmentation:
        """Draw one that the settings allow; always draws equally many numbers."""
        padding = 0 if settings.augmentation == "none" else settings.padding
        top, left = torch.randint(2 * padding + 1, (2,), generator=generator).tolist()
        mirrored = bool(torch.randint(2, (1,), generator=generator).item())
        return cls(padding, top, left, mirrored and settings.augmentation == "crop_flip")

    def __call__(self, images_BCHW: Tensor) -> Tensor:
        """New images of the same shape."""
        height, width = images_BCHW.shape[-2:]
        padded = functional.pad(images_BCHW, [self.padding] * 4)
        cropped = padded[..., self.top : self.top + height, self.left : self.left + width]
        return cropped.flip(-1) if self.mirrored else cropped


_BATCH_SIZE = 256
_MOMENTUM = 0.9


@dataclass(frozen=True)
class Networks:
    """All networks of a distillation, by number; `image` has the real data's mean and deviation."""

    model: str
    image: ImageFormat
    num_classes: int
    settings: Distillation
    device: torch.device
    allowed_modules: Collection[str] = ()

    def normalized(self, pixels_BCHW: Tensor) -> Tensor:
        """Normalize pixels from 0 to 1; differentiable."""
        mean, std = (
            torch.tensor(figures, device=self.device)[:, None, None]
            for figures in (self.image.mean, self.image.std)
        )
        return (pixels_BCHW - mean) / std

    def enter(self, stage: int, number: int, synthetic: SyntheticSet) -> nn.Module:
        """A network that was trained on the stages before, one after another.

        Its first weights are the same in every stage. ConfigError: the model has batch norm.
        """
        network = self.untrained(number)
        for before in range(stage):
            images_NCHW, labels_N = synthetic.until(before)
            pixels_NCHW = images_NCHW.to(self.device, torch.float32) / 255
            generator = derive_generator(self.settings.seed, f"distillation-steps-{before}", number)
            num_steps = self.settings.steps_before
            self.train(network, pixels_NCHW, labels_N.to(self.device), num_steps, generator)
        return network

    def untrained(self, number: int) -> nn.Module:
        """A network with its first weights; errors as of `enter`."""
        network = build_model(
            self.model,
            num_classes=self.num_classes,
            inputs=ImageSpec(*self.image.shape),
            seed=derive_seed(self.settings.seed, "distillation-network", number),
            allowed_modules=self.allowed_modules,
        ).to(self.device)
        if any(isinstance(module, _BatchNorm) for module in network.modules()):
            raise ConfigError(
                f"{self.model} has batch norm: a class's gradient would depend on the batch. "
                "Distil with a model that normalizes each image alone, such as convnet; any model "
                "can be trained on the result."
            )
        return network

    def train(
        self,
        network: nn.Module,
        pixels_NCHW: Tensor,
        labels_N: Tensor,
        num_steps: int,
        generator: torch.Generator,
    ) -> None:
        """Train in place by SGD on images from 0 to 1."""
        settings = self.settings
        optimizer = torch.optim.SGD(
            network.parameters(), lr=settings.learning_rate, momentum=_MOMENTUM
        )
        for _ in range(num_steps):
            rows_B = torch.randperm(len(labels_N), generator=generator)[:_BATCH_SIZE]
            rows_B = rows_B.to(self.device)
            pixels_BCHW = pixels_NCHW[rows_B]
            if settings.augmentation != "none":
                pixels_BCHW = crop_flip(
                    pixels_BCHW,
                    generator=generator,
                    padding=settings.padding,
                    flip=settings.augmentation == "crop_flip",
                )
            logits_BC = network(self.normalized(pixels_BCHW))
            loss = functional.cross_entropy(logits_BC, labels_N[rows_B])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
