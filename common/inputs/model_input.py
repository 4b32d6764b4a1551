"""Model input: stored examples as the tensors that a model takes."""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.common.errors import DataError
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.specs import ColumnFormat, InputFormat, Inputs
from lipt.common.inputs.stored import Stored

# Normalization of images: from stored pixels to what a model computes on.
#
# For `lipt.common.inputs.model_input`, the one way for all kinds of data.
#
# Shapes: B images, C channels, H x W pixels.


def normalized(images_BCHW: Tensor, image: ImageFormat, device: torch.device | str) -> Tensor:
    """Move images to the device, scale them to [0, 1] and normalize each channel.

    Args:
        images_BCHW: uint8, on any device. Not modified.
        image: the model's format; its mean and std are those of pixels in [0, 1].
        device: where the result lies; bytes travel there, not floats.

    Returns:
        float32, B x C x H x W, contiguous.

    Raises:
        DataError: the images are not uint8 or not of the format's shape.
    """
    shape = tuple(images_BCHW.shape[1:])
    if images_BCHW.dtype != torch.uint8 or images_BCHW.ndim != 4 or shape != image.shape:
        raise DataError(
            f"images of {images_BCHW.dtype} {list(images_BCHW.shape)} are not uint8 "
            f"[B, {', '.join(map(str, image.shape))}], the format of the run's images. "
            "Give images of the data set that the run was made with."
        )
    # Not waited for: an accelerator has a queue of work that must not run dry.
    mean_C11, std_C11 = (
        torch.tensor(values, dtype=torch.float32).to(device, non_blocking=True)[:, None, None]
        for values in (image.mean, image.std)
    )
    # From a device to the CPU it has to be waited for.
    there_BCHW = images_BCHW.to(device, non_blocking=images_BCHW.device.type == "cpu")
    scaled_BCHW = there_BCHW.to(torch.float32).div_(255)
    return scaled_BCHW.sub_(mean_C11).div_(std_C11).contiguous()


# Model input: the one way from stored examples to what a model computes on.
#
# Were the coordinator and a worker to differ in a rounding, a learner would be evaluated on
# other inputs than it was trained on.
#
# Shapes: B examples.


def to_model_input(stored: Stored, inputs: InputFormat, device: torch.device | str) -> Inputs:
    """What a model is given of stored examples, on the device.

    Args:
        stored: on any device. Not modified.
        inputs: the format of the run that they belong to.
        device: where the result lies.

    Returns:
        Of images, float32 B x C x H x W, scaled to [0, 1] and normalized per channel. Of columns,
        one tensor where it has no name, else all of them by name: standardized ones as float32
        (float64 ones as float64), others as they are.

    Raises:
        DataError: the examples are not of the format's type and shape.
    """
    if isinstance(inputs, ImageFormat):
        if not isinstance(stored, Tensor):
            raise DataError(
                f"the columns {', '.join(stored)} are no images, which the run is about. Give "
                "examples of the data set that the run was made with."
            )
        return normalized(stored, inputs, device)
    found = {"images": stored} if isinstance(stored, Tensor) else stored
    if list(found) != [one.column.name for one in inputs.columns]:
        raise DataError(
            f"the columns {', '.join(map(repr, found))} are not those of the run, {inputs.spec}. "
            "Give examples of the data set that the run was made with."
        )
    given = {
        one.column.name: _of_column(found[one.column.name], one, device) for one in inputs.columns
    }
    return given.get("", given)


def in_layout(inputs: Inputs, memory_format: torch.memory_format) -> Inputs:
    """The same inputs, images in a model's memory format."""
    if isinstance(inputs, Tensor) and inputs.ndim == 4:
        return inputs.contiguous(memory_format=memory_format)
    return inputs


def _of_column(values_B: Tensor, figures: ColumnFormat, device: torch.device | str) -> Tensor:
    column = figures.column
    if values_B.dtype != column.type.dtype or tuple(values_B.shape[1:]) != column.shape:
        raise DataError(
            f"column {column.name!r} of {values_B.dtype} {list(values_B.shape)} is not as the "
            f"run's {column} is, for B examples. Give examples of the data set that the run was "
            "made with."
        )
    # From a device to the CPU it has to be waited for.
    there_B = values_B.to(device, non_blocking=values_B.device.type == "cpu")
    if not column.standardized:
        return there_B
    dtype = torch.float64 if there_B.dtype == torch.float64 else torch.float32
    # A number's only place is no dimension of its own.
    shape = (column.shape[-1],) if column.shape else ()
    # Not waited for: an accelerator has a queue of work that must not run dry.
    mean, std = (
        torch.tensor(values, dtype=dtype).view(shape).to(device, non_blocking=True)
        for values in (figures.mean, figures.std)
    )
    return there_B.to(dtype).sub(mean).div(std)
