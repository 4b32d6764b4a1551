"""Opening: data in any of its forms, as the data set that the pipeline and main training take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lipt.common.data import Dataset, dataset_of, open_pairs
from lipt.common.data import open_dataset as open_by_name
from lipt.common.imports.factory import modules_of
from lipt.trainer.subsets.data import map_style

__all__ = ["open_dataset", "open_pairs"]


def open_dataset(
    data: Any, *, image_size: int | None = None, allow_modules: Sequence[str] = ()
) -> Dataset:
    """Open labelled data and check every example of it.

    Args:
        data: a map-style data set of (example, label), `(X, y)` arrays or tensors, a Hugging
            Face `datasets.Dataset`, or a name: `csv:train.csv?label=COLUMN`,
            `imagefolder:/data`, `package.module:factory`. What is open already stays as it is.
        image_size: pixels a side that images are scaled to; None keeps small ones.
        allow_modules: modules that a name may import besides the one that it names.

    Raises:
        UnknownNameError: there is no data of that name.
        ConfigError: it is in none of these forms, or `image_size` cannot be used.
        DataError: it is empty, or an example or a label cannot be used.
    """
    if isinstance(data, Dataset):
        return data
    if isinstance(data, str):
        allowed = (*allow_modules, *modules_of(data))
        return open_by_name(data, image_size=image_size, allowed_modules=allowed)
    return dataset_of(map_style(data), image_size=image_size)
