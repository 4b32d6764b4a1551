"""Data URLs: an image as a text that a page can hold."""

from __future__ import annotations

import base64
import io

from PIL import Image
from torch import Tensor

_JPEG_QUALITY = 85


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
