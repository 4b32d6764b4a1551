"""Models of torchvision: its classifiers, under the names `torchvision:NAME`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from lipt.common.errors import ConfigError, UnknownNameError

PREFIX = "torchvision:"

# Their defaults add auxiliary outputs, or warn that a default will change.
_ARGUMENTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "googlenet": {"aux_logits": False, "init_weights": True},
        "inception_v3": {"aux_logits": False, "init_weights": True},
    }
)


def build_torchvision(name: str, *, num_classes: int, in_channels: int) -> nn.Module:
    """Build `torchvision.models.NAME` with random weights.

    A model sees grayscale images as three equal channels: its stem takes RGB.

    Raises:
        UnknownNameError: torchvision has no such model; the message lists similar names.
        ConfigError: the model is for another task than image classification.
    """
    from torchvision import models  # noqa: PLC0415 - slow to import, and not always needed

    if name not in models.list_models(module=models):
        raise _refusal(name, models.list_models(module=models), models.list_models())
    model: nn.Module = models.get_model(
        name, weights=None, num_classes=num_classes, **_ARGUMENTS.get(name, {})
    )
    if in_channels == 1:
        model.register_forward_pre_hook(_repeat_channel)
    return model


def _repeat_channel(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    images, *rest = args
    return images.expand(-1, 3, -1, -1), *rest


def _refusal(name: str, classifiers: list[str], others: list[str]) -> Exception:
    if name in others:
        return ConfigError(
            f"torchvision:{name} is not an image classifier (it detects, segments, estimates "
            "flow, takes video, or is quantized). Use a classifier, such as torchvision:resnet50."
        )
    close = difflib.get_close_matches(name, classifiers, n=5)
    hint = f"Did you mean {', '.join(close)}?" if close else f"There are {', '.join(classifiers)}."
    return UnknownNameError(f"torchvision has no model {name!r}. {hint}")
