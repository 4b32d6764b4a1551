"""Steps of main training: augmentation, forward pass, loss and optimizer.

Nothing here waits for the device. What is random comes from the recipe's seed and the
number of the step, so that training that was killed goes on as if it had not been.

Shapes: B examples of a batch, K of them copies, C classes, N examples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lipt.common.config.run_config import AugmentationConfig, AugmentationMethod, Precision
from lipt.common.data import Dataset, input_format
from lipt.common.determinism import derive_generator, derive_seed
from lipt.common.images.crop_flip import crop_flip
from lipt.common.inputs.stored import Stored
from lipt.common.models import build_model, lay_out, memory_format
from lipt.common.models.modes import evaluation_mode
from lipt.core.learner.augmentation import augment_images
from lipt.core.training import ForwardPass, Sgd
from lipt.trainer.main_training.examples import Batch
from lipt.trainer.main_training.recipe import Recipe

# The strongest augmentations cost as much as the step that they are for, and few images need
# them. So the images of a coreset can be copied, and only the copies are augmented strongly: they
# are trained on beside the data, which is augmented as the recipe says, or not at all.
#
# Source: Liu and Mirzasoleiman 2022, "Data-Efficient Augmentation for Training Neural Networks"
# (arXiv:2210.08363), where the coreset is CRAIG's and is chosen again as training goes on. Here it
# is any subset.


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


# On CPUs twice as fast as 512, whose activations fall out of the caches. A GPU has no such
# edge, and is kept busy by large ones.
_EVALUATION_BATCH_SIZE, _GPU_EVALUATION_BATCH_SIZE = 256, 2048


def place_model(
    model: str | nn.Module,
    train: Dataset,
    recipe: Recipe,
    device: torch.device,
    allowed_modules: Collection[str],
) -> tuple[nn.Module, ForwardPass]:
    """The model on its device, built where it is a name, and how `train`'s examples enter it."""
    seed = derive_seed(recipe.seed, "normalization")
    forward_pass = ForwardPass(
        input_format(train, torch.arange(len(train)), seed),
        train.target,
        device,
        memory_format(model) if isinstance(model, str) else torch.contiguous_format,
        _in_bfloat16(recipe.precision, device),
    )
    if not isinstance(model, str):
        return model.to(device), forward_pass
    built = build_model(
        model,
        num_classes=train.target.num_outputs,
        inputs=train.inputs,
        seed=derive_seed(recipe.seed, "main-model"),
        allowed_modules=allowed_modules,
    )
    return lay_out(built, model, device), forward_pass


def accuracy(model: nn.Module, dataset: Dataset, ids_N: Tensor, forward_pass: ForwardPass) -> float:
    """The score on examples without augmentation; of classes, the share that is right.

    Args:
        model: its training flags are restored.
        dataset: where examples and targets come from.
        ids_N: which of its examples, int64, at least one.
        forward_pass: how they go through the model, as in its training.

    Returns:
        In [0, 1]; of numbers their R², from -1 on.
    """
    tally, device = forward_pass.target.tally(), forward_pass.device
    on_cpu = device.type == "cpu"
    size = _EVALUATION_BATCH_SIZE if on_cpu else _GPU_EVALUATION_BATCH_SIZE
    with evaluation_mode(model), torch.inference_mode():
        for ids_B in torch.split(ids_N, size):
            logits_BC = forward_pass(model, dataset.examples(ids_B))
            tally.add(logits_BC, dataset.targets_N[ids_B].to(device, non_blocking=True))
    return tally.score()


def _in_bfloat16(precision: Precision, device: torch.device) -> bool:
    if precision is Precision.AUTO:
        return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return precision is Precision.BFLOAT16


@dataclass(frozen=True)
class Taken:
    """What a step showed; on the device.

    sums: over the batch, of weighted loss and of how well it was answered (of classes, how many
        rightly); float64.
    losses_B: each example's loss without its weight, before the step; float32.
    """

    sums: Tensor
    losses_B: Tensor


class Steps:
    """The steps of one training, by their number.

    Args:
        model: trained in place.
        forward_pass: how examples go through it.
        recipe: how it is trained.
        num_steps: how many steps there will be in all.
    """

    def __init__(
        self, model: nn.Module, forward_pass: ForwardPass, recipe: Recipe, num_steps: int
    ) -> None:
        self._forward_pass, self._recipe, self.num_steps = forward_pass, recipe, num_steps
        self._call: Callable[..., Any] = _compiled(model, recipe) if recipe.compile else model
        self._graphs = recipe.compile and recipe.cuda_graphs
        self.sgd = Sgd(
            model,
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            nesterov=recipe.nesterov,
            fused=forward_pass.device.type == "cuda",
        )

    def take(self, step: int, batch: Batch) -> Taken:
        """Take a step, counted from 0."""
        recipe, target, targets_B = self._recipe, self._forward_pass.target, batch.targets_B
        if self._graphs:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        examples_B = augmented(recipe, step, batch.examples_B, batch.copies_K)
        logits_BC = self._forward_pass(self._call, examples_B)
        losses_B = target.losses(logits_BC, targets_B, label_smoothing=recipe.label_smoothing)
        loss = (losses_B * batch.weights_B).mean()
        self.sgd.step(loss, recipe.learning_rate_at(step, self.num_steps))
        merit = target.merits(logits_BC.detach(), targets_B).double().sum()
        sums = torch.stack([loss.detach().double() * len(targets_B), merit])
        return Taken(sums, losses_B.detach())


def _compiled(model: nn.Module, recipe: Recipe) -> Callable[..., Any]:
    # For each shape anew: code for any shape would be slower for the one that nearly all have.
    mode = "reduce-overhead" if recipe.cuda_graphs else "default"
    compiled: Callable[..., Any] = torch.compile(model, dynamic=False, mode=mode)
    return compiled
