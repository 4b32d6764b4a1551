"""Decoding: image files to pixels; whatever is wrong with a file becomes a `DataError`.

Pillow decodes, on the coordinator and on the workers, so that both see the same
pixels. Orientation tags are not applied, as in torchvision's data sets.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from lipt.common.errors import DataError
from lipt.common.images.formats import Header, fit_image, is_grayscale

# Pillow has readers that start other programs (EPS) or are hardly ever used.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM", "TIFF", "GIF")

# 200 MB as RGB. A few bytes can declare far more.
_MAX_PIXELS = 2**26

# Where a whole file has its end marker, give or take some padding.
_TAIL_BYTES = 64
_END_MARKERS = {"JPEG": b"\xff\xd9", "MPO": b"\xff\xd9", "PNG": b"IEND"}


def decode_image(data: bytes, image_shape: tuple[int, int, int]) -> Tensor:
    """Decode an image file and fit it to what the model sees.

    Args:
        data: a file in one of `FORMATS`.
        image_shape: channels (1 or 3), height and width. The shorter side is scaled, the
            longer one cropped at the centre.

    Returns:
        uint8, C x H x W.

    Raises:
        DataError: the bytes are no such file, are cut off, or declare too many pixels.
    """
    channels, height, width = image_shape
    _, pixels_CHW = decode_file(io.BytesIO(data), channels, (height, width))
    return torch.from_numpy(pixels_CHW.copy())


def decode_file(
    file: BinaryIO, channels: int, size: tuple[int, int]
) -> tuple[Header, NDArray[np.uint8]]:
    """As `decode_image`, from a seekable file, with the image's own format beside its pixels."""
    with _as_data_error(), Image.open(file, formats=FORMATS) as image:
        header = _header_of(image)
        height, width = size
        if min(image.width // width, image.height // height) >= 4:
            # A JPEG can be decoded at 1/2, 1/4 or 1/8; twice the target loses nothing visible.
            image.draft(None, (2 * width, 2 * height))
        return header, fit_image(image, channels, size)


def check_file(file: BinaryIO) -> Header:
    """Check an image file without decoding it, where its format allows that.

    A file without its format's end marker is decoded, as is one of a format without markers.

    Raises:
        DataError: as `decode_image`.
    """
    with _as_data_error(), Image.open(file, formats=FORMATS) as image:
        header = _header_of(image)
        if not _has_end_marker(file, image.format or ""):
            image.load()
        return header


def _header_of(image: Image.Image) -> Header:
    if image.width * image.height > _MAX_PIXELS:
        raise DataError(
            f"it has {image.width} x {image.height} pixels, over the limit of {_MAX_PIXELS}"
        )
    return Header(image.height, image.width, grayscale=is_grayscale(image))


def _has_end_marker(file: BinaryIO, image_format: str) -> bool:
    if image_format not in _END_MARKERS:
        return False
    position = file.tell()
    num_bytes = file.seek(0, os.SEEK_END)
    file.seek(max(0, num_bytes - _TAIL_BYTES))
    tail = file.read(_TAIL_BYTES)
    file.seek(position)
    return _END_MARKERS[image_format] in tail


@contextmanager
def _as_data_error() -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except UnidentifiedImageError:  # which names the file by where it lies in memory
        known = ", ".join(FORMATS)
        raise DataError(f"it is not a whole image: it is in none of the formats {known}") from None
    # A broken file can make Pillow raise nearly anything.
    except Exception as error:
        raise DataError(f"it is not a whole image: {error}") from error
