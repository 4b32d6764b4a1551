"""Stored examples: a batch as it lies in memory and travels, whatever kind of data it is of.

Images are one uint8 tensor, B x C x H x W; what is no image is a tensor for each column, by its
name. All that is done with both alike is done here.

Shapes: B examples of a batch, N of several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

Stored = Tensor | dict[str, Tensor]


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
    """The examples where they are known to be images.

    Raises:
        TypeError: they are not.
    """
    if not isinstance(stored, Tensor):
        raise TypeError(f"columns {list(stored)} in place of images")
    return stored


def columns_in(stored: Stored) -> dict[str, Tensor]:
    """The examples where they are known to be columns.

    Raises:
        TypeError: they are not.
    """
    if isinstance(stored, Tensor):
        raise TypeError("images in place of columns")
    return stored


def _each(stored: Stored, change: Callable[[Tensor], Tensor]) -> Stored:
    if isinstance(stored, Tensor):
        return change(stored)
    return {name: change(tensor) for name, tensor in stored.items()}
