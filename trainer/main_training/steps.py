"""Steps of main training: the examples of an epoch in batches, augmentation, loss and optimizer.

Nothing waits for the device. All randomness derives from the recipe's seed and the step, so resumed
training is bit-identical. Shapes: N examples of the subset, B of a batch, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lipt.common.config.run_config import AugmentationConfig, AugmentationMethod, Precision
from lipt.common.determinism import derive_generator, derive_seed, seeded_generators
from lipt.common.errors import ConfigError, SubsetError
from lipt.common.imports import call_factory
from lipt.core.pretraining.augmentation import augment
from lipt.core.pretraining.training import ForwardPass, Sgd, optimizer_of
from lipt.data.dataset import Dataset, input_format
from lipt.data.images.formats import crop_flip
from lipt.data.inputs.model_input import Stored, pinned, rows_of, stored_on
from lipt.data.parallel import prefetched
from lipt.models.causal_folder import in_data_numbers
from lipt.models.head import evaluation_mode
from lipt.models.own_model import (
    in_float32_if_needed,
    plain_module,
    prepared,
    require_logits,
    require_state,
    require_values,
)
from lipt.models.registry import build_model, lay_out, memory_format
from lipt.trainer.main_training.recipe import Recipe
from lipt.trainer.subsets.data import example_losses, normalized_weights
from lipt.trainer.subsets.subset import Subset

# Largest examples kept on the device; on an accelerator, as a share of its free memory.
_MAX_CPU_BYTES = 4 * 1024**3
_MAX_DEVICE_SHARE = 0.5


@dataclass(frozen=True)
class Batch:
    """One step's examples on the device, with targets and weights (float32)."""

    examples_B: Stored
    targets_B: Tensor
    weights_B: Tensor
    soft_labels_BC: Tensor | None = None


class TrainingExamples:
    """A subset of a data set, or all of it, batch by batch on the device.

    Examples that fit stay on the device; otherwise a thread decodes the next batch during the
    current step. Positions in batches index `ids_N`, int64 row numbers.
    """

    def __init__(
        self, subset: Subset | None, dataset: Dataset, recipe: Recipe, device: torch.device
    ) -> None:
        self.subset, self.ids_N = subset, torch.arange(len(dataset))
        weights_N = torch.ones(len(dataset))
        if subset is not None:
            require_for(subset, dataset)
            self.ids_N = torch.as_tensor(subset.indices.copy())
            weights_N = torch.ones(len(subset))
            if recipe.weighted:
                weights_N = torch.as_tensor(subset.weights.copy())
            weights_N = normalized_weights(weights_N)
        self._soft_labels_NC: Tensor | None = None
        if recipe.soft_labels:
            if subset is None or subset.soft_labels is None:
                raise SubsetError(
                    "the recipe trains on soft labels, and the subset has none. Get it with "
                    "--soft-labels (soft_labels=True), of all examples by fraction 1."
                )
            self._soft_labels_NC = torch.as_tensor(subset.soft_labels.copy()).to(device)
        self._dataset, self._device = dataset, device
        self._targets_N = dataset.targets_N[self.ids_N].to(device)
        self._weights_N = weights_N.to(device)
        self._stored_N: Stored | None = None
        if len(self.ids_N) * dataset.inputs.num_bytes <= _device_budget_bytes(device):
            self._stored_N = stored_on(dataset.examples(self.ids_N), device)

    def __len__(self) -> int:
        return len(self.ids_N)

    @property
    def digest(self) -> str:
        """The subset's digest; empty for all examples."""
        return "" if self.subset is None else self.subset.digest

    def batches(self, positions: Sequence[Tensor]) -> Iterator[Batch]:
        """Yield the examples at each batch of positions (int64, on the CPU), in order."""
        # One asynchronous copy of all positions.
        there_N = torch.cat(list(positions)).to(self._device, non_blocking=True)
        there = torch.split(there_N, list(map(len, positions)))
        for there_B, examples_B in zip(there, self._examples(positions, there), strict=True):
            soft = self._soft_labels_NC
            yield Batch(
                examples_B,
                self._targets_N[there_B],
                self._weights_N[there_B],
                None if soft is None else soft[there_B].float(),
            )

    def _examples(self, positions: Sequence[Tensor], there: Sequence[Tensor]) -> Iterator[Stored]:
        if self._stored_N is not None:
            for there_B in there:
                yield rows_of(self._stored_N, there_B)
            return
        with prefetched(self._decode, positions) as decoded:
            for examples_B in decoded:
                yield stored_on(examples_B, self._device, non_blocking=True)

    def _decode(self, positions_B: Tensor) -> Stored:
        examples_B = self._dataset.examples(self.ids_N[positions_B])
        return pinned(examples_B) if self._device.type == "cuda" else examples_B


def _device_budget_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return _MAX_CPU_BYTES
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return int(free_bytes * _MAX_DEVICE_SHARE)


def require_for(subset: Subset, dataset: Dataset) -> None:
    if not len(subset):
        raise SubsetError("the subset is empty, so there is nothing to train on. Get another.")
    require_fingerprint("the subset", subset.fingerprint, dataset)


def require_fingerprint(what: str, fingerprint: object, dataset: Dataset) -> None:
    """Raise SubsetError where the data of `what` is another data set."""
    if fingerprint != dataset.fingerprint:
        raise SubsetError(
            f"the data of {what} has the fingerprint {fingerprint}, but {dataset.source} has "
            f"{dataset.fingerprint}. Give the same data, whole and in its order."
        )


# Larger batches fall out of a CPU's caches, and keep a GPU busy.
_EVALUATION_BATCH_SIZE, _GPU_EVALUATION_BATCH_SIZE = 256, 2048


def augmented(recipe: Recipe, step: int, examples_B: Stored) -> Stored:
    if not isinstance(examples_B, Tensor) or recipe.augmentation == "none":
        return examples_B
    generator = derive_generator(recipe.seed, "main-augmentation", step)
    flip = recipe.augmentation != "crop"
    shifted_B = crop_flip(examples_B, generator=generator, padding=recipe.padding, flip=flip)
    if recipe.augmentation != "randaugment":
        return shifted_B
    config = AugmentationConfig(method=AugmentationMethod.RANDAUGMENT)
    return augment(shifted_B, config, generator)


def place_model(
    model: str | nn.Module | Callable[..., nn.Module],
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
    seed, num_classes = derive_seed(recipe.seed, "main-model"), train.target.num_outputs
    if not isinstance(model, str | nn.Module) and callable(model):
        with seeded_generators(seed, torch.device("cpu")):
            model = call_factory("the model", model, num_classes=num_classes)
            if isinstance(model, nn.Module):
                model = in_float32_if_needed(prepared(model), train.inputs)
    if isinstance(model, nn.Module):
        about: dict[str, Any] = {"num_classes": num_classes, "inputs": train.inputs}
        model = in_data_numbers(model, **about, merge=False)
        # The module itself is tried: a compiled one would be compiled for the trial's shape.
        plain = plain_module(model)
        spec = type(plain).__name__
        require_values(plain, f"the model {spec!r}")
        model.to(device)
        require_logits(plain, spec, device=device, with_head=False, **about)
        require_state(plain, f"the model {spec!r}")
        return model, forward_pass
    if not isinstance(model, str):
        raise ConfigError(
            f"the model is a {type(model).__name__}. Give a name, such as resnet8, an nn.Module, "
            "or a function that returns one."
        )
    built = build_model(
        model,
        num_classes=num_classes,
        inputs=train.inputs,
        seed=seed,
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
        options: dict[str, Any] = {
            "lr": recipe.learning_rate,
            "momentum": recipe.momentum,
            "weight_decay": recipe.weight_decay,
        }
        optimizer = optimizer_of(forward_pass.target)
        if optimizer is Sgd:
            options |= {
                "max_norm": recipe.max_gradient_norm,
                "nesterov": recipe.nesterov,
                "fused": forward_pass.device.type == "cuda",
            }
        self.optimizer = optimizer(plain_module(model), **options)

    def take(self, step: int, batch: Batch) -> Tensor:
        """Take a step, counted from 0.

        Returns, on the device, float64 sums of weighted losses and merits (correct classes).
        """
        recipe, target, targets_B = self._recipe, self._forward_pass.target, batch.targets_B
        if self._graphs:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        examples_B = augmented(recipe, step, batch.examples_B)
        logits_BC = self._forward_pass(self._call, examples_B)
        if batch.soft_labels_BC is None:
            losses_B = target.losses(logits_BC, targets_B)
        else:
            soft = batch.soft_labels_BC, recipe.soft_labels
            losses_B = example_losses(logits_BC, targets_B, *soft)
        loss = (losses_B * batch.weights_B).mean()
        self.optimizer.step(loss, recipe.learning_rate_at(step, self.num_steps))
        merit = target.merits(logits_BC.detach(), targets_B).double().sum()
        return torch.stack([loss.detach().double() * len(targets_B), merit])
