"""The 14 operations of RandAugment, each with its strength per magnitude bin.

Names, ranges and signs are those of `torchvision.transforms.RandAugment`, the set
that the paper takes (Cubuk et al. 2020, "RandAugment", arXiv:1909.13719).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lipt.core.learner.augmentation import color, geometry

NUM_MAGNITUDE_BINS = 31

# A translation by a full magnitude: 150 pixels in the 331 of AutoAugment's ImageNet.
_FULL_TRANSLATION = 150.0 / 331.0


@dataclass(frozen=True)
class Operation:
    """One operation: `apply(images_BCHW, level)` on uint8 images, all with one level.

    `level(bin, height, width)` is the strength of a magnitude bin in the
    operation's own unit; where `signed`, half of the images get its negative.
    """

    apply: Callable[[Tensor, float], Tensor]
    level: Callable[[int, int, int], float]
    signed: bool


def _identity(images_BCHW: Tensor, _level: float) -> Tensor:
    return images_BCHW


def _spaced(first: float, last: float, magnitude_bin: int) -> float:
    # In float32, as torchvision has it: a threshold or an angle may hang on the last digit.
    return float(torch.linspace(first, last, NUM_MAGNITUDE_BINS)[magnitude_bin])


def _up_to(full: float) -> Callable[[int, int, int], float]:
    return lambda magnitude_bin, _height, _width: _spaced(0.0, full, magnitude_bin)


def _no_level(_magnitude_bin: int, _height: int, _width: int) -> float:
    return 0.0


def _horizontal_pixels(magnitude_bin: int, _height: int, width: int) -> float:
    return _spaced(0.0, _FULL_TRANSLATION * width, magnitude_bin)


def _vertical_pixels(magnitude_bin: int, height: int, _width: int) -> float:
    return _spaced(0.0, _FULL_TRANSLATION * height, magnitude_bin)


def _bits_kept(magnitude_bin: int, _height: int, _width: int) -> float:
    return 8.0 - round(magnitude_bin * 4 / (NUM_MAGNITUDE_BINS - 1))


def _threshold(magnitude_bin: int, _height: int, _width: int) -> float:
    return _spaced(255.0, 0.0, magnitude_bin)


OPERATIONS: dict[str, Operation] = {
    "Identity": Operation(_identity, _no_level, signed=False),
    "ShearX": Operation(geometry.shear_x, _up_to(0.3), signed=True),
    "ShearY": Operation(geometry.shear_y, _up_to(0.3), signed=True),
    "TranslateX": Operation(geometry.translate_x, _horizontal_pixels, signed=True),
    "TranslateY": Operation(geometry.translate_y, _vertical_pixels, signed=True),
    "Rotate": Operation(geometry.rotate, _up_to(30.0), signed=True),
    "Brightness": Operation(color.brightness, _up_to(0.9), signed=True),
    "Color": Operation(color.color, _up_to(0.9), signed=True),
    "Contrast": Operation(color.contrast, _up_to(0.9), signed=True),
    "Sharpness": Operation(color.sharpness, _up_to(0.9), signed=True),
    "Posterize": Operation(color.posterize, _bits_kept, signed=False),
    "Solarize": Operation(color.solarize, _threshold, signed=False),
    "AutoContrast": Operation(color.autocontrast, _no_level, signed=False),
    "Equalize": Operation(color.equalize, _no_level, signed=False),
}
