"""Stored examples and their conversion to a model's inputs, the same for all peers.

Stored images are one uint8 tensor, B x C x H x W; other examples are a tensor for each column.

Shapes: B images or examples of a batch, C channels, H x W pixels, P positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from lipt.common.errors import DataError
from lipt.data.inputs.specs import ColumnFormat, ImageFormat, InputFormat, Inputs
from lipt.data.inputs.standardization import standardized

Stored = Tensor | dict[str, Tensor]

_REMEDY = "Give examples of the data set that the run was made with."


def num_stored(stored: Tensor | Mapping[str, Tensor]) -> int:
    return len(stored if isinstance(stored, Tensor) else next(iter(stored.values())))


def rows_of(stored: Stored, rows: Tensor | slice) -> Stored:
    """Select examples by a slice or by row numbers on their device."""
    return _each(stored, lambda tensor: tensor[rows])


def stored_on(stored: Stored, device: torch.device | str, *, non_blocking: bool = False) -> Stored:
    return _each(stored, lambda tensor: tensor.to(device, non_blocking=non_blocking))


def pinned(stored: Stored) -> Stored:
    """Copy examples to page-locked memory, for asynchronous transfer."""
    return _each(stored, Tensor.pin_memory)


def split_stored(stored: Stored, size: int) -> Iterator[Stored]:
    """Consecutive parts of `size` examples; the last may be smaller."""
    return _parts(stored, lambda tensor: torch.split(tensor, size))


def split_evenly(stored: Stored, num_parts: int) -> Iterator[Stored]:
    """Consecutive parts whose sizes differ by at most one, larger ones first."""
    return _parts(stored, lambda tensor: torch.tensor_split(tensor, num_parts))


def _parts(stored: Stored, split: Callable[[Tensor], Sequence[Tensor]]) -> Iterator[Stored]:
    if isinstance(stored, Tensor):
        return iter(split(stored))
    parts = zip(*map(split, stored.values()), strict=True)
    return (dict(zip(stored, part, strict=True)) for part in parts)


def images_in(stored: object) -> Tensor:
    if not isinstance(stored, Tensor):
        raise TypeError(f"{type(stored).__name__} in place of images")
    return stored


def columns_in(stored: Stored) -> dict[str, Tensor]:
    if isinstance(stored, Tensor):
        raise TypeError("images in place of columns")
    return stored


def _each(stored: Stored, change: Callable[[Tensor], Tensor]) -> Stored:
    if isinstance(stored, Tensor):
        return change(stored)
    return {name: change(tensor) for name, tensor in stored.items()}


def to_model_input(stored: Stored, inputs: InputFormat, device: torch.device | str) -> Inputs:
    """Stored examples, on any device, as a model's inputs on `device`.

    Images become float32 B x C x H x W, contiguous, scaled to [0, 1] and normalized per channel. A
    nameless column becomes one tensor, others tensors by name. Standardized ones are float32, cut
    at 10 deviations; others are unchanged.
    """
    if isinstance(inputs, ImageFormat):
        if not isinstance(stored, Tensor):
            raise DataError(f"the columns {', '.join(stored)} are not images. {_REMEDY}")
        return _normalized(stored, inputs, device)
    tensors = {"images": stored} if isinstance(stored, Tensor) else stored
    if list(tensors) != [column_format.column.name for column_format in inputs.columns]:
        raise DataError(
            f"the columns {', '.join(map(repr, tensors))} are not those of the run, {inputs.spec}. "
            f"{_REMEDY}"
        )
    given = {
        column_format.column.name: _of_column(
            tensors[column_format.column.name], column_format, device
        )
        for column_format in inputs.columns
    }
    return given.get("", given)


def in_layout(inputs: Inputs, memory_format: torch.memory_format) -> Inputs:
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
    mean_C, std_C = (values.float() for values in _figures(image.mean, image.std, device))
    scaled_BCHW = _moved(images_BCHW, device).to(torch.float32).div_(255)
    return scaled_BCHW.sub_(mean_C[:, None, None]).div_(std_C[:, None, None]).contiguous()


def _of_column(values_B: Tensor, figures: ColumnFormat, device: torch.device | str) -> Tensor:
    column = figures.column
    if values_B.dtype != column.type.dtype or tuple(values_B.shape[1:]) != column.shape:
        raise DataError(
            f"column {column.name!r} of {values_B.dtype} {list(values_B.shape)} does not fit the "
            f"run's {column}. {_REMEDY}"
        )
    there_B = _moved(values_B, device)
    if not column.standardized:
        return there_B
    # A scalar column has one position, but no dimension for it.
    shape = column.shape[-1:]
    mean_P, std_P = _figures(figures.mean, figures.std, device)
    return standardized(there_B, mean_P.view(shape), std_P.view(shape))


def _figures(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device | str
) -> tuple[Tensor, Tensor]:
    # Asynchronous, to keep an accelerator's queue full.
    on_cpu = (torch.tensor(figures, dtype=torch.float64) for figures in (mean, std))
    mean_P, std_P = (values.to(device, non_blocking=True) for values in on_cpu)
    return mean_P, std_P


def _moved(stored_B: Tensor, device: torch.device | str) -> Tensor:
    # Copies from a device to the CPU must be synchronous.
    return stored_B.to(device, non_blocking=stored_B.device.type == "cpu")
