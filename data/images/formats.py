"""Images: decoded and fitted to a model's size, with the same pixels on every machine.

The shorter side is scaled, the longer one cropped at the centre. A camera's orientation is applied.

Transparent pixels are put on white, or on black or gray where the outline of the visible part would
vanish on white. A picture without any visible pixel is taken without its transparency. Gray of more
than 8 bits keeps the upper 8 of 16, or of 12 or 8 if all its values are below 4096 or 256.

Shapes: B images, C channels, H height, W width.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torch.nn import functional

from lipt.common.errors import DataError

# Pillow's other readers start programs (EPS) or are rarely used.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM", "TIFF", "GIF")
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".gif")

# 200 MB as RGB; a tiny file can declare far more. Each row costs memory of its own, too.
_MAX_PIXELS, _MAX_SIDE = 2**26, 2**16

# Contains a complete file's end marker, with some padding.
_TAIL_BYTES = 64
_END_MARKERS = {"JPEG": b"\xff\xd9", "MPO": b"\xff\xd9", "PNG": b"IEND"}

_JPEG_QUALITY = 85

_WITH_ALPHA = frozenset(("LA", "La", "PA", "RGBA", "RGBa"))
# Pillow's modes that can be taken whatever their values are.
_KNOWN = frozenset(("1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr", "HSV", "LAB", *_WITH_ALPHA))
_16_BITS = frozenset(("I;16", "I;16B", "I;16L", "I;16N"))
# Grounds of transparent pictures, in the order of preference.
_GROUNDS = ("white", "black", "gray")
# A picture stays on white if at most this share of its outline vanishes there.
_MOST_HIDDEN = 0.1
# An edge is visible from this share of its opacity on.
_LEAST_VISIBLE = 1 / 8
# Pixels a side of the sample that decides about the ground.
_SAMPLED_SIDE = 512
# Orientations that exchange width and height.
_ON_ITS_SIDE = range(5, 9)


@dataclass(frozen=True)
class Header:
    """An image file's own format."""

    height: int
    width: int
    grayscale: bool


def fit_image(image: Image.Image, channels: int, size: tuple[int, int]) -> NDArray[np.uint8]:
    """A Pillow image as uint8 `channels` x height x width; 16-bit gray keeps its upper 8 bits."""
    image = _to_channels(oriented(image), channels)
    height, width = size
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    pixels: NDArray[np.uint8] = np.asarray(image)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def fit_pixels(
    pixels_CHW: NDArray[np.uint8], channels: int, size: tuple[int, int]
) -> NDArray[np.uint8]:
    """As `fit_image`, from pixels of 1 or 3 channels."""
    if pixels_CHW.shape == (channels, *size):
        return pixels_CHW
    if channels == 3 and pixels_CHW.shape == (1, *size):
        return pixels_CHW.repeat(3, axis=0)
    return fit_image(to_image(pixels_CHW), channels, size)


def to_image(pixels_CHW: NDArray[np.uint8]) -> Image.Image:
    if len(pixels_CHW) == 1:
        return Image.fromarray(np.ascontiguousarray(pixels_CHW[0]))
    return Image.fromarray(np.ascontiguousarray(pixels_CHW.transpose(1, 2, 0)))


def oriented(image: Image.Image) -> Image.Image:
    """The image as its camera was held. Pillow turns a TIFF by itself."""
    _require_size(image)
    return ImageOps.exif_transpose(image) if "exif" in image.info else image


def is_grayscale(image: Image.Image) -> bool:
    return image.mode in {"1", "L", "LA", "La", "I", *_16_BITS}


def _require_size(image: Image.Image) -> None:
    if image.width * image.height > _MAX_PIXELS or max(image.size) > _MAX_SIDE:
        raise DataError(
            f"it has {image.width} x {image.height} pixels, over the limit of {_MAX_PIXELS}, or of "
            f"{_MAX_SIDE} a side"
        )


def _to_channels(image: Image.Image, channels: int) -> Image.Image:
    if image.mode in {"I", *_16_BITS}:
        image = Image.fromarray(_upper_bits(np.asarray(image)))
    elif _has_transparency(image):
        image = _without_transparency(image)
    elif image.mode not in _KNOWN:
        raise DataError(f"its pixels are of the type {image.mode}; save it with 8 bits a channel")
    elif image.mode == "LAB":  # which Pillow converts to RGB alone
        image = image.convert("RGB")
    mode = "L" if channels == 1 else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _upper_bits(values_HW: NDArray[np.integer]) -> NDArray[np.uint8]:
    low, high = (int(values_HW.min()), int(values_HW.max())) if values_HW.size else (0, 0)
    if low < 0 or high >= 2**16:
        raise DataError(f"its values span {low}..{high}; save it with 8 bits a channel")
    # Scanners and microscopes store 8 or 12 bits in 16.
    bits = next(bits for bits in (8, 12, 16) if high < 2**bits)
    return (values_HW >> (bits - 8)).astype(np.uint8)


def _has_transparency(image: Image.Image) -> bool:
    palette = image.palette.mode if image.mode == "P" and image.palette is not None else ""
    return image.mode in _WITH_ALPHA or "transparency" in image.info or palette.endswith("A")


def _without_transparency(image: Image.Image) -> Image.Image:
    # Pillow converts La to LA alone.
    image = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
    low, high = image.getchannel("A").getextrema()
    if high == 0 or low == 255:
        return image.convert("RGB")
    size = min(image.width, _SAMPLED_SIDE), min(image.height, _SAMPLED_SIDE)
    sample = image.resize(size, Image.Resampling.NEAREST)
    hidden = {_GROUNDS[0]: _hidden_share(sample, _GROUNDS[0])}
    if hidden[_GROUNDS[0]] > _MOST_HIDDEN:
        hidden = {ground: _hidden_share(sample, ground) for ground in _GROUNDS}
    return _on_ground(image, min(hidden, key=hidden.__getitem__))


def _on_ground(image: Image.Image, ground: str) -> Image.Image:
    return Image.alpha_composite(Image.new("RGBA", image.size, ground), image).convert("RGB")


def _hidden_share(image: Image.Image, ground: str) -> float:
    """The share of the edges of the opacity that cannot be seen on a ground."""
    opacity_HW = np.asarray(image.getchannel("A")).astype(np.int16)
    pixels_HWC = np.asarray(_on_ground(image, ground)).astype(np.int16)
    hidden = total = 0
    for axis in (0, 1):
        edges = np.abs(np.diff(opacity_HW, axis=axis))
        seen = np.abs(np.diff(pixels_HWC, axis=axis)).max(axis=2, initial=0)
        total += int(edges.sum())
        hidden += int(edges[seen < _LEAST_VISIBLE * edges].sum())
    return hidden / max(1, total)


def data_url(image_CHW: Tensor, max_pixels: int) -> str:
    """An image as a data URL: a PNG, or a smaller JPEG if a side exceeds `max_pixels`."""
    picture = to_image(image_CHW.numpy())
    kind = "JPEG" if max(picture.size) > max_pixels else "PNG"
    picture.thumbnail((max_pixels, max_pixels))
    content = io.BytesIO()
    picture.save(content, kind, quality=_JPEG_QUALITY)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(content.getvalue()).decode()}"


def decode_image(data: bytes, image_shape: tuple[int, int, int]) -> Tensor:
    channels, height, width = image_shape
    _, pixels_CHW = decode_file(io.BytesIO(data), channels, (height, width))
    return torch.from_numpy(pixels_CHW.copy())


def decode_file(
    file: BinaryIO, channels: int, size: tuple[int, int]
) -> tuple[Header, NDArray[np.uint8]]:
    """Like `decode_image`, from a seekable file; also returns the image's own format."""
    with _opened(file) as image:
        header = _header_of(image)
        height, width = size
        if min(image.width // width, image.height // height) >= 4:
            # JPEG decodes at 1/2, 1/4 or 1/8; twice the target size loses nothing visible.
            image.draft(None, (2 * width, 2 * height))
        return header, fit_image(image, channels, size)


def check_file(file: BinaryIO) -> Header:
    """Check an image file; decodes it if its format has no end marker, or rare pixels."""
    with _opened(file) as image:
        header = _header_of(image)
        if not _has_end_marker(file, image.format or "") or image.mode not in _KNOWN | _16_BITS:
            image.load()
            _to_channels(image, 3)
        return header


def format_of(file: BinaryIO) -> str:
    """Pillow's name of an image file's format, by its header."""
    with _opened(file) as image:
        return image.format or ""


def _header_of(image: Image.Image) -> Header:
    _require_size(image)
    size = image.height, image.width
    # A PNG without orientation would be decoded to look for one.
    exif = image.getexif() if "exif" in image.info else {}
    if exif.get(ExifTags.Base.Orientation) in _ON_ITS_SIDE:
        size = image.width, image.height
    return Header(*size, grayscale=is_grayscale(image))


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
def _opened(file: BinaryIO) -> Iterator[Image.Image]:
    """An image file, not decoded yet; what Pillow raises becomes a DataError."""
    try:
        with Image.open(file, formats=FORMATS) as image:
            yield image
    except DataError:
        raise
    except UnidentifiedImageError:  # its message names the file object
        known = ", ".join(FORMATS)
        what = (
            f"it is in none of the formats {known}"
            if file.seek(0, os.SEEK_END)
            else "the file is empty"
        )
        raise DataError(f"it is not a whole image: {what}") from None
    # Pillow can raise nearly anything on a broken file.
    except Exception as error:
        raise DataError(f"it is not a whole image: {error}") from error


# Smaller pictures are digits and signs, which a shift or a mirror image may turn into others.
_MIN_AUGMENTED_SIDE = 28


def mild_augmentation(image_shape: tuple[int, int, int]) -> tuple[int, bool]:
    """Pixels to shift images by at most, and whether to mirror them, without changing a class.

    From 28 pixels a side an eighth, and mirror images in colour; nothing else.
    """
    channels, *sides = image_shape
    side = min(sides)
    return (side // 8, channels == 3) if side >= _MIN_AUGMENTED_SIDE else (0, False)


def crop_flip(
    images_BCHW: Tensor, *, generator: torch.Generator, padding: int = 4, flip: bool = True
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
