"""Operations that change pixels' values and leave them where they are.

The order of the floating-point operations is torchvision's, because a result is
cut (not rounded) to a byte and another order would lose a level here and there.

Shapes: B images, C channels (1 or 3), H height, W width, P = H x W pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LEVELS = 256


def brightness(images_BCHW: Tensor, level: float) -> Tensor:
    """Blend with black: 1 + `level` times every value, clipped."""
    return _blend(images_BCHW, torch.zeros_like(images_BCHW), 1.0 + level)


def color(images_BCHW: Tensor, level: float) -> Tensor:
    """Blend with the image's own grey version; images with one channel stay as they are."""
    if images_BCHW.shape[1] == 1:
        return images_BCHW
    return _blend(images_BCHW, _grey(images_BCHW), 1.0 + level)


def contrast(images_BCHW: Tensor, level: float) -> Tensor:
    """Blend with the mean of the image's own grey version."""
    grey_B1HW = _grey(images_BCHW)
    num_pixels = grey_B1HW[0].numel()
    # Summed in integers: the same on every device and in any order.
    mean_B111 = grey_B1HW.sum(dim=(-3, -2, -1), keepdim=True).to(torch.float32) / num_pixels
    return _blend(images_BCHW, mean_B111, 1.0 + level)


def sharpness(images_BCHW: Tensor, level: float) -> Tensor:
    """Blend with a blurred image; its border of one pixel is not blurred.

    The blur is the 3 x 3 mean with the centre counted five times. The sum in
    thirteenths is an integer and never halfway between two levels, so rounding
    its quotient gives what a convolution in floats gives.
    """
    height, width = images_BCHW.shape[-2:]
    if height <= 2 or width <= 2:
        return images_BCHW
    values = images_BCHW.to(torch.int16)
    rows = values[..., :-2, :] + values[..., 1:-1, :] + values[..., 2:, :]
    boxes = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    thirteenths = boxes + 4 * values[..., 1:-1, 1:-1]
    blurred_BCHW = images_BCHW.to(torch.float32)
    blurred_BCHW[..., 1:-1, 1:-1] = (thirteenths.to(torch.float32) / 13.0).round_()
    return _blend(images_BCHW, blurred_BCHW, 1.0 + level)


def posterize(images_BCHW: Tensor, bits: float) -> Tensor:
    """Keep the `bits` highest bits of every value."""
    dropped = 8 - int(bits)
    return images_BCHW & (0xFF >> dropped << dropped)


def solarize(images_BCHW: Tensor, threshold: float) -> Tensor:
    """Invert the values that are at least `threshold`."""
    # Minus 1 is 255 in a byte, and an exclusive or with it inverts; a `where` on bytes is slow.
    return images_BCHW ^ (images_BCHW >= threshold).to(torch.uint8).neg_()


def autocontrast(images_BCHW: Tensor, _level: float) -> Tensor:
    """Stretch every channel of every image to 0..255; a constant channel stays as it is."""
    images_BCP = images_BCHW.flatten(2)
    lowest_BC1 = images_BCP.amin(dim=-1, keepdim=True).to(torch.float32)
    highest_BC1 = images_BCP.amax(dim=-1, keepdim=True).to(torch.float32)
    constant_BC1 = lowest_BC1 == highest_BC1
    scale_BC1 = (255.0 / (highest_BC1 - lowest_BC1)).masked_fill_(constant_BC1, 1.0)
    lowest_BC1.masked_fill_(constant_BC1, 0.0)
    stretched_BCP = ((images_BCP - lowest_BC1) * scale_BC1).clamp_(0, 255)
    return _cut(stretched_BCP).view_as(images_BCHW)


def equalize(images_BCHW: Tensor, _level: float) -> Tensor:
    """Flatten the histogram of every channel of every image.

    PIL's rule: with h the histogram and s the number of pixels below the
    brightest value, divided by 255, value v becomes (sum of h below v + s/2) / s,
    all in whole numbers; where s is 0 the channel stays as it is.
    """
    values_BCP = images_BCHW.flatten(2).to(torch.int64)
    num_images, num_channels, num_pixels = values_BCP.shape
    if num_pixels < _LEVELS:
        return images_BCHW
    ones = values_BCP.new_ones(1).expand_as(values_BCP)
    histogram_BCL = values_BCP.new_zeros(num_images, num_channels, _LEVELS)
    histogram_BCL.scatter_add_(-1, values_BCP, ones)
    brightest_BC1 = values_BCP.amax(dim=-1, keepdim=True)
    step_BC1 = (num_pixels - histogram_BCL.gather(-1, brightest_BC1)) // (_LEVELS - 1)
    below_BCL = histogram_BCL.cumsum(-1) - histogram_BCL
    table_BCL = (below_BCL + step_BC1 // 2) // step_BC1.clamp(min=1)
    unchanged_L = torch.arange(_LEVELS, device=images_BCHW.device)
    table_BCL = torch.where(step_BC1 == 0, unchanged_L, table_BCL.clamp_(max=_LEVELS - 1))
    return table_BCL.to(torch.uint8).gather(-1, values_BCP).view_as(images_BCHW)


def _grey(images_BCHW: Tensor) -> Tensor:
    """ITU-R 601 luma, cut to a byte: B x 1 x H x W."""
    if images_BCHW.shape[1] == 1:
        return images_BCHW
    red, green, blue = images_BCHW.unbind(dim=1)
    luma_BHW = red * 0.2989 + green * 0.587 + blue * 0.114
    return luma_BHW.to(torch.uint8).unsqueeze(1)


def _blend(images_BCHW: Tensor, other_BCHW: Tensor, ratio: float) -> Tensor:
    """`ratio` parts of the images and 1 - `ratio` of the other, clipped and cut to bytes."""
    blended_BCHW = images_BCHW * ratio + other_BCHW * (1.0 - ratio)
    return _cut(blended_BCHW.clamp_(0, 255))


def _cut(values: Tensor) -> Tensor:
    """Drop the fractions of floats in 0..255, by way of int16: twice as fast on a CPU."""
    return values.to(torch.int16).to(torch.uint8)
