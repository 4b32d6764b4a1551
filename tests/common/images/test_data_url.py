from __future__ import annotations

import base64
import io

import torch
from PIL import Image

from lipt.common.images.formats import data_url


def opened(address: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))


def test_small_pictures_keep_every_pixel() -> None:
    image_CHW = torch.randint(0, 256, (3, 5, 7), dtype=torch.uint8)
    address = data_url(image_CHW, 64)
    assert address.startswith("data:image/png;base64,")
    pixels_HWC = torch.tensor(list(opened(address).tobytes())).view(5, 7, 3)
    assert torch.equal(pixels_HWC, image_CHW.permute(1, 2, 0))


def test_large_pictures_are_scaled_down_and_weigh_little() -> None:
    image_CHW = torch.randint(0, 256, (3, 300, 150), dtype=torch.uint8)
    address = data_url(image_CHW, 64)
    assert address.startswith("data:image/jpeg;base64,")
    assert opened(address).size == (32, 64)
    assert len(address) < 8000
