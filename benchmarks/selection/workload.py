"""Seeded synthetic signals for all implementations: what a partially trained network gives.

Every class has a mean and a few modes around it; every example lies between its own class
and another one. Features are the rectified sum of that and noise, standardized. Errors are
those of a nearest-mean classifier, softened until its confidence is that of a network some
epochs into training: of 10 classes it gets 70% right, with a mean loss of 0.86.

    python -m benchmarks.selection.workload FOLDER num_examples=5000 num_validation=500

Shapes: N examples, B of a block, C classes, D features, M modes of a class.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.core.signals.compute import errors_of
from lipt.core.signals.signals import Signals
from lipt.core.signals.views import LastLayer

SEED = 0
NUM_MODES = 5
BLOCK_ROWS = 8192
# Nearest-mean logits grow with D, and the more classes there are, the sharper a network is.
SOFTNESS = 0.14


@dataclass(frozen=True)
class Shape:
    """How many there are of what."""

    num_examples: int
    num_classes: int = 10
    num_features: int = 512
    num_validation: int = 0
    only_class: int | None = None
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class World:
    """Distribution of the classes, from the seed alone."""

    means_CD: Tensor
    modes_CMD: Tensor
    # Of a feature, over all classes: what standardizes it.
    centre_D: Tensor
    scale_D: Tensor
    directions_CD: Tensor


def make_world(shape: Shape, seed: int = SEED) -> World:
    generator = derive_generator(seed, "benchmark-world")
    size_CD = (shape.num_classes, shape.num_features)
    means_CD = torch.randn(size_CD, generator=generator)
    modes_CMD = 0.7 * torch.randn((size_CD[0], NUM_MODES, size_CD[1]), generator=generator)
    raw = World(means_CD, modes_CMD, torch.zeros(size_CD[1]), torch.ones(size_CD[1]), means_CD)
    labels_B = torch.arange(BLOCK_ROWS) % shape.num_classes
    sample_BD = features_of(raw, labels_B, generator)
    centre_D, scale_D = sample_BD.mean(dim=0), sample_BD.std(dim=0)
    standard_BD = (sample_BD - centre_D) / scale_D
    directions_CD = torch.zeros(size_CD).index_add_(0, labels_B, standard_BD)
    counts_C = torch.bincount(labels_B, minlength=shape.num_classes)
    return replace(
        raw,
        centre_D=centre_D,
        scale_D=scale_D,
        directions_CD=directions_CD / counts_C[:, None],
    )


def features_of(world: World, labels_B: Tensor, generator: torch.Generator) -> Tensor:
    num_classes, num_features = world.means_CD.shape
    size = len(labels_B)
    others_B = torch.randint(num_classes, (size,), generator=generator)
    modes_B = torch.randint(NUM_MODES, (size,), generator=generator)
    # The share of another class in an example.
    mixture_B1 = 0.9 * torch.rand((size, 1), generator=generator)
    features_BD = (1 - mixture_B1) * world.means_CD[labels_B]
    features_BD += mixture_B1 * world.means_CD[others_B]
    features_BD += world.modes_CMD[labels_B, modes_B]
    features_BD += torch.randn((size, num_features), generator=generator)
    return (features_BD.relu_() - world.centre_D) / world.scale_D


def logits_of(world: World, features_BD: Tensor) -> Tensor:
    num_classes, num_features = world.directions_CD.shape
    bias_C = world.directions_CD.square().sum(dim=-1) / 2
    logits_BC: Tensor = (features_BD @ world.directions_CD.T - bias_C) / (
        SOFTNESS * num_features / math.log(1 + num_classes)
    )
    return logits_BC


def make_signals(shape: Shape, purpose: str, num_examples: int, seed: int = SEED) -> Signals:
    """N examples, generated in blocks that each have a seed of their own."""
    world = make_world(shape, seed)
    labels_N = torch.arange(num_examples) % shape.num_classes
    order_N = torch.randperm(
        num_examples, generator=derive_generator(seed, f"benchmark-order-{purpose}")
    )
    labels_N = labels_N[order_N]
    if shape.only_class is not None:
        labels_N.fill_(shape.only_class)
    errors_NC = torch.empty((num_examples, shape.num_classes), dtype=shape.dtype)
    features_ND = torch.empty((num_examples, shape.num_features), dtype=shape.dtype)
    for index, start in enumerate(range(0, num_examples, BLOCK_ROWS)):
        rows = slice(start, min(start + BLOCK_ROWS, num_examples))
        generator = derive_generator(seed, f"benchmark-block-{purpose}", index)
        features_BD = features_of(world, labels_N[rows], generator)
        features_ND[rows] = features_BD
        errors_NC[rows] = errors_of(logits_of(world, features_BD), labels_N[rows])
    return Signals(errors_NC=errors_NC, features_ND=features_ND, labels_N=labels_N)


def write(shape: Shape, folder: Path) -> None:
    """Make the signals of a shape and save them for the processes that are measured."""
    make_signals(shape, "train", shape.num_examples).save(folder / "train")
    if shape.num_validation:
        make_signals(shape, "validation", shape.num_validation).save(folder / "validation")


def read(folder: Path, device: str = "cpu", *, mapped: bool = False) -> Signals:
    """Arrays that `write` saved; copied into memory of our own unless it is to stay mapped."""
    signals = _read(folder / "train", device, mapped=mapped)
    if not (folder / "validation").is_file():
        return signals
    return replace(signals, validation=_read(folder / "validation", device, mapped=mapped))


def _read(path: Path, device: str, *, mapped: bool) -> Signals:
    signals = Signals.load(path)
    if mapped:
        return signals
    return replace(
        signals,
        errors_NC=signals.errors_NC.clone().to(device),
        features_ND=signals.features_ND.clone().to(device),
        labels_N=signals.labels_N.clone().to(device),
    )


def log_probabilities(layer: LastLayer) -> Tensor:
    """Logits, as far as errors tell them: up to a constant per example."""
    probabilities_NC = layer.errors_NC.double()
    probabilities_NC[torch.arange(len(layer)), layer.labels_N] += 1
    return probabilities_NC.clamp_min(1e-30).log().float()


def materialized(layer: LastLayer) -> Tensor:
    """The last layer's gradients written out, biases first: N x C (D + 1)."""
    weights_NCD = layer.errors_NC[:, :, None] * layer.features_ND[:, None, :]
    return torch.cat([layer.errors_NC, weights_NCD.flatten(1)], dim=1)


def shape_from(arguments: list[str]) -> Shape:
    """From words such as num_examples=5000."""
    values = dict(argument.split("=", 1) for argument in arguments)
    half = values.pop("dtype", "float32") == "float16"
    numbers = {name: int(value) for name, value in values.items()}
    return Shape(**numbers, dtype=torch.float16 if half else torch.float32)


if __name__ == "__main__":
    write(shape_from(sys.argv[2:]), Path(sys.argv[1]))
