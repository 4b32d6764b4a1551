"""Output check: a model that we did not write is tried on a batch before any training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lipt.common.errors import ConfigError
from lipt.common.inputs.specs import ColumnsSpec, InputSpec, call_model
from lipt.common.models.evaluation_mode import evaluation_mode
from lipt.common.models.head import require_head

_BATCH_SIZE = 2


def require_logits(
    model: nn.Module,
    spec: str,
    *,
    num_classes: int,
    inputs: InputSpec,
    device: str = "cpu",
) -> None:
    """Run the model on a batch of zeros and check its logits and its head.

    The model's training flags are restored, and batch norm's statistics stay as they were.

    Args:
        model: on `device`.
        spec: the model's name, for the message.
        num_classes: C.
        inputs: what the model is given of the data.
        device: the CPU, or the meta device for a model without values.

    Raises:
        ConfigError: the model fails on such inputs, returns something else than N x C
            floating-point logits, or does not end in a linear layer.
    """
    batch = inputs.zeros(_BATCH_SIZE, device)
    try:
        with evaluation_mode(model), torch.no_grad():
            outputs: object = call_model(model, batch)
            _require_shape(outputs, spec, num_classes=num_classes, inputs=inputs)
            require_head(model, batch)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the model {spec!r} fails on {inputs} with {type(error).__name__}: {error}. "
            f"{_remedy(inputs)}"
        ) from error


def _remedy(inputs: InputSpec) -> str:
    if isinstance(inputs, ColumnsSpec):
        doubles = any(column.type.value == "float64" for column in inputs.columns)
        return (
            "Choose a model that takes one batched tensor, or several by these names as keywords"
            + (", and give float32 where its weights are float32." if doubles else ".")
        )
    return (
        "Choose a model that takes this size, or give the data set's images the size that the "
        "model takes (--image-size)."
    )


def _require_shape(outputs: object, spec: str, *, num_classes: int, inputs: InputSpec) -> None:
    if not isinstance(outputs, Tensor):
        raise ConfigError(
            f"the model {spec!r} returns a {type(outputs).__name__} instead of a tensor. "
            "Return the N x C logits alone, or an output that has them as `logits`."
        )
    if outputs.shape != (_BATCH_SIZE, num_classes) or not outputs.is_floating_point():
        raise ConfigError(
            f"the model {spec!r} maps {_BATCH_SIZE} examples of {inputs} to "
            f"{outputs.dtype} of shape {tuple(outputs.shape)}; {num_classes} classes need "
            f"floating-point logits of shape ({_BATCH_SIZE}, {num_classes}). Use the factory's "
            "argument num_classes for the last layer."
        )
