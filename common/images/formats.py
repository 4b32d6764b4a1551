"""Images: formats, pixels, and data URLs."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field
from torch import Tensor

from lipt.common.errors import ConfigError, DataError

# Image formats: an image's own, and the one that a model sees.


@dataclass(frozen=True)
class Header:
    """One image's own format."""

    height: int
    width: int
    grayscale: bool


@dataclass(frozen=True)
class ImageFormat:
    """What a model sees: C x H x W, scaled to [0, 1], then normalized per channel.

    Raises:
        ConfigError: not one mean and one positive deviation for each channel.
    """

    channels: Annotated[int, Field(ge=1)]
    height: Annotated[int, Field(ge=1)]
    width: Annotated[int, Field(ge=1)]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse a normalization that no image of these channels can take."""
        positive = all(deviation > 0 for deviation in self.std)
        if not len(self.mean) == len(self.std) == self.channels or not positive:
            raise ConfigError(
                f"normalization mean {list(self.mean)}, std {list(self.std)} does not fit "
                f"{self.channels} channels."
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.channels, self.height, self.width


# Pixels: an image fitted to what the model sees, first its channels, then its size.
#
# The shorter side is scaled and the longer one cropped at the centre, in one
# resampling by Pillow, whose integer arithmetic is the same on every machine.


def fit_image(image: Image.Image, channels: int, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Convert a Pillow image to uint8 pixels of `channels` x height x width.

    Grayscale becomes three equal channels; transparency is dropped; of 16-bit grayscale
    the upper 8 bits stay.

    Args:
        image: any mode that Pillow converts to grayscale or RGB.
        channels: 1 or 3.
        size: height and width.

    Raises:
        DataError: the image's values are not brightnesses of 8 or 16 bits.
    """
    image = _to_channels(image, channels)
    height, width = size
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR, box=_box(image, size))
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
    """A Pillow image of pixels of 1 or 3 channels."""
    if len(pixels_CHW) == 1:
        return Image.fromarray(np.ascontiguousarray(pixels_CHW[0]))
    return Image.fromarray(np.ascontiguousarray(pixels_CHW.transpose(1, 2, 0)))


def is_grayscale(image: Image.Image) -> bool:
    """Whether the image's mode has brightness only."""
    return image.mode in {"1", "L", "LA", "La", "I"} or image.mode.startswith("I;16")


def _to_channels(image: Image.Image, channels: int) -> Image.Image:
    if image.mode == "I" or image.mode.startswith("I;16"):
        image = _upper_bits(image)
    elif image.mode == "F":
        raise DataError("it has floating-point values; save it with 8 bits a channel")
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    mode = "L" if channels == 1 else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _upper_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.int64)
    if values.size and not 0 <= values.min() <= values.max() < 2**16:
        raise DataError(
            f"its values span {values.min()}..{values.max()}; save it with 8 bits a channel"
        )
    return Image.fromarray((values >> 8).astype(np.uint8))


def _box(image: Image.Image, size: tuple[int, int]) -> tuple[float, float, float, float]:
    """The largest centred box of the target's proportions: left, top, right, bottom."""
    height, width = size
    scale = min(image.width / width, image.height / height)
    left = (image.width - width * scale) / 2
    top = (image.height - height * scale) / 2
    # Rounding must not push the box over the edge, which Pillow refuses.
    right = min(left + width * scale, image.width)
    bottom = min(top + height * scale, image.height)
    return max(left, 0.0), max(top, 0.0), right, bottom


# Data URLs: an image as a text that a page can hold.

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
