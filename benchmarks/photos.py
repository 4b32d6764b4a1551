"""Photos for benchmarks: JPEG files of 180 to 300 pixels a side, in five classes of shapes.

A shape has a random colour, size, place and rotation, on a ground of soft blotches and noise.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SHAPES = ("disc", "square", "triangle", "ring", "cross")
_SMALLEST, _LARGEST = 180, 300
_QUALITY = 90
# Cells of the ground, a colour each.
_BLOTCHES = 6
# Of the blotches; a shape has the full range.
_CONTRAST = 0.4
# Standard deviation of each pixel's noise.
_NOISE = 12


def write_photos(folder: Path, count: int, seed: int = 0) -> Path:
    """A folder for each class; as many photos of each as possible."""
    for shape in SHAPES:
        (folder / shape).mkdir(parents=True)
    for number in range(count):
        shape = SHAPES[number % len(SHAPES)]
        content = jpeg(photo(shape, np.random.default_rng((seed, number))))
        (folder / shape / f"{number:06}.jpg").write_bytes(content)
    return folder


def jpeg(pixels_HWC: NDArray[np.uint8]) -> bytes:
    """The content of a JPEG file."""
    content = io.BytesIO()
    Image.fromarray(pixels_HWC).save(content, "JPEG", quality=_QUALITY)
    return content.getvalue()


def photo(shape: str, random: np.random.Generator) -> NDArray[np.uint8]:
    """A shape on a ground; H x W x 3."""
    height, width = random.integers(_SMALLEST, _LARGEST, size=2, endpoint=True)
    blotches = Image.fromarray(random.integers(256, size=(_BLOTCHES,) * 2 + (3,)).astype(np.uint8))
    ground_HWC = np.asarray(blotches.resize((width, height), Image.Resampling.BICUBIC))
    pixels_HWC = 128 + _CONTRAST * (ground_HWC - 128.0)
    inside_HW = _inside(shape, height, width, random)
    pixels_HWC[inside_HW] = random.integers(256, size=3)
    pixels_HWC += _NOISE * random.normal(size=pixels_HWC.shape)
    return pixels_HWC.clip(0, 255).astype(np.uint8)


def _inside(shape: str, height: int, width: int, random: np.random.Generator) -> NDArray[np.bool_]:
    """The pixels of the shape, from a fifth to two fifths of the shorter side in radius."""
    radius = random.uniform(1 / 5, 2 / 5) * min(height, width)
    top, left = random.uniform(radius, (height - radius, width - radius))
    y_HW, x_HW = np.mgrid[:height, :width] - np.array((top, left))[:, None, None]
    turned = np.exp(1j * random.uniform(0, 2 * np.pi)) * (x_HW + 1j * y_HW) / radius
    x_HW, y_HW, distance_HW = turned.real, turned.imag, np.abs(turned)
    larger_HW = np.maximum(np.abs(x_HW), np.abs(y_HW))
    match shape:
        case "disc":
            return distance_HW < 0.8
        case "square":
            return larger_HW < 0.7
        case "triangle":
            return (y_HW > -0.5) & (np.sqrt(3) * np.abs(x_HW) + y_HW < 1)
        case "ring":
            return (distance_HW > 0.6) & (distance_HW < 1)
        case _:
            return (np.minimum(np.abs(x_HW), np.abs(y_HW)) < 0.25) & (larger_HW < 0.95)
