from __future__ import annotations

import base64
import io

import torch
from PIL import Image

from lipt.common.data import open_dataset
from lipt.trainer.report.pictures import are_small, coarse_values, data_url, pictures_of

DIGITS = open_dataset("digits-test")


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


def test_pictures_come_in_the_order_of_their_rows() -> None:
    found = pictures_of(DIGITS, [7, 2], 64)
    assert found == [data_url(DIGITS.images(torch.tensor([row]))[0], 64) for row in (7, 2)]
    assert pictures_of(DIGITS, [], 64) == []
    assert are_small(DIGITS)


def test_coarse_pixels_are_no_finer_than_the_image() -> None:
    found = coarse_values(DIGITS, torch.arange(3))
    assert torch.equal(found, DIGITS.images(torch.arange(3)).flatten(start_dim=1).float())
