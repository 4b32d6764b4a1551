"""Shears, rotation and translations as one table of source pixels per operation.

Every image of a group moves in the same way, and the nearest-pixel rule copies
pixels without mixing them. So the resampling of `grid_sample` is worked out once
per image size and applied as a gather over bytes, without going through floats.

Shapes: B images, C channels, H height, W width, P = H x W pixels.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torchvision.transforms import functional as tv_functional

# Five operations, two signs, and a few image sizes or magnitudes in one process.
_TABLES_KEPT = 64


@lru_cache(maxsize=_TABLES_KEPT)
def _source_pixels(
    height: int,
    width: int,
    *,
    degrees: float = 0.0,
    shear_x: float = 0.0,
    shear_y: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Where every pixel of the output comes from.

    The table is what torchvision does to an image whose pixels are their own
    positions, so it agrees with torchvision to the last rounding. It is made on
    the CPU: an accelerator may round a pixel's position differently.

    Args:
        height: of the images.
        width: of the images.
        degrees: rotation about the centre, counter-clockwise.
        shear_x: horizontal shift per pixel below the top row.
        shear_y: vertical shift per pixel right of the left column.

    Returns:
        source_P (int64), each output pixel's source, and inside_P (uint8), 1
        where the source lies in the image and 0 where the output is black.
    """
    # From 1, because 0 is what comes from outside. float32 is exact up to 2**24.
    positions = torch.arange(1, height * width + 1, dtype=torch.float32)
    positions_1HW = positions.view(1, height, width)
    if degrees != 0.0:
        moved_1HW = tv_functional.rotate(positions_1HW, degrees)
    else:
        moved_1HW = tv_functional.affine(
            positions_1HW,
            angle=0.0,
            translate=[0, 0],
            scale=1.0,
            shear=[math.degrees(math.atan(shear_x)), math.degrees(math.atan(shear_y))],
            center=[0, 0],
        )
    source_P = moved_1HW.flatten().to(torch.int64) - 1
    return source_P.clamp(min=0), (source_P >= 0).to(torch.uint8)


def _resample(images_BCHW: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    source_P, inside_P = (part.to(images_BCHW.device, non_blocking=True) for part in table)
    images_BCP = images_BCHW.flatten(2)
    moved_BCP = images_BCP.gather(-1, source_P.expand_as(images_BCP))
    return moved_BCP.mul_(inside_P).view_as(images_BCHW)


def shear_x(images_BCHW: Tensor, level: float) -> Tensor:
    """Shift every row by `level` times its distance from the top row, in pixels."""
    height, width = images_BCHW.shape[-2:]
    return _resample(images_BCHW, _source_pixels(height, width, shear_x=level))


def shear_y(images_BCHW: Tensor, level: float) -> Tensor:
    """Shift every column by `level` times its distance from the left column, in pixels."""
    height, width = images_BCHW.shape[-2:]
    return _resample(images_BCHW, _source_pixels(height, width, shear_y=level))


def rotate(images_BCHW: Tensor, degrees: float) -> Tensor:
    """Turn every image about its centre, counter-clockwise; corners become black."""
    height, width = images_BCHW.shape[-2:]
    return _resample(images_BCHW, _source_pixels(height, width, degrees=degrees))


def translate_x(images_BCHW: Tensor, pixels: float) -> Tensor:
    """Shift right by the whole pixels of `pixels` (left where negative), filling with black."""
    return _shift(images_BCHW, int(pixels), dim=-1)


def translate_y(images_BCHW: Tensor, pixels: float) -> Tensor:
    """Shift down by the whole pixels of `pixels` (up where negative), filling with black."""
    return _shift(images_BCHW, int(pixels), dim=-2)


def _shift(images_BCHW: Tensor, pixels: int, *, dim: int) -> Tensor:
    size = images_BCHW.shape[dim]
    shifted_BCHW = torch.zeros_like(images_BCHW)
    kept = max(size - abs(pixels), 0)
    # Right or down: the first `kept` pixels move to the end; left or up the reverse.
    source, target = (0, size - kept) if pixels >= 0 else (size - kept, 0)
    shifted_BCHW.narrow(dim, target, kept).copy_(images_BCHW.narrow(dim, source, kept))
    return shifted_BCHW
