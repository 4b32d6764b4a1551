"""Losses: a batch's cross-entropy as a function of the model's parameters."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from lipt.common.inputs.specs import Inputs, arguments_of, logits_of

Parameters = dict[str, Tensor]
# The SUM of the losses of a part of the examples, of the parameters.
LossSum = Callable[[Parameters], Tensor]


def cross_entropy_sum(model: nn.Module, inputs_B: Inputs, labels_B: Tensor) -> LossSum:
    """The summed cross-entropy of a batch, of a model in evaluation mode."""
    args, keywords = arguments_of(inputs_B)

    def loss(parameters: Parameters) -> Tensor:
        # What is not among the parameters, functional_call takes from the model.
        logits_BC = logits_of(functional_call(model, parameters, args, keywords))
        return functional.cross_entropy(logits_BC.float(), labels_B, reduction="sum")

    return loss


def trainable(model: nn.Module) -> Parameters:
    """The parameters that training changes, by name."""
    return {
        name: tensor.detach() for name, tensor in model.named_parameters() if tensor.requires_grad
    }
