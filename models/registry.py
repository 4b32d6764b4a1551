"""Registry of models: builds a model by name, sets its memory layout, and loads its weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lipt.common.config.run_config import NO_ADAPTERS, AdaptersConfig
from lipt.common.determinism import seeded_generators
from lipt.common.errors import ConfigError, UnknownNameError
from lipt.common.imports import (
    CAUSAL,
    call_factory,
    load_factory,
    module_of,
    require_allowed,
)
from lipt.common.tensor_files import read_weights, specs_of
from lipt.common.text import did_you_mean
from lipt.data.inputs.specs import ImageSpec, InputSpec
from lipt.data.targets.kinds import TargetKind
from lipt.models import networks
from lipt.models.adapters import add_adapters
from lipt.models.causal_folder import causal_model, in_data_numbers
from lipt.models.networks import PREFIX, build_torchvision
from lipt.models.own_model import (
    in_float32_if_needed,
    prepared,
    require_logits,
    require_state,
)
from lipt.models.transformers import CausalTransformer, TextTransformer

_OF_IMAGES: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {
        "resnet8": networks.resnet8,
        "resnet18": networks.resnet18,
        "wrn28_10": networks.WideResNet,
        "convnet": networks.ConvNet,
    }
)
_OF_INPUTS: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {
        "linear": networks.linear,
        "mlp": networks.mlp,
        "text:tiny": TextTransformer,
        "text:causal": CausalTransformer,
    }
)
_BUILT_IN = (*_OF_IMAGES, *_OF_INPUTS)

# A side in pixels; larger images have a model of their own.
_SMALL_IMAGE = 64
# In values; constructors compute with smaller tensors.
_LARGE = 2**12


@dataclass(frozen=True)
class OwnModel:
    """A model that only this process has: `make` returns a new copy, for a number of classes.

    `name` stands for it in records and messages; nothing can be imported by it.
    """

    name: str
    make: Callable[..., nn.Module]


# An import name, or a built-in one, which any process can build; or a live model.
ModelSource = str | OwnModel


def default_model(inputs: InputSpec, kind: TargetKind = TargetKind.CLASS) -> str:
    """Return the built-in model for a kind of example.

    `resnet8` for images, `torchvision:resnet18` above 64 pixels a side, `text:tiny` for token
    sequences, `text:causal` for their next tokens, `mlp` for other columns.
    """
    if kind is TargetKind.TOKENS:
        return "text:causal"
    if isinstance(inputs, ImageSpec):
        large = max(inputs.height, inputs.width) > _SMALL_IMAGE
        return "torchvision:resnet18" if large else "resnet8"
    (first, *further) = inputs.columns
    words = not further and len(first.shape) == 1 and first.num_values > 0
    return "text:tiny" if words else "mlp"


def build_model(
    source: ModelSource,
    *,
    num_classes: int,
    inputs: InputSpec,
    seed: int,
    allowed_modules: Collection[str] = (),
    adapters: AdaptersConfig = NO_ADAPTERS,
) -> nn.Module:
    """Build a model with random weights, on the CPU, in training mode.

    The weights depend only on `seed`, in [0, 2**63): PyTorch's CPU generator is seeded, then
    restored. `source` is a built-in name, `torchvision:NAME`, a factory in `allowed_modules` or
    their submodules, or a live model; or `causal:FOLDER`, also allowed by its name, which has its
    folder's weights.
    """
    spec = source if isinstance(source, str) else source.name
    with seeded_generators(seed, torch.device("cpu")):
        model = _construct(source, num_classes, inputs, allowed_modules)
        if is_users_own(spec):
            model = in_float32_if_needed(model, inputs)
        if not _has_known_outputs(spec):
            require_logits(model, spec, num_classes=num_classes, inputs=inputs)
            require_state(model, repr(spec))
    return add_adapters(model, adapters, seed).train()


def build_without_values(
    spec: str,
    *,
    num_classes: int,
    inputs: InputSpec,
    allowed_modules: Collection[str] = (),
    adapters: AdaptersConfig = NO_ADAPTERS,
) -> nn.Module:
    """Like `build_model`, on the meta device, almost without memory.

    A user's model has values: a factory that caches it would later return it without them.
    """
    if is_users_own(spec):
        return build_model(
            spec,
            num_classes=num_classes,
            inputs=inputs,
            seed=0,
            allowed_modules=tuple(allowed_modules),
            adapters=adapters,
        )
    with seeded_generators(0, torch.device("cpu")):
        with _LargeOnMeta():  # type: ignore[no-untyped-call]
            model = _construct(spec, num_classes, inputs, allowed_modules, with_values=False)
        model.to_empty(device="meta")
        if not _has_known_outputs(spec):
            require_logits(model, spec, num_classes=num_classes, inputs=inputs, device="meta")
    return add_adapters(model, adapters, 0).train()


def is_users_own(spec: str) -> bool:
    return bool(module_of(spec)) and spec not in _BUILT_IN and not spec.startswith((PREFIX, CAUSAL))


def comes_trained(spec: str) -> bool:
    """Whether a model is built with weights that have been trained."""
    return spec.startswith(CAUSAL)


def _has_known_outputs(spec: str) -> bool:
    return spec in _BUILT_IN or spec.startswith(CAUSAL)


class _LargeOnMeta(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Puts large weights on the meta device; constructors use values of small tensors."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = dict(kwargs or {})
        if func is torch.ops.aten.empty.memory_format and math.prod(args[0]) >= _LARGE:
            given["device"] = torch.device("meta")
        return func(*args, **given)


def _construct(
    spec: ModelSource,
    num_classes: int,
    inputs: InputSpec,
    allowed_modules: Collection[str],
    *,
    with_values: bool = True,
) -> nn.Module:
    if isinstance(spec, OwnModel):
        return _made(spec.name, spec.make, num_classes, inputs)
    if spec in _OF_INPUTS:
        return _OF_INPUTS[spec](num_classes=num_classes, inputs=inputs)
    if spec in _OF_IMAGES:
        return _OF_IMAGES[spec](num_classes=num_classes, image=_image(spec, inputs))
    if spec.startswith(PREFIX):
        name, in_channels = spec.removeprefix(PREFIX), _image(spec, inputs).channels
        return build_torchvision(name, num_classes=num_classes, in_channels=in_channels)
    if spec.startswith(CAUSAL):
        require_allowed(spec, allowed_modules, f"the model {spec!r} reads a folder")
        return causal_model(spec, num_classes=num_classes, inputs=inputs, with_values=with_values)
    if module_of(spec):
        factory = load_factory(spec, allowed_modules=allowed_modules)
        return _made(spec, factory, num_classes, inputs)
    raise UnknownNameError(
        f"there is no model {spec!r}.{did_you_mean(spec, _BUILT_IN)} There are: "
        f"{', '.join(_BUILT_IN)}, {CAUSAL}FOLDER, {PREFIX}NAME, package.module:factory."
    )


def _made(spec: str, factory: Callable[..., Any], num_classes: int, inputs: InputSpec) -> nn.Module:
    model = call_factory(spec, factory, num_classes=num_classes)
    if not isinstance(model, nn.Module):
        returned = type(model).__name__
        raise ConfigError(f"{spec!r} returned a {returned}, not a torch.nn.Module. Return one.")
    return in_data_numbers(prepared(model), num_classes=num_classes, inputs=inputs)


def _image(spec: str, inputs: InputSpec) -> ImageSpec:
    if not isinstance(inputs, ImageSpec):
        raise ConfigError(
            f"the model {spec!r} takes images; the data has {inputs}. Choose "
            f"{', '.join(_OF_INPUTS)}, or a model of your own (package.module:factory)."
        )
    return inputs


def memory_format(spec: str) -> torch.memory_format:
    """The memory format of a model's activations: CPUs are faster with channels-last.

    A user's model stays contiguous: it may call `view` on its activations.
    """
    return torch.contiguous_format if is_users_own(spec) else torch.channels_last


def lay_out(model: nn.Module, spec: str, device: torch.device) -> nn.Module:
    """Move a model to a device; its convolution weights' layout determines all activations'."""
    model.to(device)
    for parameter in model.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=memory_format(spec))
    return model


def load_model(
    name: str,
    weights: bytes | Path,
    *,
    num_classes: int,
    inputs: InputSpec,
    device: torch.device,
    seed: int = 0,
    allowed_modules: Collection[str] = (),
    adapters: AdaptersConfig = NO_ADAPTERS,
    max_bytes: int,
) -> nn.Module:
    """A model on a device, in evaluation mode."""
    model = build_model(
        name,
        num_classes=num_classes,
        inputs=inputs,
        seed=seed,
        allowed_modules=allowed_modules,
        adapters=adapters,
    )
    model = lay_out(model, name, device)
    loaded = read_weights(weights, like=specs_of(model.state_dict()), max_bytes=max_bytes)
    model.load_state_dict(loaded)
    return model.eval()
