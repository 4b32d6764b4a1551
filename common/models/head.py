"""Head: the last layer of a model, and what goes into it.

That is all that last-layer gradients need.

Shapes: N examples, C classes, D features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lipt.common.errors import ConfigError
from lipt.common.inputs.specs import Inputs, call_model


def find_head(model: nn.Module) -> tuple[str, nn.Linear]:
    """The model's classifier: its last `nn.Linear` in the order of `named_modules`.

    `build_model` checks, for every model that is not built in, that this layer's
    output is what the model returns.

    Returns:
        The layer's qualified name ("" when the model itself is linear), and the layer.
        Its bias may be None.

    Raises:
        ConfigError: the model has no linear layer.
    """
    found: tuple[str, nn.Linear] | None = None
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            found = name, module
    if found is None:
        raise ConfigError(
            f"{type(model).__name__} has no nn.Linear layer, so it has no last-layer gradients. "
            "Let the model end in an nn.Linear that returns the logits."
        )
    return found


def forward_with_features(model: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Run the model once, keeping what enters its head.

    Args:
        model: any model for which `find_head` finds the layer that returns the logits.
        inputs: a batch as the model takes it.

    Returns:
        logits_NC and features_ND, with logits_NC = head(features_ND).

    Raises:
        ConfigError: the model has no head, or calls it other than once with N x D features.
    """
    name, head = find_head(model)
    given: list[Tensor] = []
    handle = head.register_forward_pre_hook(lambda _, args: given.append(args[0]))
    try:
        logits_NC = call_model(model, inputs)
    finally:
        handle.remove()
    if len(given) != 1 or given[0].ndim != 2:
        shapes = [tuple(features.shape) for features in given]
        raise ConfigError(
            f"{type(model).__name__} calls its last linear layer {name!r} with inputs of the "
            f"shapes {shapes}; one batch of N x D features is needed. Let the model end in an "
            "nn.Linear that is called once."
        )
    return logits_NC, given[0]


def require_head(model: nn.Module, inputs: Inputs) -> None:
    """Check that `find_head` finds the layer whose output the model returns.

    Args:
        model: in evaluation mode, so that its outputs do not depend on a draw.
        inputs: a batch as the model takes it; without values on the meta device, where the output
            has to be the very tensor that is returned.

    Raises:
        ConfigError: there is no such layer, or its output is changed before it is returned.
    """
    name, head = find_head(model)
    returned: list[Tensor] = []
    handle = head.register_forward_hook(lambda *called: returned.append(called[-1]))
    try:
        with torch.no_grad():
            logits_NC, features_ND = forward_with_features(model, inputs)
            expected_NC = head(features_ND)
    finally:
        handle.remove()
    if logits_NC.is_meta:
        same = logits_NC is returned[0]
    else:
        # What a model makes of nothing but zeros, all of them masked, may be no number.
        same = logits_NC.shape == expected_NC.shape and torch.equal(
            logits_NC.nan_to_num(), expected_NC.nan_to_num()
        )
    if not same:
        raise ConfigError(
            f"{type(model).__name__} does not return the output of its last linear layer "
            f"{name!r}. Define the classifier last, return its raw logits, and leave softmax "
            "to the loss."
        )
