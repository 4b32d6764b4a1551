"""Optimizer steps: augmentation, forward and backward pass, SGD.

Nothing here waits for the device. What is random comes from the recipe's seed and the
number of the step, so that training that was killed goes on as if it had not been.

Shapes: B examples of a batch, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lipt.common.weights.specs import Weights
from lipt.trainer.main_training.augmenting import augmented
from lipt.trainer.main_training.examples import Batch
from lipt.trainer.main_training.forward import ForwardPass
from lipt.trainer.main_training.recipe import Recipe


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
        self._model, self._forward_pass, self._recipe = model, forward_pass, recipe
        self.num_steps = num_steps
        self._call: Callable[..., Any] = _compiled(model, recipe) if recipe.compile else model
        self._graphs = recipe.compile and recipe.cuda_graphs
        self._optimizer = torch.optim.SGD(
            model.parameters(),
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            nesterov=recipe.nesterov,
            fused=forward_pass.device.type == "cuda",
        )

    def take(self, step: int, batch: Batch) -> Taken:
        """Take a step, counted from 0."""
        recipe, target, targets_B = self._recipe, self._forward_pass.target, batch.targets_B
        for group in self._optimizer.param_groups:
            group["lr"] = recipe.learning_rate_at(step, self.num_steps)
        if self._graphs:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        examples_B = augmented(recipe, step, batch.examples_B, batch.copies_K)
        logits_BC = self._forward_pass(self._call, examples_B)
        losses_B = target.losses(logits_BC, targets_B, label_smoothing=recipe.label_smoothing)
        loss = (losses_B * batch.weights_B).mean()
        self._optimizer.zero_grad()
        torch.autograd.backward(loss)
        self._optimizer.step()
        merit = target.merits(logits_BC.detach(), targets_B).double().sum()
        sums = torch.stack([loss.detach().double() * len(targets_B), merit])
        return Taken(sums, losses_B.detach())

    def momentum(self) -> Weights:
        """The optimizer's state by the parameter's name; empty before the first step."""
        states = {
            name: self._optimizer.state.get(parameter, {}).get("momentum_buffer")
            for name, parameter in self._model.named_parameters()
        }
        return {name: buffer for name, buffer in states.items() if buffer is not None}

    def restore_momentum(self, momentum: Weights) -> None:
        """Go on with the optimizer's state of a checkpoint."""
        for name, parameter in self._model.named_parameters():
            if name in momentum:
                buffer = torch.empty_like(parameter).copy_(momentum[name])
                self._optimizer.state[parameter]["momentum_buffer"] = buffer


def _compiled(model: nn.Module, recipe: Recipe) -> Callable[..., Any]:
    # For each shape anew: code for any shape would be slower for the one that nearly all have.
    mode = "reduce-overhead" if recipe.cuda_graphs else "default"
    compiled: Callable[..., Any] = torch.compile(model, dynamic=False, mode=mode)
    return compiled
