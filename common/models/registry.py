"""Registry of models: the built-in ones by name, torchvision's, and the user's own."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lipt.common.determinism.kernels import seeded_generators
from lipt.common.errors import ConfigError, UnknownNameError
from lipt.common.imports.factory import is_factory_spec
from lipt.common.inputs.specs import ImageSpec, InputSpec
from lipt.common.models.convnet import convnet
from lipt.common.models.dense import linear, mlp
from lipt.common.models.factory import build_from_factory
from lipt.common.models.outputs import require_logits
from lipt.common.models.resnet import resnet8, resnet18
from lipt.common.models.text_transformer import text_tiny
from lipt.common.models.torchvision_models import PREFIX, build_torchvision
from lipt.common.models.wide_resnet import wrn28_10

_OF_IMAGES: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {"resnet8": resnet8, "resnet18": resnet18, "wrn28_10": wrn28_10}
)
# Of one size, which they have to know.
_OF_SIZED_IMAGES: Mapping[str, Callable[..., nn.Module]] = MappingProxyType({"convnet": convnet})
_OF_INPUTS: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {"linear": linear, "mlp": mlp, "text:tiny": text_tiny}
)
_BUILT_IN = (*_OF_IMAGES, *_OF_SIZED_IMAGES, *_OF_INPUTS)

# Values: constructors compute widths and depths with fewer.
_LARGE = 2**12


def known_models() -> tuple[str, ...]:
    """What a model may be called, for messages and listings."""
    return (*_BUILT_IN, f"{PREFIX}NAME", "package.module:factory")


def build_model(
    spec: str,
    *,
    num_classes: int,
    inputs: InputSpec,
    seed: int,
    allowed_modules: Collection[str] = (),
) -> nn.Module:
    """Build a classifier with random weights, on the CPU, in training mode.

    The weights depend on `seed` alone: PyTorch's global generator is seeded for the
    construction and then put back, on the CPU only.

    Args:
        spec: one of `known_models()`.
        num_classes: C, the number of logits.
        inputs: what the model is given of the data.
        seed: in [0, 2**63).
        allowed_modules: modules whose factories may be imported; each allows its submodules.

    Returns:
        A model that maps such inputs of N examples to logits N x C and ends in an `nn.Linear`
        that `find_head` finds.

    Raises:
        UnknownNameError: there is no such model; the message lists those that there are.
        FactoryNotAllowedError: `spec` names a factory in a module that is not allowed.
        ConfigError: the model cannot be built, or does not take such inputs.
    """
    with seeded_generators(seed, torch.device("cpu")):
        model = _construct(spec, num_classes, inputs, allowed_modules)
        if spec not in _BUILT_IN:
            require_logits(model, spec, num_classes=num_classes, inputs=inputs)
    return model.train()


def build_without_values(spec: str, *, num_classes: int, inputs: InputSpec) -> nn.Module:
    """One of the package's own or torchvision's models on the meta device, in training mode.

    As `build_model`, with the same refusals, for next to no memory. Not for a user's factory:
    it may keep what it makes, and would then give a model without values to whoever asks next.
    """
    with seeded_generators(0, torch.device("cpu")):
        with _LargeOnMeta():  # type: ignore[no-untyped-call]
            model = _construct(spec, num_classes, inputs, ())
        model.to_empty(device="meta")
        if spec not in _BUILT_IN:
            require_logits(model, spec, num_classes=num_classes, inputs=inputs, device="meta")
    return model.train()


def is_users_own(spec: str) -> bool:
    """Whether a name stands for a user's own factory."""
    return is_factory_spec(spec) and spec not in _BUILT_IN and not spec.startswith(PREFIX)


class _LargeOnMeta(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes weights on the meta device; small tensors have values, which constructors look at."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Do the operation, and make what is large without values."""
        given = dict(kwargs or {})
        if func is torch.ops.aten.empty.memory_format and math.prod(args[0]) >= _LARGE:
            given["device"] = torch.device("meta")
        return func(*args, **given)


def _construct(
    spec: str, num_classes: int, inputs: InputSpec, allowed_modules: Collection[str]
) -> nn.Module:
    if spec in _OF_INPUTS:
        return _OF_INPUTS[spec](num_classes=num_classes, inputs=inputs)
    if spec in _OF_IMAGES:
        in_channels = _image(spec, inputs).channels
        return _OF_IMAGES[spec](num_classes=num_classes, in_channels=in_channels)
    if spec in _OF_SIZED_IMAGES:
        return _OF_SIZED_IMAGES[spec](num_classes=num_classes, image=_image(spec, inputs))
    if spec.startswith(PREFIX):
        name, in_channels = spec.removeprefix(PREFIX), _image(spec, inputs).channels
        return build_torchvision(name, num_classes=num_classes, in_channels=in_channels)
    if is_factory_spec(spec):
        return build_from_factory(spec, num_classes=num_classes, allowed_modules=allowed_modules)
    close = difflib.get_close_matches(spec, _BUILT_IN, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise UnknownNameError(
        f"there is no model {spec!r}.{hint} There are: {', '.join(known_models())}."
    )


def _image(spec: str, inputs: InputSpec) -> ImageSpec:
    if not isinstance(inputs, ImageSpec):
        raise ConfigError(
            f"the model {spec!r} takes images; the data has {inputs}. Choose a model that takes "
            f"these as they are: {', '.join(_OF_INPUTS)}, or one of your own "
            "(package.module:factory)."
        )
    return inputs
