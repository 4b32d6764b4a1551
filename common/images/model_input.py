"""Normalization of images: from stored pixels to what a model computes on.

For `lipt.common.inputs.model_input`, the one way for all kinds of data.

Shapes: B images, C channels, H x W pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.common.errors import DataError
from lipt.common.images.formats import ImageFormat


def normalized(images_BCHW: Tensor, image: ImageFormat, device: torch.device | str) -> Tensor:
    """Move images to the device, scale them to [0, 1] and normalize each channel.

    Args:
        images_BCHW: uint8, on any device. Not modified.
        image: the model's format; its mean and std are those of pixels in [0, 1].
        device: where the result lies; bytes travel there, not floats.

    Returns:
        float32, B x C x H x W, contiguous.

    Raises:
        DataError: the images are not uint8 or not of the format's shape.
    """
    shape = tuple(images_BCHW.shape[1:])
    if images_BCHW.dtype != torch.uint8 or images_BCHW.ndim != 4 or shape != image.shape:
        raise DataError(
            f"images of {images_BCHW.dtype} {list(images_BCHW.shape)} are not uint8 "
            f"[B, {', '.join(map(str, image.shape))}], the format of the run's images. "
            "Give images of the data set that the run was made with."
        )
    # Not waited for: an accelerator has a queue of work that must not run dry.
    mean_C11, std_C11 = (
        torch.tensor(values, dtype=torch.float32).to(device, non_blocking=True)[:, None, None]
        for values in (image.mean, image.std)
    )
    # From a device to the CPU it has to be waited for.
    there_BCHW = images_BCHW.to(device, non_blocking=images_BCHW.device.type == "cpu")
    scaled_BCHW = there_BCHW.to(torch.float32).div_(255)
    return scaled_BCHW.sub_(mean_C11).div_(std_C11).contiguous()
