"""RandAugment: 14 operations on batches of images, two for each image, by its own draws.

Operations, ranges and signs equal `torchvision.transforms.RandAugment` to the byte, which gives all
images of a batch the same draw. Images with the same operation and sign are processed at once.
Draws come from a CPU generator: one seed gives the same draws on every device.

Shapes: B images, C channels (1 or 3), H height, W width, P = H x W pixels, O operations per image.
Source: Cubuk et al. 2020, "RandAugment" (arXiv:1909.13719).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torchvision.transforms import functional as tv_functional

from lipt.common.config.run_config import AugmentationConfig, AugmentationMethod
from lipt.common.errors import DataError
from lipt.common.images.crop_flip import crop_flip
from lipt.common.inputs.model_input import Stored

NUM_MAGNITUDE_BINS = 31
_LEVELS = 256
# A translation by a full magnitude: 150 pixels in the 331 of AutoAugment's ImageNet.
_FULL_TRANSLATION = 150.0 / 331.0
# Five operations, two signs, and a few image sizes or magnitudes in one process.
_TABLES_KEPT = 64


def _brightness(images_BCHW: Tensor, level: float) -> Tensor:
    return _blend(images_BCHW, torch.zeros_like(images_BCHW), 1.0 + level)


def _color(images_BCHW: Tensor, level: float) -> Tensor:
    if images_BCHW.shape[1] == 1:
        return images_BCHW
    return _blend(images_BCHW, _grey(images_BCHW), 1.0 + level)


def _contrast(images_BCHW: Tensor, level: float) -> Tensor:
    grey_B1HW = _grey(images_BCHW)
    num_pixels = grey_B1HW[0].numel()
    # Summed in integers: the same on every device and in any order.
    mean_B111 = grey_B1HW.sum(dim=(-3, -2, -1), keepdim=True).to(torch.float32) / num_pixels
    return _blend(images_BCHW, mean_B111, 1.0 + level)


def _sharpness(images_BCHW: Tensor, level: float) -> Tensor:
    # The blur is the 3 x 3 mean with the centre counted five times. The sum in thirteenths is an
    # integer and never halfway between two levels, so rounding its quotient gives what a
    # convolution in floats gives. The border of one pixel is not blurred.
    height, width = images_BCHW.shape[-2:]
    if height <= 2 or width <= 2:
        return images_BCHW
    values = images_BCHW.to(torch.int16)
    rows = values[..., :-2, :] + values[..., 1:-1, :] + values[..., 2:, :]
    boxes = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    thirteenths = boxes + 4 * values[..., 1:-1, 1:-1]
    blurred_BCHW = images_BCHW.to(torch.float32)
    blurred_BCHW[..., 1:-1, 1:-1] = (thirteenths.to(torch.float32) / 13.0).round_()
    return _blend(images_BCHW, blurred_BCHW, 1.0 + level)


def _posterize(images_BCHW: Tensor, bits: float) -> Tensor:
    dropped = 8 - int(bits)
    return images_BCHW & (0xFF >> dropped << dropped)


def _solarize(images_BCHW: Tensor, threshold: float) -> Tensor:
    # Minus 1 is 255 in a byte, and an exclusive or with it inverts; a `where` on bytes is slow.
    return images_BCHW ^ (images_BCHW >= threshold).to(torch.uint8).neg_()


def _autocontrast(images_BCHW: Tensor, _level: float) -> Tensor:
    # A constant channel stays unchanged.
    images_BCP = images_BCHW.flatten(2)
    lowest_BC1 = images_BCP.amin(dim=-1, keepdim=True).to(torch.float32)
    highest_BC1 = images_BCP.amax(dim=-1, keepdim=True).to(torch.float32)
    constant_BC1 = lowest_BC1 == highest_BC1
    scale_BC1 = (255.0 / (highest_BC1 - lowest_BC1)).masked_fill_(constant_BC1, 1.0)
    lowest_BC1.masked_fill_(constant_BC1, 0.0)
    stretched_BCP = ((images_BCP - lowest_BC1) * scale_BC1).clamp_(0, 255)
    return _cut(stretched_BCP).view_as(images_BCHW)


def _equalize(images_BCHW: Tensor, _level: float) -> Tensor:
    # PIL's rule: with h the histogram and s the number of pixels below the brightest value, divided
    # by 255, value v becomes (sum of h below v + s/2) / s, in integers; if s is 0 the channel stays
    # unchanged.
    values_BCP = images_BCHW.flatten(2).to(torch.int64)
    num_images, num_channels, num_pixels = values_BCP.shape
    if num_pixels < _LEVELS:
        return images_BCHW
    ones = values_BCP.new_ones(1).expand_as(values_BCP)
    histogram_BCL = values_BCP.new_zeros(num_images, num_channels, _LEVELS)
    histogram_BCL.scatter_add_(-1, values_BCP, ones)
    brightest_BC1 = values_BCP.amax(dim=-1, keepdim=True)
    step_BC1 = (num_pixels - histogram_BCL.gather(-1, brightest_BC1)) // (_LEVELS - 1)
    below_BCL = histogram_BCL.cumsum(-1) - histogram_BCL
    table_BCL = (below_BCL + step_BC1 // 2) // step_BC1.clamp(min=1)
    unchanged_L = torch.arange(_LEVELS, device=images_BCHW.device)
    table_BCL = torch.where(step_BC1 == 0, unchanged_L, table_BCL.clamp_(max=_LEVELS - 1))
    return table_BCL.to(torch.uint8).gather(-1, values_BCP).view_as(images_BCHW)


def _grey(images_BCHW: Tensor) -> Tensor:
    if images_BCHW.shape[1] == 1:
        return images_BCHW
    red, green, blue = images_BCHW.unbind(dim=1)
    luma_BHW = red * 0.2989 + green * 0.587 + blue * 0.114
    return luma_BHW.to(torch.uint8).unsqueeze(1)


def _blend(images_BCHW: Tensor, other_BCHW: Tensor, ratio: float) -> Tensor:
    blended_BCHW = images_BCHW * ratio + other_BCHW * (1.0 - ratio)
    return _cut(blended_BCHW.clamp_(0, 255))


def _cut(values: Tensor) -> Tensor:
    return values.to(torch.int16).to(torch.uint8)


# All images of a group move in the same way, and the nearest-pixel rule copies pixels without
# mixing them. So the resampling of `grid_sample` is computed once per image size and applied as a
# gather over bytes, without floats.
@lru_cache(maxsize=_TABLES_KEPT)
def _source_pixels(
    height: int, width: int, *, degrees: float = 0.0, shear_x: float = 0.0, shear_y: float = 0.0
) -> tuple[Tensor, Tensor]:
    # From 1, because 0 marks pixels from outside. float32 is exact up to 2**24.
    positions = torch.arange(1, height * width + 1, dtype=torch.float32)
    positions_1HW = positions.view(1, height, width)
    if degrees != 0.0:
        moved_1HW = tv_functional.rotate(positions_1HW, degrees)
    else:
        moved_1HW = tv_functional.affine(
            positions_1HW,
            angle=0.0,
            translate=[0, 0],
            scale=1.0,
            shear=[math.degrees(math.atan(shear_x)), math.degrees(math.atan(shear_y))],
            center=[0, 0],
        )
    source_P = moved_1HW.flatten().to(torch.int64) - 1
    return source_P.clamp(min=0), (source_P >= 0).to(torch.uint8)


def _resample(images_BCHW: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    source_P, inside_P = (part.to(images_BCHW.device, non_blocking=True) for part in table)
    images_BCP = images_BCHW.flatten(2)
    moved_BCP = images_BCP.gather(-1, source_P.expand_as(images_BCP))
    return moved_BCP.mul_(inside_P).view_as(images_BCHW)


def _moving(motion: str) -> Callable[[Tensor, float], Tensor]:
    def move(images_BCHW: Tensor, level: float) -> Tensor:
        height, width = images_BCHW.shape[-2:]
        return _resample(images_BCHW, _source_pixels(height, width, **{motion: level}))

    return move


def _shifting(dim: int) -> Callable[[Tensor, float], Tensor]:
    # By whole pixels, right or down (left or up where negative), filling with black.
    def shift(images_BCHW: Tensor, level: float) -> Tensor:
        pixels, size = int(level), images_BCHW.shape[dim]
        shifted_BCHW = torch.zeros_like(images_BCHW)
        kept = max(size - abs(pixels), 0)
        # Right or down: the first `kept` pixels move to the end; left or up the reverse.
        source, target = (0, size - kept) if pixels >= 0 else (size - kept, 0)
        shifted_BCHW.narrow(dim, target, kept).copy_(images_BCHW.narrow(dim, source, kept))
        return shifted_BCHW

    return shift


@dataclass(frozen=True)
class Operation:
    """`apply(images_BCHW, level)` on uint8 images; half of them get -level if `signed`."""

    apply: Callable[[Tensor, float], Tensor]
    level: Callable[[int, int, int], float] = lambda _bin, _height, _width: 0.0
    signed: bool = False


def _spaced(first: float, last: float, magnitude_bin: int) -> float:
    # In float32, like torchvision: a threshold or an angle may depend on the last digit.
    return float(torch.linspace(first, last, NUM_MAGNITUDE_BINS)[magnitude_bin])


def _up_to(full: float) -> Callable[[int, int, int], float]:
    return lambda magnitude_bin, _height, _width: _spaced(0.0, full, magnitude_bin)


OPERATIONS: dict[str, Operation] = {
    "Identity": Operation(lambda images_BCHW, _level: images_BCHW),
    "ShearX": Operation(_moving("shear_x"), _up_to(0.3), signed=True),
    "ShearY": Operation(_moving("shear_y"), _up_to(0.3), signed=True),
    "TranslateX": Operation(
        _shifting(-1),
        lambda magnitude_bin, _, width: _spaced(0.0, _FULL_TRANSLATION * width, magnitude_bin),
        signed=True,
    ),
    "TranslateY": Operation(
        _shifting(-2),
        lambda magnitude_bin, height, _: _spaced(0.0, _FULL_TRANSLATION * height, magnitude_bin),
        signed=True,
    ),
    "Rotate": Operation(_moving("degrees"), _up_to(30.0), signed=True),
    "Brightness": Operation(_brightness, _up_to(0.9), signed=True),
    "Color": Operation(_color, _up_to(0.9), signed=True),
    "Contrast": Operation(_contrast, _up_to(0.9), signed=True),
    "Sharpness": Operation(_sharpness, _up_to(0.9), signed=True),
    "Posterize": Operation(
        _posterize,
        lambda magnitude_bin, _, __: 8.0 - round(magnitude_bin * 4 / (NUM_MAGNITUDE_BINS - 1)),
    ),
    "Solarize": Operation(
        _solarize, lambda magnitude_bin, _, __: _spaced(255.0, 0.0, magnitude_bin)
    ),
    "AutoContrast": Operation(_autocontrast),
    "Equalize": Operation(_equalize),
}


def draw_operations(
    num_images: int, *, num_ops: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Each image's positions in `OPERATIONS`, and which signs are negative; O x B."""
    shape = (num_ops, num_images)
    operations_OB = torch.randint(len(OPERATIONS), shape, generator=generator)
    negative_OB = torch.randint(2, shape, generator=generator).to(torch.bool)
    return operations_OB, negative_OB


def randaugment(
    images_BCHW: Tensor, *, num_ops: int, magnitude: int, generator: torch.Generator
) -> Tensor:
    """Apply `num_ops` operations of a strength in 0..30 to every image, drawn per image."""
    if num_ops == 0:
        return images_BCHW
    draws = draw_operations(len(images_BCHW), num_ops=num_ops, generator=generator)
    signed = torch.tensor([operation.signed for operation in OPERATIONS.values()])
    # The images stay sorted by their last group until the end; place_B maps them back. Two buffers
    # alternate: a new one per round would cost more (in page faults) than the copy.
    place_B = torch.arange(len(images_BCHW))
    sorted_BCHW, spare_BCHW = torch.empty_like(images_BCHW), torch.empty_like(images_BCHW)
    for operations_B, negative_B in zip(*draws, strict=True):
        group_B = 2 * operations_B + (negative_B & signed[operations_B])
        order_B = group_B[place_B].argsort(stable=True)
        place_B = place_B[order_B]
        torch.index_select(images_BCHW, 0, order_B.to(images_BCHW.device), out=sorted_BCHW)
        counts = torch.bincount(group_B, minlength=2 * len(OPERATIONS)).tolist()
        _apply_in_place(torch.split(sorted_BCHW, counts), magnitude)
        images_BCHW, sorted_BCHW, spare_BCHW = sorted_BCHW, spare_BCHW, sorted_BCHW
    return torch.index_select(
        images_BCHW, 0, place_B.argsort().to(images_BCHW.device), out=sorted_BCHW
    )


def _apply_in_place(groups: Sequence[Tensor], magnitude: int) -> None:
    height, width = groups[0].shape[-2:]
    pairs = zip(groups[::2], groups[1::2], strict=True)
    for operation, pair in zip(OPERATIONS.values(), pairs, strict=True):
        level = operation.level(magnitude, height, width)
        for group_BCHW, sign in zip(pair, (1.0, -1.0), strict=True):
            if len(group_BCHW) > 0:
                group_BCHW.copy_(operation.apply(group_BCHW, sign * level))


def augment(stored: Stored, config: AugmentationConfig, generator: torch.Generator) -> Stored:
    """Augment a batch of images; other examples are unchanged."""
    return augment_images(stored, config, generator) if isinstance(stored, Tensor) else stored


def augment_images(
    images_BCHW: Tensor, config: AugmentationConfig, generator: torch.Generator
) -> Tensor:
    """Augment uint8 images by the run's method; DataError if not uint8 of 1 or 3 channels."""
    dtype, shape = images_BCHW.dtype, images_BCHW.shape
    if dtype != torch.uint8 or len(shape) != 4 or shape[1] not in {1, 3}:
        raise DataError(
            f"images are {dtype} of shape {tuple(shape)}, but augmentation takes torch.uint8 of "
            "shape B x C x H x W with 1 or 3 channels. Convert the images when they are read."
        )
    match config.method:
        case AugmentationMethod.RANDAUGMENT:
            strength = {"num_ops": config.num_ops, "magnitude": config.magnitude}
            return randaugment(images_BCHW, **strength, generator=generator)
        case AugmentationMethod.CROP_FLIP:
            return crop_flip(images_BCHW, generator=generator)
        case AugmentationMethod.NONE:
            return images_BCHW
