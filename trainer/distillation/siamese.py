"""Siamese augmentation: one shift and flip for real and synthetic images alike.

Drawn once for both batches of a match, so that what differs between their gradients is the images;
differentiable by the pixels.

Shapes: B images, C channels, H x W pixels.
Source: Zhao and Bilen 2021, "Dataset Condensation with Differentiable Siamese Augmentation"
(arXiv:2102.08259); of its transformations, the two that main training has.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lipt.trainer.distillation.settings import Distillation


@dataclass(frozen=True)
class Augmentation:
    """A crop out of the image padded with black, and whether it is mirrored.

    top, left: of the crop, in 0..2 padding.
    """

    padding: int
    top: int
    left: int
    mirrored: bool

    @classmethod
    def drawn(cls, settings: Distillation, generator: torch.Generator) -> Augmentation:
        """One of those that the settings allow; it draws as many numbers for all of them."""
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
