"""Image files, of which a test made up the pixels: PNG gives them back as they were."""

import io
import itertools

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lipt.data.inputs.specs import ImageFormat
from lipt.data.shard import EncodedImages

FORMAT = ImageFormat(3, 4, 5, (0.0,) * 3, (1.0,) * 3)


def made_up(number: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (number, 3, 4, 5), generator=generator).to(torch.uint8)


def files_of(images_NCHW: Tensor) -> list[bytes]:
    files = []
    for image_CHW in images_NCHW:
        pixels = image_CHW.permute(1, 2, 0).squeeze(2).numpy()
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        files.append(file.getvalue())
    return files


def encoded(files: list[bytes], image: ImageFormat = FORMAT) -> EncodedImages:
    offsets = list(itertools.accumulate(map(len, files), initial=0))
    return EncodedImages(np.frombuffer(b"".join(files), np.uint8), offsets, image)
