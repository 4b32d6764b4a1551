"""Augmentation of main training: what every image of a step gets, and the copies of a coreset.

The strongest augmentations cost as much as the step that they are for, and few images need
them. So the images of a coreset can be copied, and only the copies are augmented strongly: they
are trained on beside the data, which is augmented as the recipe says, or not at all.

Shapes: B images of a batch, K of them copies.
Source: Liu and Mirzasoleiman 2022, "Data-Efficient Augmentation for Training Neural Networks"
(arXiv:2210.08363), where the coreset is CRAIG's and is chosen again as training goes on. Here it
is any subset.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.common.config.run_config import AugmentationConfig, AugmentationMethod
from lipt.common.determinism import derive_generator
from lipt.common.images.crop_flip import crop_flip
from lipt.common.inputs.stored import Stored
from lipt.core.learner.augmentation import augment_images
from lipt.trainer.main_training.recipe import Recipe


def augmented(recipe: Recipe, step: int, examples_B: Stored, copies_K: Tensor | None) -> Stored:
    """The examples of a step as the model is given them, by draws of their own.

    Args:
        recipe: how images are augmented, and with which seed.
        step: counted from 0.
        examples_B: as they are stored, on any device. Not modified.
        copies_K: which of them are copies of a coreset's, int64 on the same device; None where
            there are none. What the others get does not depend on it.

    Returns:
        Examples of the same shape on the same device. What is no image has no augmentation.

    Raises:
        DataError: RandAugment is given images that are not bytes with 1 or 3 channels.
    """
    if not isinstance(examples_B, Tensor):
        return examples_B
    generator = derive_generator(recipe.seed, "main-augmentation", step)
    images_B = _by(recipe.augmentation, recipe, examples_B, generator)
    if copies_K is None:
        return images_B
    # The copies begin with what is stored: the data's mild augmentation is not theirs.
    generator = derive_generator(recipe.seed, "coreset-augmentation", step)
    stored_K = examples_B.index_select(0, copies_K)
    images_K = _by(recipe.coreset_augmentation, recipe, stored_K, generator)
    return images_B.index_copy(0, copies_K, images_K)


def _by(method: str, recipe: Recipe, images_B: Tensor, generator: torch.Generator) -> Tensor:
    if method == "none":
        return images_B
    shifted_B = crop_flip(
        images_B, generator=generator, padding=recipe.padding, flip=method != "crop"
    )
    if method != "randaugment":
        return shifted_B
    config = AugmentationConfig(
        method=AugmentationMethod.RANDAUGMENT,
        num_ops=recipe.randaugment_ops,
        magnitude=recipe.randaugment_magnitude,
    )
    return augment_images(shifted_B, config, generator)
