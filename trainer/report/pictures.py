"""Pictures of a page: images as data URLs, so that the page is one file.

All that a page does with pixels is here.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from lipt.common.data import Dataset

# Images up to this many pixels a side are scaled up with sharp edges.
_SMALL_PIXELS = 64
_COARSE_PIXELS = 16
_JPEG_QUALITY = 85


def pictures_of(dataset: Dataset, rows: Sequence[int], max_pixels: int) -> list[str]:
    """The data URLs of some examples."""
    if not rows:
        return []
    images_BCHW = dataset.images(torch.tensor(rows))
    return [data_url(image_CHW, max_pixels) for image_CHW in images_BCHW]


def are_small(dataset: Dataset) -> bool:
    """Whether its pictures are scaled up where they are shown."""
    return max(dataset.image_shape[1:]) <= _SMALL_PIXELS


def coarse_pixels(dataset: Dataset, ids_N: Tensor) -> Tensor:
    """The brightnesses of examples at 16 x 16 pixels or fewer; float32, N x D."""
    _, height, width = dataset.image_shape
    sides = (min(height, _COARSE_PIXELS), min(width, _COARSE_PIXELS))
    parts = [
        functional.adaptive_avg_pool2d(dataset.images(ids_B).float(), sides).flatten(start_dim=1)
        for ids_B in torch.split(ids_N, 256)
    ]
    return torch.cat(parts)


def data_url(image_CHW: Tensor, max_pixels: int) -> str:
    """An image as a data URL: a PNG, or a smaller JPEG where a side is longer than `max_pixels`.

    Small ones keep their size: a browser scales them up, with sharp edges where it is told to.
    """
    pixels_HWC = image_CHW.permute(1, 2, 0).contiguous().numpy()
    picture = Image.fromarray(pixels_HWC[..., 0] if pixels_HWC.shape[-1] == 1 else pixels_HWC)
    kind = "JPEG" if max(picture.size) > max_pixels else "PNG"
    picture.thumbnail((max_pixels, max_pixels))
    content = io.BytesIO()
    picture.save(content, kind, quality=_JPEG_QUALITY)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(content.getvalue()).decode()}"
