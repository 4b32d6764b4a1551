"""Opens a call's data, and names a model object so that a configuration can refer to it."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

from torch import nn

from lipt.common.data import Dataset, open_data, open_pairs
from lipt.common.imports import call_by_name_or_place
from lipt.common.models.head import HEAD
from lipt.trainer.arguments import checked

__all__ = ["open_dataset", "open_pairs"]

MODULE = "lipt.data"

_numbers = itertools.count(1)


class Given:
    """A model factory with a name, `lipt.data:model_1`, valid while this object lives."""

    def __init__(
        self, model: nn.Module | Callable[..., nn.Module], head: str | None = None
    ) -> None:
        self._model = copy.deepcopy(model).cpu() if isinstance(model, nn.Module) else model
        self._head = head
        attribute = f"model_{next(_numbers)}"
        self.name = f"{MODULE}:{attribute}"
        _given[attribute] = self

    def __call__(self, *, num_classes: int) -> nn.Module:
        """Make a new copy of the model."""
        if isinstance(self._model, nn.Module):
            made = copy.deepcopy(self._model)
        else:
            made = call_by_name_or_place(self._model, num_classes=num_classes)
        if self._head is not None:
            setattr(made, HEAD, self._head)
        return made


_given: WeakValueDictionary[str, Given] = WeakValueDictionary()


def __getattr__(attribute: str) -> Any:
    try:
        return _given[attribute]
    except KeyError:
        raise AttributeError(f"module {MODULE!r} has no attribute {attribute!r}") from None


@checked
def open_dataset(
    data: Any,
    *,
    target: str | None = None,
    image_size: int | None = None,
    allow_modules: Sequence[str] = (),
) -> Dataset:
    """Open labelled data and check every example.

    Args:
        data: a map-style data set of (example, label), `(X, y)` arrays or tensors, a data frame of
            pandas, polars or pyarrow, texts with labels, a Hugging Face `datasets.Dataset`, or a
            name: `csv:train.csv?label=COLUMN`, `imagefolder:/data`, `package.module:factory`. A
            `Dataset` is returned unchanged.
        target: a table's column of labels, or of numbers to predict, also of a file: `train.csv`;
            None for one called label. "number" for regression on whole numbers, which are classes
            otherwise.
        image_size: pixels a side to scale images to; None keeps small images.
        allow_modules: more modules that a name may import.

    Raises:
        UnknownNameError: no data has that name.
        ConfigError: unknown form of data, or an unusable `image_size`.
        DataError: the data is empty, or an example or a label is unusable.
    """
    return open_data(data, target=target, image_size=image_size, allow_modules=allow_modules)
