"""Crop and flip: the mild augmentation.

Shapes: B images, C channels, H height, W width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

PADDING = 4


def crop_flip(
    images_BCHW: Tensor, *, generator: torch.Generator, padding: int = PADDING, flip: bool = True
) -> Tensor:
    """Crop each image at random from itself padded with black pixels, and flip half of them.

    `top` and `left` of the crop are uniform in 0..2 padding. Images may have any dtype and device;
    the CPU generator gives all devices the same draws.
    """
    num_images, num_channels, height, width = images_BCHW.shape
    offsets = (num_images, 1)
    top_B1 = torch.randint(2 * padding + 1, offsets, generator=generator)
    left_B1 = torch.randint(2 * padding + 1, offsets, generator=generator)
    flipped_B1 = torch.randint(2, offsets, generator=generator).to(torch.bool) & flip

    # One asynchronous copy, to keep an accelerator's queue full.
    device = images_BCHW.device
    drawn_3B1 = torch.stack([top_B1, left_B1, flipped_B1.long()]).to(device, non_blocking=True)
    top_B1, left_B1, flipped_B1 = drawn_3B1[0], drawn_3B1[1], drawn_3B1[2] != 0
    rows_BH = top_B1 + torch.arange(height, device=device)
    columns_W = torch.arange(width, device=device)
    columns_BW = left_B1 + torch.where(flipped_B1, columns_W.flip(0), columns_W)
    padded_width = width + 2 * padding
    pixels_BHW = rows_BH.unsqueeze(2) * padded_width + columns_BW.unsqueeze(1)

    padded_BCP = functional.pad(images_BCHW, [padding] * 4).flatten(2)
    pixels_B1P = pixels_BHW.flatten(1).unsqueeze(1)
    return padded_BCP.gather(-1, pixels_B1P.expand(-1, num_channels, -1)).view_as(images_BCHW)
