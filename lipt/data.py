"""Opens a call's data, and names a model object so that a configuration can refer to it."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal
from weakref import WeakValueDictionary

from torch import nn

from lipt.common.data import Dataset, dataset_of, open_pairs
from lipt.common.data import open_dataset as open_by_name
from lipt.common.imports import modules_of
from lipt.trainer.subsets.data import as_numbers, map_style, rows_of

__all__ = ["open_dataset", "open_pairs"]

MODULE = "lipt.data"

_numbers = itertools.count(1)


class Given:
    """A model factory with a name, `lipt.data:model_1`, valid while this object lives."""

    def __init__(self, model: nn.Module | Callable[..., nn.Module]) -> None:
        self._model = copy.deepcopy(model).cpu() if isinstance(model, nn.Module) else model
        attribute = f"model_{next(_numbers)}"
        self.name = f"{MODULE}:{attribute}"
        _given[attribute] = self

    def __call__(self, *, num_classes: int) -> nn.Module:
        """Make a new copy of the model."""
        if isinstance(self._model, nn.Module):
            return copy.deepcopy(self._model)
        return self._model(num_classes=num_classes)


_given: WeakValueDictionary[str, Given] = WeakValueDictionary()


def __getattr__(attribute: str) -> Any:
    try:
        return _given[attribute]
    except KeyError:
        raise AttributeError(f"module {MODULE!r} has no attribute {attribute!r}") from None


def open_dataset(
    data: Any,
    *,
    image_size: int | None = None,
    allow_modules: Sequence[str] = (),
    target: Literal["number"] | None = None,
) -> Dataset:
    """Open labelled data and check every example.

    Args:
        data: a map-style data set of (example, label), `(X, y)` arrays or tensors, a Hugging Face
            `datasets.Dataset`, or a name: `csv:train.csv?label=COLUMN`, `imagefolder:/data`,
            `package.module:factory`. A `Dataset` is returned unchanged.
        image_size: pixels a side to scale images to; None keeps small images.
        allow_modules: more modules that a name may import.
        target: "number" for regression on whole numbers, which are classes otherwise; a name says
            it itself, `csv:train.csv?target=COLUMN`.

    Raises:
        UnknownNameError: no data has that name.
        ConfigError: unknown form of data, or an unusable `image_size`.
        DataError: the data is empty, or an example or a label is unusable.
    """
    if target is not None:
        data = as_numbers(rows_of(data))
    if isinstance(data, Dataset):
        return data
    if isinstance(data, str):
        allowed = (*allow_modules, *modules_of(data))
        return open_by_name(data, image_size=image_size, allowed_modules=allowed)
    return dataset_of(map_style(data), image_size=image_size)
