"""Pictures of a page: images as data URLs, so that the page is one file."""

from __future__ import annotations

import base64
import io

from PIL import Image
from torch import Tensor


def data_url(image_CHW: Tensor, max_pixels: int) -> str:
    """An image as a PNG's data URL, scaled down where a side is longer than `max_pixels`.

    Small ones keep their size: a browser scales them up, with sharp edges where it is told to.
    """
    pixels_HWC = image_CHW.permute(1, 2, 0).contiguous().numpy()
    picture = Image.fromarray(pixels_HWC[..., 0] if pixels_HWC.shape[-1] == 1 else pixels_HWC)
    picture.thumbnail((max_pixels, max_pixels))
    content = io.BytesIO()
    picture.save(content, "PNG")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
