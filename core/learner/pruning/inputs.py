"""Pruning inputs: what a method may look at, and which of a model's tensors are pruned at all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# One number per weight, by the tensor's name; the weights with the largest are kept.
Scores = dict[str, Tensor]


@dataclass(frozen=True)
class PruningInputs:
    """A trained model as the pruning methods see it.

    weights: the prunable tensors by name, in the model's order. Never modified.
    gradients: computes the loss's gradient for each of `weights`, same names and
        shapes; called only by the methods that need it.
    generator: a CPU generator, used only by the methods that draw.
    """

    weights: Mapping[str, Tensor]
    gradients: Callable[[], Mapping[str, Tensor]]
    generator: torch.Generator


def prunable_parameters(model: nn.Module, frozen: Collection[str] = ()) -> dict[str, nn.Parameter]:
    """The floating-point parameters with at least 2 dimensions, in the model's order.

    These are the weights of convolutions and linear layers. Biases and the
    scales of normalization layers are few, and each of them carries a whole channel.
    What is frozen stays as it is.
    """
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.is_floating_point() and parameter.ndim >= 2 and name not in frozen
    }
