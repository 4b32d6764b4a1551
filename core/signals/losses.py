"""Losses: those of a batch's examples as a function of the model's parameters."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.func import functional_call

from lipt.common.inputs.specs import Inputs, arguments_of, logits_of
from lipt.common.targets.target import Target

Parameters = dict[str, Tensor]
# The SUM of the losses of a part of the examples, of the parameters.
LossSum = Callable[[Parameters], Tensor]


def loss_sum(model: nn.Module, target: Target, inputs_B: Inputs, targets_B: Tensor) -> LossSum:
    """The sum of a batch's losses, of a model in evaluation mode."""
    args, keywords = arguments_of(inputs_B)

    def loss(parameters: Parameters) -> Tensor:
        # What is not among the parameters, functional_call takes from the model.
        logits_BC = logits_of(functional_call(model, parameters, args, keywords))
        return target.losses(logits_BC, targets_B).sum()

    return loss


def trainable(model: nn.Module) -> Parameters:
    """The parameters that training changes, by name."""
    return {
        name: tensor.detach() for name, tensor in model.named_parameters() if tensor.requires_grad
    }
