"""Augmentation of batches on the device that trains on them.

Owns the methods that a run can name, and how each draws: from a CPU generator, so that one
seed gives the same draws on every device. They are of images: other examples are given to a model
as they are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lipt.common.config.run_config import AugmentationConfig, AugmentationMethod
from lipt.common.errors import DataError
from lipt.common.images.crop_flip import crop_flip
from lipt.common.inputs.stored import Stored
from lipt.core.learner.augmentation.randaugment import randaugment

__all__ = ["METHODS", "augment", "augment_images"]

Augment = Callable[[Tensor, AugmentationConfig, torch.Generator], Tensor]


def _randaugment(
    images_BCHW: Tensor, config: AugmentationConfig, generator: torch.Generator
) -> Tensor:
    return randaugment(
        images_BCHW, num_ops=config.num_ops, magnitude=config.magnitude, generator=generator
    )


def _crop_flip(
    images_BCHW: Tensor, _config: AugmentationConfig, generator: torch.Generator
) -> Tensor:
    return crop_flip(images_BCHW, generator=generator)


def _none(images_BCHW: Tensor, _config: AugmentationConfig, _generator: torch.Generator) -> Tensor:
    return images_BCHW


METHODS: dict[AugmentationMethod, Augment] = {
    AugmentationMethod.RANDAUGMENT: _randaugment,
    AugmentationMethod.CROP_FLIP: _crop_flip,
    AugmentationMethod.NONE: _none,
}


def augment(stored: Stored, config: AugmentationConfig, generator: torch.Generator) -> Stored:
    """Augment a batch, every image by its own draws.

    Args:
        stored: on the training device; images are uint8 with 1 or 3 channels. Not modified.
        config: which method, how many operations, how strong.
        generator: a CPU generator; what it draws depends on the batch's size only.

    Returns:
        Examples of the same shape on the same device, sharing memory with the given ones where
        the configuration changes nothing. What is no image has no augmentation.

    Raises:
        DataError: the images are not uint8 B x C x H x W with C = 1 or 3.
    """
    return augment_images(stored, config, generator) if isinstance(stored, Tensor) else stored


def augment_images(
    images_BCHW: Tensor, config: AugmentationConfig, generator: torch.Generator
) -> Tensor:
    """`augment` of what are images for certain."""
    dtype, shape = images_BCHW.dtype, images_BCHW.shape
    if dtype != torch.uint8 or len(shape) != 4 or shape[1] not in {1, 3}:
        raise DataError(
            f"images are {dtype} of shape {tuple(shape)}, but augmentation "
            "takes torch.uint8 of shape B x C x H x W with 1 or 3 channels. "
            "Convert the images when the data set is read."
        )
    return METHODS[config.method](images_BCHW, config, generator)
