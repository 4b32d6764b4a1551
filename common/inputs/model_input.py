"""Stored examples, of whatever kind, and the one way from them to a model's inputs.

Stored images are one uint8 tensor, B x C x H x W; other examples are a tensor for each column, by
its name. Were the coordinator and a worker to differ in a rounding, a learner would be evaluated on
other inputs than it was trained on.

Shapes: B images or examples of a batch, C channels, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from lipt.common.errors import DataError
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.specs import ColumnFormat, InputFormat, Inputs

Stored = Tensor | dict[str, Tensor]

_REMEDY = "Give examples of the data set that the run was made with."


def num_stored(stored: Tensor | Mapping[str, Tensor]) -> int:
    """How many examples there are; of inputs of a model as well."""
    return len(stored if isinstance(stored, Tensor) else next(iter(stored.values())))


def rows_of(stored: Stored, rows: Tensor | slice) -> Stored:
    """Some of the examples, by a slice or by row numbers on their own device."""
    return _each(stored, lambda tensor: tensor[rows])


def stored_on(stored: Stored, device: torch.device | str, *, non_blocking: bool = False) -> Stored:
    """The examples on a device."""
    return _each(stored, lambda tensor: tensor.to(device, non_blocking=non_blocking))


def pinned(stored: Stored) -> Stored:
    """The examples in page-locked memory, from which they are sent without waiting."""
    return _each(stored, Tensor.pin_memory)


def split_stored(stored: Stored, size: int) -> Iterator[Stored]:
    """Parts of `size` examples, one after another; the last one may have fewer."""
    for start in range(0, num_stored(stored), size):
        yield rows_of(stored, slice(start, start + size))


def split_evenly(stored: Stored, num_parts: int) -> Iterator[Stored]:
    """As many parts, whose sizes differ by one at most, larger ones first."""
    each, more = divmod(num_stored(stored), num_parts)
    start = 0
    for part in range(num_parts):
        end = start + each + (part < more)
        yield rows_of(stored, slice(start, end))
        start = end


def images_in(stored: Stored) -> Tensor:
    """The examples, which are images; raises TypeError where they are not."""
    if not isinstance(stored, Tensor):
        raise TypeError(f"columns {list(stored)} in place of images")
    return stored


def columns_in(stored: Stored) -> dict[str, Tensor]:
    """The examples, which are columns; raises TypeError where they are not."""
    if isinstance(stored, Tensor):
        raise TypeError("images in place of columns")
    return stored


def _each(stored: Stored, change: Callable[[Tensor], Tensor]) -> Stored:
    if isinstance(stored, Tensor):
        return change(stored)
    return {name: change(tensor) for name, tensor in stored.items()}


def to_model_input(stored: Stored, inputs: InputFormat, device: torch.device | str) -> Inputs:
    """Stored examples as a model's inputs.

    Args:
        stored: on any device. Not modified.
        inputs: the run's format.
        device: where the result lies; bytes travel there, not floats.

    Returns:
        Of images, float32 B x C x H x W, contiguous, scaled to [0, 1] and normalized per channel.
        Of columns, one tensor where it has no name, else all of them by name: standardized ones as
        float32 (float64 ones as float64), others as they are.
    """
    if isinstance(inputs, ImageFormat):
        if not isinstance(stored, Tensor):
            raise DataError(f"the columns {', '.join(stored)} are no images. {_REMEDY}")
        return _normalized(stored, inputs, device)
    found = {"images": stored} if isinstance(stored, Tensor) else stored
    if list(found) != [one.column.name for one in inputs.columns]:
        raise DataError(
            f"the columns {', '.join(map(repr, found))} are not those of the run, {inputs.spec}. "
            f"{_REMEDY}"
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


def _normalized(images_BCHW: Tensor, image: ImageFormat, device: torch.device | str) -> Tensor:
    shape = tuple(images_BCHW.shape[1:])
    if images_BCHW.dtype != torch.uint8 or images_BCHW.ndim != 4 or shape != image.shape:
        raise DataError(
            f"images of {images_BCHW.dtype} {list(images_BCHW.shape)} are not uint8 "
            f"[B, {', '.join(map(str, image.shape))}]. {_REMEDY}"
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


def _of_column(values_B: Tensor, figures: ColumnFormat, device: torch.device | str) -> Tensor:
    column = figures.column
    if values_B.dtype != column.type.dtype or tuple(values_B.shape[1:]) != column.shape:
        raise DataError(
            f"column {column.name!r} of {values_B.dtype} {list(values_B.shape)} does not fit the "
            f"run's {column}. {_REMEDY}"
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
