"""Data factory: a user's own data set, from a function `package.module:factory`.

Any map-style data set will do, torchvision's and lists included: `len()`, and `data[row]` giving a
pair of example and label. Its `targets` and `classes`, where it has them, save a pass and name the
classes. Row 0 says what examples are: images (see `is_image`), or tensors of other kinds, which
are given to models as they are.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from lipt.common.data.parallel import Progress
from lipt.common.data.sources.rows import ColumnRows, PixelRows
from lipt.common.data.sources.user_columns import column_rows
from lipt.common.data.sources.user_labels import (
    Given,
    class_names_of,
    given_in_rows,
    given_in_targets,
    label_of,
)
from lipt.common.data.sources.user_rows import is_image, length_of, read_row
from lipt.common.errors import ConfigError, DataError
from lipt.common.images.pixels import fit_image, is_grayscale
from lipt.common.imports.factory import load_factory
from lipt.common.targets.reading import is_class


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
        num_rows = length_of(source, data)
        names, targets = class_names_of(data), getattr(data, "targets", None)
        self._has_targets = targets is not None
        if targets is not None:
            given = given_in_targets(targets, names, num_rows, source)
        elif num_rows and not is_class(read_row(source, data, 0)[1]):
            # All of them have to be known before the first means anything.
            labels = [read_row(source, data, row)[1] for row in range(num_rows)]
            given = given_in_rows(labels, names, source)
            self._has_targets = True
        else:
            # Rows that were not read yet have no class.
            given = Given(torch.full((num_rows,), -1, dtype=torch.int64), names)
        super().__init__(source, given.names, given.labels_N, targets=given.targets)
        self._data = data
        if num_rows and self.raw(0) != self.raw(0):
            raise DataError(
                f"{source}: row 0 differs between two reads. Leave random transforms out of the "
                "data set: the workers augment."
            )

    def pixels(self, row: int) -> NDArray[np.uint8]:
        """The image; its label is noted where there are no `targets`."""
        image, label = read_row(self.source, self._data, row)
        if not self._has_targets:
            self.labels_N[row] = label_of(label, self.source, row)
        return _to_pixels(image, self.source, row)


def rows_of_data(
    source: str, data: Any, progress: Progress | None = None
) -> FactoryRows | ColumnRows:
    """The rows of a user's data set, of whichever kind its row 0 says.

    Args:
        source: its name, for messages.
        data: map-style.
        progress: called with (done, total) rows, where all are read now.

    Raises:
        ConfigError: `data` is not map-style.
        DataError: as `FactoryRows`; or a row cannot be used.
    """
    if length_of(source, data) == 0 or is_image(read_row(source, data, 0)[0]):
        return FactoryRows(source, data)
    return column_rows(source, data, progress)


def data_of_factory(source: str, allowed_modules: Collection[str]) -> Any:
    """Call the factory that `source` names, without arguments.

    Raises:
        FactoryNotAllowedError: this process's flags do not allow the module.
        ConfigError: the factory cannot be imported, or fails.
    """
    factory = load_factory(source, allowed_modules=allowed_modules)
    try:
        return factory()
    except Exception as error:
        raise ConfigError(
            f"{source!r} called without arguments failed with {type(error).__name__}: {error}. "
            "Define it as def factory(), returning the training set."
        ) from error


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
