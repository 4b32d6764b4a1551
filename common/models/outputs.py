"""Output check: a model that we did not write is tried on a batch before any training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lipt.common.errors import ConfigError
from lipt.common.models.evaluation_mode import evaluation_mode
from lipt.common.models.head import require_head

_BATCH_SIZE = 2


def require_logits(
    model: nn.Module,
    spec: str,
    *,
    num_classes: int,
    image_shape: tuple[int, int, int],
    device: str = "cpu",
) -> None:
    """Run the model on a batch of zeros and check its logits and its head.

    The model's training flags are restored, and batch norm's statistics stay as they were.

    Args:
        model: on `device`.
        spec: the model's name, for the message.
        num_classes: C.
        image_shape: channels, height and width of the data.
        device: the CPU, or the meta device for a model without values.

    Raises:
        ConfigError: the model fails on such images, returns something else than N x C
            floating-point logits, or does not end in a linear layer.
    """
    channels, height, width = image_shape
    format_text = f"{channels}x{height}x{width}"
    images = torch.zeros(_BATCH_SIZE, *image_shape, device=device)
    try:
        with evaluation_mode(model), torch.no_grad():
            outputs = model(images)
            _require_shape(outputs, spec, num_classes=num_classes, format_text=format_text)
            require_head(model, images)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the model {spec!r} fails on {format_text} images with {type(error).__name__}: "
            f"{error}. Choose a model that takes this size, or give the data set's images "
            "the size that the model takes (--image-size)."
        ) from error


def _require_shape(outputs: object, spec: str, *, num_classes: int, format_text: str) -> None:
    if not isinstance(outputs, Tensor):
        raise ConfigError(
            f"the model {spec!r} returns a {type(outputs).__name__} instead of a tensor. "
            "Return the N x C logits alone."
        )
    if outputs.shape != (_BATCH_SIZE, num_classes) or not outputs.is_floating_point():
        raise ConfigError(
            f"the model {spec!r} maps {_BATCH_SIZE} images of {format_text} to "
            f"{outputs.dtype} of shape {tuple(outputs.shape)}; {num_classes} classes need "
            f"floating-point logits of shape ({_BATCH_SIZE}, {num_classes}). Use the factory's "
            "argument num_classes for the last layer."
        )
