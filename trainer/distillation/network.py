"""Networks that images are matched with: built from a seed, trained on what was distilled so far.

A network enters a stage in the state that the stages before have left it in: it was trained on
their images as they are trained on in the end, stage by stage.

Shapes: N synthetic images, B of a step.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from lipt.common.determinism import derive_generator, derive_seed
from lipt.common.errors import ConfigError
from lipt.common.images.crop_flip import crop_flip
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.specs import ImageSpec
from lipt.common.models import build_model
from lipt.trainer.distillation.settings import Distillation
from lipt.trainer.distillation.synthetic import SyntheticSet

_BATCH_SIZE = 256
_MOMENTUM = 0.9


@dataclass(frozen=True)
class Networks:
    """All networks of a distillation, by number.

    Attributes:
        model: the name of their model.
        image: what they are given, with the figures of the real data.
        num_classes: C.
        settings: how they are trained.
        device: where they are.
        allowed_modules: modules that the model may be imported from.
    """

    model: str
    image: ImageFormat
    num_classes: int
    settings: Distillation
    device: torch.device
    allowed_modules: Collection[str] = ()

    def normalized(self, pixels_BCHW: Tensor) -> Tensor:
        """What a network is given of pixels from 0 to 1; differentiable."""
        mean, std = (
            torch.tensor(figures, device=self.device)[:, None, None]
            for figures in (self.image.mean, self.image.std)
        )
        return (pixels_BCHW - mean) / std

    def enter(self, stage: int, number: int, synthetic: SyntheticSet) -> nn.Module:
        """A network as it enters a stage.

        Args:
            stage: from 0.
            number: of the network; its first weights are the same in every stage.
            synthetic: the images of the stages before.

        Raises:
            ConfigError: the model mixes the examples of a batch, or cannot be built.
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
        """A network with its first weights.

        Raises:
            ConfigError: as `enter`.
        """
        network = build_model(
            self.model,
            num_classes=self.num_classes,
            inputs=ImageSpec(*self.image.shape),
            seed=derive_seed(self.settings.seed, "distillation-network", number),
            allowed_modules=self.allowed_modules,
        ).to(self.device)
        if any(isinstance(module, _BatchNorm) for module in network.modules()):
            raise ConfigError(
                f"{self.model} has batch norm: what it makes of an image depends on the batch, "
                "and a class's gradient would be another beside others. Distil with a model "
                "that normalizes each image alone, such as convnet; any model can be trained on "
                "the result."
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
        """Train it in place for some steps of SGD on images from 0 to 1."""
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
