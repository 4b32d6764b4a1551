"""Signals of one model: each example's error and feature, and the loss by its parameters.

Shapes: N examples, B of a batch, C classes, D features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch import Tensor, nn
from torch.func import functional_call

from lipt.common.data import Dataset
from lipt.common.data.sources.index import make_room
from lipt.common.inputs.specs import Inputs, arguments_of, logits_of
from lipt.common.models import find_head
from lipt.common.signals.passes import Batches, pass_over
from lipt.common.targets.values import SingleLabel, Target
from lipt.core.signals.signals import Signals
from lipt.core.signals.stored import STORAGE_LIMITS


def compute_signals(model: nn.Module, batches: Batches, *, scratch: Path | None = None) -> Signals:
    """Errors and features by one forward pass over the examples.

    Large arrays are mapped files in the folder `scratch`. SignalsError, with the first ids, if
    outputs are not finite or features too large for float16.
    """
    signals = empty_signals(model, batches.dataset, batches.ids_N, scratch=scratch)
    pass_over(model, batches, signals.errors_NC, signals.features_ND)
    return signals


def empty_signals(
    model: nn.Module, dataset: Dataset, ids_N: Tensor, *, scratch: Path | None = None
) -> Signals:
    limits, (_, head) = STORAGE_LIMITS, find_head(model)
    room = partial(make_room, folder=scratch, memory_bytes=limits.memory_bytes)
    shapes = (len(ids_N), head.out_features), (len(ids_N), head.in_features)
    return Signals(
        room(shapes[0], limits.error_dtype(math.prod(shapes[0]))),
        room(shapes[1], limits.feature_dtype(math.prod(shapes[1]))),
        dataset.labels_N[ids_N],
        has_bias=head.bias is not None,
        kind=dataset.target.kind,
    )


def errors_of(logits_NC: Tensor, labels_N: Tensor) -> Tensor:
    return SingleLabel(logits_NC.shape[-1]).residuals(logits_NC, labels_N)


Parameters = dict[str, Tensor]
# The SUM of the losses of some examples, as a function of the parameters.
LossSum = Callable[[Parameters], Tensor]


def loss_sum(model: nn.Module, target: Target, inputs_B: Inputs, targets_B: Tensor) -> LossSum:
    """The sum of a batch's losses, of a model in evaluation mode."""
    args, keywords = arguments_of(inputs_B)

    def loss(parameters: Parameters) -> Tensor:
        # functional_call takes everything else from the model.
        logits_BC = logits_of(functional_call(model, parameters, args, keywords))
        return target.losses(logits_BC, targets_B).sum()

    return loss


def trainable(model: nn.Module) -> Parameters:
    return {
        name: tensor.detach() for name, tensor in model.named_parameters() if tensor.requires_grad
    }
