"""Rows of a user's data set: its length, a row, and what in a row is the example and its label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from lipt.common.errors import ConfigError, DataError

_LABELS = ("label", "labels")


def length_of(source: str, data: Any) -> int:
    """How many rows there are.

    Raises:
        ConfigError: the data is not map-style.
    """
    try:
        num_rows: int | None = len(data)
    except TypeError:
        num_rows = None
    if num_rows is None or not hasattr(data, "__getitem__"):
        raise ConfigError(
            f"{source!r} returned a {type(data).__name__}, which is not a map-style data set. "
            "Return one with len() and data[row] -> (example, label), such as a list of pairs; of "
            "a stream without a length, a list of the examples that are to be chosen from."
        )
    return num_rows


def read_row(source: str, data: Any, row: int) -> tuple[Any, Any]:
    """A row's example and label; of a dictionary, all but "label" is the example.

    A dictionary with a single image is that image.

    Raises:
        DataError: the row cannot be read, or is no example with a label.
    """
    try:
        item = data[row]
    except Exception as error:
        raise DataError(
            f"{source}: reading row {row} failed with {type(error).__name__}: {error}. "
            "Every row from 0 to len() - 1 must be readable."
        ) from error
    if isinstance(item, Mapping):
        return _from_mapping(item, source, row)
    if not isinstance(item, tuple | list) or len(item) < 2:
        raise DataError(
            f"{source}: row {row} is a {type(item).__name__}, not a pair of image and "
            "label. Return (image, label), (tensor, label), or a dictionary of tensors with a "
            '"label".'
        )
    return item[0], item[1]


def is_image(example: object) -> bool:
    """Whether an example is an image: one of Pillow's, or uint8 brightnesses.

    These are of H x W, or have 1 or 3 channels; where the channels stand at the wrong end it is an
    image all the same, to be refused as one.
    """
    if isinstance(example, Image.Image):
        return True
    if not isinstance(example, Tensor | np.ndarray):
        return False
    shape = tuple(example.shape)
    one_byte = str(example.dtype).removeprefix("torch.") == "uint8"
    return one_byte and (
        len(shape) == 2 or (len(shape) == 3 and bool({shape[0], shape[2]} & {1, 3}))
    )


def _from_mapping(item: Mapping[str, Any], source: str, row: int) -> tuple[Any, Any]:
    key = next((name for name in _LABELS if name in item), None)
    rest = {str(name): value for name, value in item.items() if name != key}
    if key is None or not rest:
        raise DataError(
            f"{source}: row {row} is a dictionary of {', '.join(map(str, item)) or 'nothing'}. "
            'Return its tensors, and its class as "label".'
        )
    only = next(iter(rest.values()))
    return (only if len(rest) == 1 and is_image(only) else rest), item[key]
