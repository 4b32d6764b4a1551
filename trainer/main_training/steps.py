"""Steps of main training: augmentation, forward pass, loss and optimizer.

Nothing waits for the device. All randomness derives from the recipe's seed and the step, so resumed
training is bit-identical. Shapes: B examples of a batch, C classes, N examples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from lipt.common.config.run_config import AugmentationConfig, AugmentationMethod, Precision
from lipt.common.data import Dataset, input_format
from lipt.common.determinism import derive_generator, derive_seed
from lipt.common.images.formats import crop_flip
from lipt.common.inputs.model_input import Stored
from lipt.common.models import build_model, lay_out, memory_format
from lipt.common.models.head import evaluation_mode
from lipt.core.learner.augmentation import augment_images
from lipt.core.training import ForwardPass, Sgd
from lipt.trainer.main_training.examples import Batch
from lipt.trainer.main_training.recipe import Recipe
from lipt.trainer.subsets.weighted import example_losses

# Larger batches fall out of a CPU's caches, and keep a GPU busy.
_EVALUATION_BATCH_SIZE, _GPU_EVALUATION_BATCH_SIZE = 256, 2048


def augmented(recipe: Recipe, step: int, examples_B: Stored) -> Stored:
    """Augment the images of a step, counted from 0; other examples stay unchanged."""
    if not isinstance(examples_B, Tensor) or recipe.augmentation == "none":
        return examples_B
    generator = derive_generator(recipe.seed, "main-augmentation", step)
    flip = recipe.augmentation != "crop"
    shifted_B = crop_flip(examples_B, generator=generator, padding=recipe.padding, flip=flip)
    if recipe.augmentation != "randaugment":
        return shifted_B
    config = AugmentationConfig(
        method=AugmentationMethod.RANDAUGMENT,
        num_ops=recipe.randaugment_ops,
        magnitude=recipe.randaugment_magnitude,
    )
    return augment_images(shifted_B, config, generator)


def place_model(
    model: str | nn.Module,
    train: Dataset,
    recipe: Recipe,
    device: torch.device,
    allowed_modules: Collection[str],
) -> tuple[nn.Module, ForwardPass]:
    """Place the model, built from its name if needed, and return its forward pass."""
    bfloat16 = recipe.precision is Precision.BFLOAT16
    if recipe.precision is Precision.AUTO and device.type == "cuda":
        bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    seed = derive_seed(recipe.seed, "normalization")
    forward_pass = ForwardPass(
        input_format(train, torch.arange(len(train)), seed),
        train.target,
        device,
        memory_format(model) if isinstance(model, str) else torch.contiguous_format,
        bfloat16,
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
    """Return the accuracy without augmentation, in [0, 1]; R², at most 1, for regression."""
    tally, device = forward_pass.target.tally(), forward_pass.device
    size = _EVALUATION_BATCH_SIZE if device.type == "cpu" else _GPU_EVALUATION_BATCH_SIZE
    with evaluation_mode(model), torch.inference_mode():
        for ids_B in torch.split(ids_N, size):
            logits_BC = forward_pass(model, dataset.examples(ids_B))
            tally.add(logits_BC, dataset.targets_N[ids_B].to(device, non_blocking=True))
    return tally.score()


class Steps:
    """The optimizer steps of one training; they change `model` in place."""

    def __init__(
        self, model: nn.Module, forward_pass: ForwardPass, recipe: Recipe, num_steps: int
    ) -> None:
        self._forward_pass, self._recipe, self.num_steps = forward_pass, recipe, num_steps
        self._call: Callable[..., Any] = model
        if recipe.compile:
            # One compilation per shape: dynamic-shape code is slower for the most common shape.
            mode = "reduce-overhead" if recipe.cuda_graphs else "default"
            self._call = torch.compile(model, dynamic=False, mode=mode)
        self._graphs = recipe.compile and recipe.cuda_graphs
        self.sgd = Sgd(
            model,
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            nesterov=recipe.nesterov,
            fused=forward_pass.device.type == "cuda",
        )

    def take(self, step: int, batch: Batch) -> tuple[Tensor, Tensor]:
        """Take a step, counted from 0.

        Returns, on the device, float64 sums of weighted losses and merits (correct classes), and B
        losses.
        """
        recipe, target, targets_B = self._recipe, self._forward_pass.target, batch.targets_B
        if self._graphs:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        examples_B = augmented(recipe, step, batch.examples_B)
        logits_BC = self._forward_pass(self._call, examples_B)
        smoothing, soft_BC = recipe.label_smoothing, batch.soft_labels_BC
        if soft_BC is None:
            losses_B = target.losses(logits_BC, targets_B, label_smoothing=smoothing)
        else:
            mixed = soft_BC, recipe.soft_labels
            losses_B = example_losses(logits_BC, targets_B, *mixed, label_smoothing=smoothing)
        loss = (losses_B * batch.weights_B).mean()
        self.sgd.step(loss, recipe.learning_rate_at(step, self.num_steps))
        merit = target.merits(logits_BC.detach(), targets_B).double().sum()
        sums = torch.stack([loss.detach().double() * len(targets_B), merit])
        return sums, losses_B.detach()
