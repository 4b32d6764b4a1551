"""Rows: what a source of images gives to `load`, by number, before anything is resized.

Pixels are NumPy arrays here, because Pillow's are; data sets hand out tensors.

Shapes: N images, C channels, H x W pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.errors import DataError
from lipt.common.images.formats import Header
from lipt.common.images.pixels import fit_pixels

# More classes than any labelled image set has: such a label is a mistake, not a class.
_MAX_CLASSES = 100_000


class Rows(Protocol):
    """Labelled images by row number.

    `labels_N` and `class_names` are complete once every row was checked or read.
    """

    @property
    def source(self) -> str:
        """The name under which the user opened the data."""
        ...

    @property
    def class_names(self) -> tuple[str, ...]:
        """A name for every label."""
        ...

    @property
    def labels_N(self) -> Tensor:
        """The labels, int64, on the CPU."""
        ...

    @property
    def encoded(self) -> bool:
        """Whether rows are image files rather than pixels."""
        ...

    def __len__(self) -> int: ...

    @property
    def concurrent(self) -> bool:
        """Whether rows may be read from several threads."""
        ...

    def raw(self, row: int) -> bytes:
        """The row as the source has it: an image file, or uint8 pixels in C x H x W order."""
        ...

    def check(self, row: int) -> Header:
        """The image's format, after a check that it is whole, as far as that is cheap.

        Raises:
            DataError: the image is broken; the message names it.
        """
        ...

    def read(
        self, row: int, channels: int, size: tuple[int, int]
    ) -> tuple[Header, NDArray[np.uint8]]:
        """Decode the image and fit it to `channels` x `size` (height, width).

        Raises:
            DataError: the image is broken; the message names it.
        """
        ...


@dataclass(frozen=True)
class ArrayRows:
    """Images of one size that are in memory already."""

    source: str
    class_names: tuple[str, ...]
    labels_N: Tensor
    images_NCHW: NDArray[np.uint8]
    encoded: bool = False
    concurrent: bool = True

    def __len__(self) -> int:
        return len(self.images_NCHW)

    def raw(self, row: int) -> bytes:
        """The pixels in C x H x W order."""
        data: bytes = self.images_NCHW[row].tobytes()
        return data

    def check(self, row: int) -> Header:
        """The format that all images share."""
        channels, height, width = self.images_NCHW[row].shape
        return Header(height, width, grayscale=channels == 1)

    def read(
        self, row: int, channels: int, size: tuple[int, int]
    ) -> tuple[Header, NDArray[np.uint8]]:
        """The image, fitted to `channels` x `size`."""
        return self.check(row), fit_pixels(self.images_NCHW[row], channels, size)


def numbered_classes(labels_N: Tensor, source: str) -> tuple[str, ...]:
    """Names "0", "1", ... up to the largest label, for a source that names no classes.

    Raises:
        DataError: the largest label is too large to be a class.
    """
    largest = int(labels_N.max())
    if largest >= _MAX_CLASSES:
        row = int(labels_N.argmax())
        raise DataError(
            f"{source}: row {row} has the label {largest}, which would make {largest + 1} "
            "classes. Labels must be class numbers counted from 0."
        )
    return tuple(str(number) for number in range(largest + 1))


def require_labels(labels_N: Tensor, num_classes: int, source: str) -> None:
    """Check that every label is the number of a class, and that there is a choice.

    Raises:
        DataError: a label is outside 0..num_classes-1, or there are fewer than two classes.
    """
    outside_N = (labels_N < 0) | (labels_N >= num_classes)
    if bool(outside_N.any()):
        row = int(outside_N.to(torch.uint8).argmax())
        raise DataError(
            f"{source}: row {row} has the label {int(labels_N[row])}, which is not the number of "
            f"a class: its {num_classes} classes are numbered from 0. Correct or remove the row."
        )
    if num_classes < 2:
        raise DataError(
            f"{source} holds {num_classes} class; a classifier needs at least 2. "
            "Open the directory or file that holds all classes."
        )
