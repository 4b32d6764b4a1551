"""RandAugment: 14 operations on batches of images, two for each image, by its own draws.

Operations, ranges and signs equal `torchvision.transforms.RandAugment` to the byte, which gives all
images of a batch the same draw. Images with the same operation and sign are processed at once.

Shapes: B images, C channels (1 or 3), H height, W width, P = H x W pixels, O operations per image.
Source: Cubuk et al. 2020, "RandAugment" (arXiv:1909.13719).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torchvision.transforms import functional as tv
from torchvision.transforms.v2.functional import equalize_image

from lipt.common.config.run_config import AugmentationConfig, AugmentationMethod
from lipt.common.errors import DataError
from lipt.data.images.formats import crop_flip
from lipt.data.inputs.model_input import Stored

NUM_MAGNITUDE_BINS = 31
# A translation by a full magnitude: 150 pixels in the 331 of AutoAugment's ImageNet.
_FULL_TRANSLATION = 150.0 / 331.0
# Five motions, two signs, and a few image sizes or magnitudes in one process.
_TABLES_KEPT = 64


def _contrast(images_BCHW: Tensor, level: float) -> Tensor:
    grey_B1HW = images_BCHW
    if images_BCHW.shape[1] == 3:
        grey_B1HW = tv.rgb_to_grayscale(images_BCHW)
    # Summed in integers, unlike torchvision's: the same on every device and in any order.
    mean_B111 = grey_B1HW.sum(dim=(-3, -2, -1), keepdim=True).float() / grey_B1HW[0].numel()
    return _blend(images_BCHW, mean_B111, 1.0 + level)


def _sharpness(images_BCHW: Tensor, level: float) -> Tensor:
    # The blur is the 3 x 3 mean with the centre counted five times. The sum in thirteenths is an
    # integer and never halfway between two levels: every device rounds the same. A border of one
    # pixel is not blurred.
    if min(images_BCHW.shape[-2:]) <= 2:
        return images_BCHW
    values = images_BCHW.to(torch.int16)
    rows = values[..., :-2, :] + values[..., 1:-1, :] + values[..., 2:, :]
    thirteenths = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * values[..., 1:-1, 1:-1]
    blurred_BCHW = images_BCHW.float()
    blurred_BCHW[..., 1:-1, 1:-1] = (thirteenths.float() / 13.0).round_()
    return _blend(images_BCHW, blurred_BCHW, 1.0 + level)


def _blend(images_BCHW: Tensor, other_BCHW: Tensor, ratio: float) -> Tensor:
    blended_BCHW = images_BCHW * ratio + other_BCHW * (1.0 - ratio)
    return blended_BCHW.clamp_(0, 255).to(torch.uint8)


def _solarize(images_BCHW: Tensor, threshold: float) -> Tensor:
    # Minus 1 is 255 in a byte, and an exclusive or with it inverts; a `where` on bytes is slow.
    return images_BCHW ^ (images_BCHW >= threshold).to(torch.uint8).neg_()


# All images of a group move in the same way, and the nearest-pixel rule copies pixels without
# mixing them. So the resampling of `grid_sample` is computed once per image size and applied as a
# gather over bytes, which takes a tenth of the time.
@lru_cache(maxsize=_TABLES_KEPT)
def _source_pixels(height: int, width: int, motion: str, level: float) -> tuple[Tensor, Tensor]:
    # From 1, because 0 marks pixels from outside. float32 is exact up to 2**24.
    positions_1HW = torch.arange(1, height * width + 1, dtype=torch.float32).view(1, height, width)
    if motion == "Rotate":
        moved_1HW = tv.rotate(positions_1HW, level)
    else:
        along_x, shifts = motion.endswith("X"), motion.startswith("Translate")
        pixels = int(level) if shifts else 0
        degrees = 0.0 if shifts else math.degrees(math.atan(level))
        moved_1HW = tv.affine(
            positions_1HW,
            angle=0.0,
            translate=[pixels, 0] if along_x else [0, pixels],
            scale=1.0,
            shear=[degrees, 0.0] if along_x else [0.0, degrees],
            center=[0, 0],
        )
    source_P = moved_1HW.flatten().to(torch.int64) - 1
    return source_P.clamp(min=0), (source_P >= 0).to(torch.uint8)


def _moving(motion: str) -> Callable[[Tensor, float], Tensor]:
    def move(images_BCHW: Tensor, level: float) -> Tensor:
        table = _source_pixels(*images_BCHW.shape[-2:], motion, level)
        source_P, inside_P = (part.to(images_BCHW.device, non_blocking=True) for part in table)
        images_BCP = images_BCHW.flatten(2)
        moved_BCP = images_BCP.gather(-1, source_P.expand_as(images_BCP))
        return moved_BCP.mul_(inside_P).view_as(images_BCHW)

    return move


@dataclass(frozen=True)
class Operation:
    """`apply(images_BCHW, level)` on uint8 images; half of them get -level if `signed`."""

    apply: Callable[[Tensor, float], Tensor]
    level: Callable[[int, int, int], float] = lambda _bin, _height, _width: 0.0
    signed: bool = False


def _spaced(first: float, last: float, magnitude_bin: int) -> float:
    # In float32, like torchvision: a threshold or an angle may depend on the last digit.
    return float(torch.linspace(first, last, NUM_MAGNITUDE_BINS)[magnitude_bin])


def _moved(motion: str, full: Callable[[int, int], float]) -> Operation:
    return Operation(
        _moving(motion),
        lambda magnitude_bin, height, width: _spaced(0.0, full(height, width), magnitude_bin),
        signed=True,
    )


def _colored(apply: Callable[[Tensor, float], Tensor]) -> Operation:
    return Operation(
        apply, lambda magnitude_bin, _, __: _spaced(0.0, 0.9, magnitude_bin), signed=True
    )


OPERATIONS: dict[str, Operation] = {
    "Identity": Operation(lambda images_BCHW, _level: images_BCHW),
    "ShearX": _moved("ShearX", lambda _height, _width: 0.3),
    "ShearY": _moved("ShearY", lambda _height, _width: 0.3),
    "TranslateX": _moved("TranslateX", lambda _height, width: _FULL_TRANSLATION * width),
    "TranslateY": _moved("TranslateY", lambda height, _width: _FULL_TRANSLATION * height),
    "Rotate": _moved("Rotate", lambda _height, _width: 30.0),
    "Brightness": _colored(lambda images, level: tv.adjust_brightness(images, 1.0 + level)),
    "Color": _colored(lambda images, level: tv.adjust_saturation(images, 1.0 + level)),
    "Contrast": _colored(_contrast),
    "Sharpness": _colored(_sharpness),
    "Posterize": Operation(
        lambda images, bits: tv.posterize(images, int(bits)),
        lambda magnitude_bin, _, __: 8.0 - round(magnitude_bin * 4 / (NUM_MAGNITUDE_BINS - 1)),
    ),
    "Solarize": Operation(
        _solarize, lambda magnitude_bin, _, __: _spaced(255.0, 0.0, magnitude_bin)
    ),
    "AutoContrast": Operation(lambda images, _level: tv.autocontrast(images)),
    "Equalize": Operation(lambda images, _level: equalize_image(images)),
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
    steps = [
        (operation, sign * operation.level(magnitude, *images_BCHW.shape[-2:]))
        for operation in OPERATIONS.values()
        for sign in (1.0, -1.0)
    ]
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
        groups = torch.split(sorted_BCHW, counts)
        for (operation, level), group_BCHW in zip(steps, groups, strict=True):
            if len(group_BCHW) > 0:
                group_BCHW.copy_(operation.apply(group_BCHW, level))
        images_BCHW, sorted_BCHW, spare_BCHW = sorted_BCHW, spare_BCHW, sorted_BCHW
    return torch.index_select(
        images_BCHW, 0, place_B.argsort().to(images_BCHW.device), out=sorted_BCHW
    )


def augment(stored: Stored, config: AugmentationConfig, generator: torch.Generator) -> Stored:
    """Augment images by the run's method; other examples are unchanged.

    DataError if images are not uint8 of 1 or 3 channels.
    """
    if not isinstance(stored, Tensor):
        return stored
    dtype, shape = stored.dtype, stored.shape
    if dtype != torch.uint8 or len(shape) != 4 or shape[1] not in {1, 3}:
        raise DataError(
            f"images are {dtype} of shape {tuple(shape)}, but augmentation takes torch.uint8 of "
            "shape B x C x H x W with 1 or 3 channels. Convert the images when they are read."
        )
    match config.method:
        case AugmentationMethod.RANDAUGMENT:
            strength = {"num_ops": config.num_ops, "magnitude": config.magnitude}
            return randaugment(stored, **strength, generator=generator)
        case AugmentationMethod.CROP_FLIP:
            return crop_flip(stored, generator=generator)
        case AugmentationMethod.NONE:
            return stored
