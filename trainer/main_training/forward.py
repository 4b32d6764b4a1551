"""Forward pass: the model in training, and the one way that examples go through it.

Shapes: B examples, C classes, N examples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lipt.common.config.run_config import Precision
from lipt.common.data import Dataset, input_format
from lipt.common.determinism import derive_seed
from lipt.common.inputs.model_input import in_layout, to_model_input
from lipt.common.inputs.specs import InputFormat, call_model
from lipt.common.inputs.stored import Stored
from lipt.common.models import build_model, lay_out, memory_format
from lipt.common.models.modes import evaluation_mode
from lipt.common.targets.target import Target
from lipt.trainer.main_training.recipe import Recipe

# On CPUs twice as fast as 512, whose activations fall out of the caches. A GPU has no such
# edge, and is kept busy by large ones.
_EVALUATION_BATCH_SIZE, _GPU_EVALUATION_BATCH_SIZE = 256, 2048


@dataclass(frozen=True)
class ForwardPass:
    """How examples become logits, the same in training and in evaluation.

    inputs: what the model is given of them.
    target: what it is to give.
    device: where the model is.
    memory_format: the layout of the model's inputs.
    bfloat16: whether the model runs under bfloat16 autocast.
    """

    inputs: InputFormat
    target: Target
    device: torch.device
    memory_format: torch.memory_format
    bfloat16: bool

    def __call__(self, model: Callable[..., Any], examples_B: Stored) -> Tensor:
        """The logits, B x C, of stored examples on any device."""
        inputs_B = to_model_input(examples_B, self.inputs, self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
            return call_model(model, in_layout(inputs_B, self.memory_format))


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
