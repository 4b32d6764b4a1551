"""Registry of models: the built-in ones by name, torchvision's, and the user's own."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

import torch
from torch import nn

from lipt.common.determinism.kernels import seeded_generators
from lipt.common.errors import UnknownNameError
from lipt.common.imports.factory import is_factory_spec
from lipt.common.models.factory import build_from_factory
from lipt.common.models.outputs import require_logits
from lipt.common.models.resnet import resnet8, resnet18
from lipt.common.models.torchvision_models import PREFIX, build_torchvision
from lipt.common.models.wide_resnet import wrn28_10

_BUILT_IN: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {"resnet8": resnet8, "resnet18": resnet18, "wrn28_10": wrn28_10}
)


def known_models() -> tuple[str, ...]:
    """What a model may be called, for messages and listings."""
    return (*_BUILT_IN, f"{PREFIX}NAME", "package.module:factory")


def build_model(
    spec: str,
    *,
    num_classes: int,
    image_shape: tuple[int, int, int],
    seed: int,
    allowed_modules: Collection[str] = (),
) -> nn.Module:
    """Build a classifier with random weights, on the CPU, in training mode.

    The weights depend on `seed` alone: PyTorch's global generator is seeded for the
    construction and then put back, on the CPU only.

    Args:
        spec: one of `known_models()`.
        num_classes: C, the number of logits.
        image_shape: channels, height and width of the data.
        seed: in [0, 2**63).
        allowed_modules: modules whose factories may be imported; each allows its submodules.

    Returns:
        A model that maps float images N x channels x H x W to logits N x C and ends in an
        `nn.Linear` that `find_head` finds.

    Raises:
        UnknownNameError: there is no such model; the message lists those that there are.
        FactoryNotAllowedError: `spec` names a factory in a module that is not allowed.
        ConfigError: the model cannot be built, or does not take such images.
    """
    with seeded_generators(seed, torch.device("cpu")):
        model = _build(spec, num_classes, image_shape, allowed_modules)
    return model.train()


def _build(
    spec: str,
    num_classes: int,
    image_shape: tuple[int, int, int],
    allowed_modules: Collection[str],
) -> nn.Module:
    if spec in _BUILT_IN:
        return _BUILT_IN[spec](num_classes=num_classes, in_channels=image_shape[0])
    if spec.startswith(PREFIX):
        model = build_torchvision(
            spec.removeprefix(PREFIX), num_classes=num_classes, in_channels=image_shape[0]
        )
    elif is_factory_spec(spec):
        model = build_from_factory(spec, num_classes=num_classes, allowed_modules=allowed_modules)
    else:
        close = difflib.get_close_matches(spec, _BUILT_IN, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise UnknownNameError(
            f"there is no model {spec!r}.{hint} There are: {', '.join(known_models())}."
        )
    require_logits(model, spec, num_classes=num_classes, image_shape=image_shape)
    return model
