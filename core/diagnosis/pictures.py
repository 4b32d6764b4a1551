"""Pictures: how alike two images are, whatever their brightness, noise and compression.

A thumbnail of 8 x 8 cells, centred and of unit length, tells most pictures apart at little
cost. Of two whose thumbnails are alike the pixels are compared, one of them moved by up to a
pixel each way: the correlation at the best of the nine places.

Shapes: N images, C channels, P pixels of a thumbnail, B images or pairs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.inputs.specs import ImageSpec, InputSpec
from lipt.common.signals.blocks import row_blocks

_CELLS = 8
# Rows of fewer pixels are numbers of another kind.
_SMALLEST = 4
# Sides of what pixels are compared of; larger images are averaged down to that.
_SIDE = 32
_SHIFT = 1


@dataclass(frozen=True)
class Pictures:
    """What was seen of all images in one pass.

    digests: a hash of each image's pixels.
    thumbnails_NP: float32, of unit length; zeros for an image of one colour.
    """

    digests: list[bytes]
    thumbnails_NP: Tensor


def are_pictures(inputs: InputSpec) -> bool:
    """Whether examples are images whose pixels have neighbours that mean something."""
    return isinstance(inputs, ImageSpec) and min(inputs.height, inputs.width) >= _SMALLEST


def look_at(
    images_of: Callable[[Tensor], Tensor],
    num_images: int,
    *,
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> Pictures:
    """Hash all images, and keep a thumbnail of each.

    Args:
        images_of: from B ids, their images, uint8 B x C x H x W.
        num_images: N, one or more.
        on_progress: told how many of N are done.
    """
    digests: list[bytes] = []
    thumbnails = []
    image_bytes = 16 * images_of(torch.tensor([0])).numel()
    for rows in row_blocks(num_images, image_bytes):
        images_BCHW = images_of(torch.arange(rows.start, rows.stop))
        digests += [hashlib.sha256(image.tobytes()).digest() for image in images_BCHW.numpy()]
        thumbnails.append(_unit(_averaged(images_BCHW.float(), _CELLS)))
        on_progress(rows.stop, num_images)
    return Pictures(digests, torch.cat(thumbnails))


def aligned_correlation(left_BCHW: Tensor, right_BCHW: Tensor) -> Tensor:
    """The correlation of pairs of pictures at the best of nine places; B float32 in [-1, 1].

    Pictures of one colour correlate with nothing.
    """
    left, right = (_averaged(images.float(), _SIDE) for images in (left_BCHW, right_BCHW))
    height, width = left.shape[2:]
    inner = _unit(left[:, :, _SHIFT : height - _SHIFT, _SHIFT : width - _SHIFT])
    best_B = torch.full((len(left),), -1.0)
    for top in range(2 * _SHIFT + 1):
        for start in range(2 * _SHIFT + 1):
            moved = right[:, :, top : top + height - 2 * _SHIFT, start : start + width - 2 * _SHIFT]
            best_B = torch.maximum(best_B, (inner * _unit(moved)).sum(dim=-1))
    return best_B


def _averaged(images_BCHW: Tensor, side: int) -> Tensor:
    height, width = images_BCHW.shape[2:]
    if max(height, width) <= side:
        return images_BCHW
    return functional.adaptive_avg_pool2d(images_BCHW, (min(height, side), min(width, side)))


def _unit(pixels_BCHW: Tensor) -> Tensor:
    """All of an image's pixels, centred and of unit length."""
    flat_BP = pixels_BCHW.flatten(start_dim=1)
    return functional.normalize(flat_BP - flat_BP.mean(dim=1, keepdim=True), dim=1)
