"""Backbone: a torchvision network with trained weights that the coordinator's operator names.

`torchvision:NAME@FILE` is a setting of the process and never comes over the wire. FILE is
safetensors, or what `torch.save` wrote of a state dict, read without unpickling objects.

Shapes: B images, D features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.blobs.blob import BlobName
from lipt.common.errors import ConfigError
from lipt.common.models import find_head
from lipt.common.models.models import PREFIX, build_torchvision
from lipt.common.weights.checkpoints import read_torch_file
from lipt.core.proxies.features import pooled_features

# Of ImageNet, as torchvision's own weights were trained.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Small images are not blown up to the size that the network was trained on: time is squared.
_SMALL_SIDE, _SIDE = 64, 224


@dataclass(frozen=True)
class Backbone:
    """A network in evaluation mode, and where it lies.

    identity: as of `backbone_identity`.
    """

    model: nn.Module
    device: torch.device
    identity: str

    @torch.inference_mode()
    def __call__(self, images_BCHW: Tensor) -> Tensor:
        """Pooled features of uint8 images; B x D float32, on the CPU."""
        side = _SMALL_SIDE if max(images_BCHW.shape[2:]) <= _SMALL_SIDE else _SIDE
        pixels = images_BCHW.to(self.device).float().div_(255)
        pixels = functional.interpolate(
            pixels, (side, side), mode="bilinear", antialias=True, align_corners=False
        )
        mean_C11, std_C11 = (torch.tensor(values)[:, None, None] for values in (_MEAN, _STD))
        colours = pixels if pixels.shape[1] == 3 else pixels.mean(dim=1, keepdim=True)
        inputs_BCHW = (colours - mean_C11.to(self.device)) / std_C11.to(self.device)
        return pooled_features(self.model, inputs_BCHW).cpu()


def backbone_identity(spec: str) -> str:
    """NAME@SHA-256: the network and the content of its weights' file, wherever that lies."""
    name, path = _parts(spec)
    try:
        return f"{name}@{BlobName.of_file(path).sha256}"
    except OSError as error:
        raise _unreadable(path, error) from error


def load_backbone(spec: str, device: torch.device) -> Backbone:
    """The network and weights that a setting names."""
    name, path = _parts(spec)
    weights = _read(path)
    model = build_torchvision(name, num_classes=1000, in_channels=3)
    head_name, head = find_head(model)
    rows = weights.get(f"{head_name}.weight", head.weight)
    if len(rows) != head.out_features:
        model = build_torchvision(name, num_classes=len(rows), in_channels=3)
    try:
        model.load_state_dict(dict(weights))
    except RuntimeError as error:
        raise ConfigError(
            f"{path} does not hold the weights of torchvision's {name}: {error} "
            "Name the network that they are of."
        ) from error
    return Backbone(model.eval().to(device), device, backbone_identity(spec))


def _parts(spec: str) -> tuple[str, Path]:
    name, at, file = spec.removeprefix(PREFIX).partition("@")
    if not spec.startswith(PREFIX) or not at or not file:
        raise ConfigError(
            f"the backbone {spec!r} is not torchvision:NAME@FILE, such as "
            "torchvision:resnet18@/srv/resnet18.safetensors."
        )
    return name, Path(file)


def _read(path: Path) -> Mapping[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        weights = read_torch_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise _unreadable(path, error) from error
    if not isinstance(weights, Mapping):
        raise ConfigError(
            f"the backbone's weights {path} hold a {type(weights).__name__}. Give a state dict."
        )
    return weights


def _unreadable(path: Path, error: Exception) -> ConfigError:
    return ConfigError(
        f"the backbone's weights {path} cannot be read ({error}). Give a safetensors file, or "
        "a state dict that torch.save wrote."
    )
