"""Data factory: a user's own data set, from a function `package.module:factory`.

Any map-style data set will do, torchvision's and lists included: `len()`, and
`data[row]` giving a pair of image and label. Its `targets` and `classes`, where
it has them, save a pass and name the classes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from lipt.common.data.sources.rows import PixelRows
from lipt.common.errors import ConfigError, DataError
from lipt.common.images.pixels import fit_image, is_grayscale
from lipt.common.imports.factory import load_factory


class FactoryRows(PixelRows):
    """The rows of a user's data set, read in one thread: it need not be ready for more.

    Its `classes` name the labels. Without `targets`, labels come from the rows, as they are read.
    """

    concurrent = False

    def __init__(self, source: str, data: Any) -> None:
        """Look at a data set's length, labels and first row.

        Raises:
            ConfigError: `data` is not map-style.
            DataError: it is empty, its `targets` do not fit, or row 0 differs between two reads.
        """
        num_rows = _length(source, data)
        names: Any = getattr(data, "classes", None)
        named = isinstance(names, Sequence) and not isinstance(names, str)
        targets = getattr(data, "targets", None)
        self._has_targets = targets is not None
        if targets is not None:
            labels_N = _labels(source, targets, num_rows)
        else:
            # Rows that were not read yet have no class.
            labels_N = torch.full((num_rows,), -1, dtype=torch.int64)
        super().__init__(source, tuple(map(str, names)) if named else None, labels_N)
        self._data = data
        if num_rows and self.raw(0) != self.raw(0):
            raise DataError(
                f"{source}: row 0 differs between two reads. Leave random transforms out of the "
                "data set: the workers augment."
            )

    def pixels(self, row: int) -> NDArray[np.uint8]:
        """The image; its label is noted where there are no `targets`."""
        try:
            item = self._data[row]
        except Exception as error:
            raise DataError(
                f"{self.source}: reading row {row} failed with {type(error).__name__}: {error}. "
                "Every row from 0 to len() - 1 must be readable."
            ) from error
        if not isinstance(item, tuple | list) or len(item) < 2:
            raise DataError(
                f"{self.source}: row {row} is a {type(item).__name__}, not a pair of image and "
                "label. Return (image, label)."
            )
        if not self._has_targets:
            self.labels_N[row] = _label(item[1], self.source, row)
        return _to_pixels(item[0], self.source, row)


def factory_rows(source: str, allowed_modules: Collection[str]) -> FactoryRows:
    """Call the factory that `source` names, without arguments.

    Raises:
        FactoryNotAllowedError: this process's flags do not allow the module.
        ConfigError: the factory cannot be imported, fails, or returns no map-style data set.
        DataError: as `FactoryRows`.
    """
    factory = load_factory(source, allowed_modules=allowed_modules)
    try:
        data = factory()
    except Exception as error:
        raise ConfigError(
            f"{source!r} called without arguments failed with {type(error).__name__}: {error}. "
            "Define it as def factory(), returning the training set."
        ) from error
    return FactoryRows(source, data)


def _length(source: str, data: Any) -> int:
    try:
        num_rows = len(data)
    except TypeError:
        num_rows = None
    if num_rows is None or not hasattr(data, "__getitem__"):
        raise ConfigError(
            f"{source!r} returned a {type(data).__name__}, which is not a map-style data set. "
            "Return one with len() and data[row] -> (image, label), such as a list of pairs."
        )
    return num_rows


def _labels(source: str, targets: Any, num_rows: int) -> Tensor:
    try:
        labels_N = torch.as_tensor(targets)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{source}: its targets are not a list of class numbers ({error}). Let `targets` be a "
            "list of one integer per row, or leave it out."
        ) from error
    if labels_N.shape != (num_rows,) or labels_N.is_floating_point() or labels_N.is_complex():
        raise DataError(
            f"{source}: its targets are {labels_N.dtype} of shape {tuple(labels_N.shape)} for "
            f"{num_rows} rows. Let `targets` be a list of one integer per row, or leave it out."
        )
    return labels_N.to(device="cpu", dtype=torch.int64, copy=True)


def _label(label: Any, source: str, row: int) -> int:
    try:
        number = int(label)
        exact = number == label
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number, exact = 0, False
    if not exact or abs(number) >= 2**63:
        raise DataError(
            f"{source}: row {row} has the label {label!r:.80}, a {type(label).__name__}. Return "
            "the number of its class, an int from 0."
        )
    return number


def _to_pixels(image: Any, source: str, row: int) -> NDArray[np.uint8]:
    """uint8 pixels of 1 or 3 channels, C x H x W, of what a row may hold."""
    if isinstance(image, Image.Image):
        try:
            return fit_image(image, 1 if is_grayscale(image) else 3, (image.height, image.width))
        except (DataError, OSError, ValueError) as error:
            raise DataError(f"{source}: the image of row {row} cannot be used: {error}.") from error
    if isinstance(image, Tensor):
        pixels = image.detach().cpu().numpy()
    elif isinstance(image, np.ndarray):
        pixels = image.transpose(2, 0, 1) if image.ndim == 3 else image
    else:
        raise DataError(
            f"{source}: the image of row {row} is a {type(image).__name__}. Return a PIL image, "
            "a uint8 tensor of C x H x W or a uint8 array of H x W x C."
        )
    if pixels.ndim == 2:
        pixels = pixels[None]
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or len(pixels) not in {1, 3} or not pixels.size:
        raise DataError(
            f"{source}: the image of row {row} is {image.dtype} of shape {tuple(image.shape)}. "
            "Return uint8 brightnesses 0..255 with 1 or 3 channels: C x H x W in a tensor, "
            "H x W x C in an array, without ToTensor or Normalize."
        )
    return pixels
